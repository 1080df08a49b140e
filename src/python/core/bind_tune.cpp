#include <headrace/option_fields.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "python/core/bindings.h"
#include "python/core/given.h"
#include "python/core/python_tune.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

TuneRequest request_of(const Given& given) {
  TuneRequest request;
  const std::vector<Field> fields = fields_of(request.options, "tune.");
  for (const char* name : {"budget_s", "gain_min"}) {
    field_named(fields, std::string("tune.") + name).set(real_of(given[name]));
  }
  field_named(fields, "tune.allow").set(given.as<std::string>("allow", "a text"));
  request.options.only = given.as<std::vector<std::string>>("only", "texts");
  request.options.fixed = given.as<std::vector<std::string>>("fixed", "texts");
  request.seed = given.as<std::uint64_t>("seed", "a whole number from 0 to 2^64 - 1");
  request.title = given.as<std::string>("title", "a text");
  request.command = text_of(given["command"]);
  request.out = text_of(given["out"]);
  return request;
}

}  // namespace

void register_tune(nb::module_& module) {
  module.def(
      "tune_objects",
      [](const nb::object& subject, const nb::dict& request, const nb::callable& on_progress) {
        TuneResult result = tune_objects(subject, request_of({request, "tune"}), on_progress);
        return std::pair(std::move(result.document), std::move(result.report));
      },
      nb::arg("subject"), nb::arg("request"), nb::arg("on_progress"),
      "The tuner's loop on a headrace._subject.Subject; returns ledger.json and the report as text.");
  module.def("diagnose_objects", &diagnose_objects, nb::arg("subject"), nb::arg("steps"), nb::arg("budget_s"),
             "Diagnosis and time split, as JSON, of the loop of a headrace._diagnose_loop.DiagnosedLoop.");
}

}  // namespace headrace::python
