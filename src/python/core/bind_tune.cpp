#include <headrace/option_fields.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "python/core/bindings.h"
#include "python/core/python_tune.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

template <class Value>
Value value_of(const nb::dict& values, const char* name, const char* wanted) {
  const nb::object given = values[name];
  Value value{};
  if (nb::try_cast(given, value)) return value;
  fail(ErrorCode::invalid_argument, "tune: {}: wanted {}, found {}", name, wanted, repr_of(given));
}

TuneRequest request_of(const nb::dict& values) {
  TuneRequest request;
  const std::vector<Field> fields = fields_of(request.options, "tune.");
  for (const char* name : {"budget_s", "gain_min"}) {
    field_named(fields, std::string("tune.") + name).set(real_of(values[name]));
  }
  field_named(fields, "tune.allow").set(value_of<std::string>(values, "allow", "a text"));
  request.options.only = value_of<std::vector<std::string>>(values, "only", "texts");
  request.options.fixed = value_of<std::vector<std::string>>(values, "fixed", "texts");
  request.seed = value_of<std::uint64_t>(values, "seed", "a whole number from 0 to 2^64 - 1");
  request.title = value_of<std::string>(values, "title", "a text");
  request.command = text_of(values["command"]);
  request.out = text_of(values["out"]);
  return request;
}

}  // namespace

void register_tune(nb::module_& module) {
  module.def(
      "tune_objects",
      [](const nb::object& subject, const nb::dict& request, const nb::callable& on_progress) {
        TuneResult result = tune_objects(subject, request_of(request), on_progress);
        return std::pair(std::move(result.document), std::move(result.report));
      },
      nb::arg("subject"), nb::arg("request"), nb::arg("on_progress"),
      "The tuner's loop on a headrace._subject.Subject; returns ledger.json and the report as text.");
}

}  // namespace headrace::python
