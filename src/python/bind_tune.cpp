#include <headrace/option_fields.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "python/bindings.h"
#include "python/python_tune.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

TuneRequest request_of(const py::dict& values) {
  TuneRequest request;
  const std::vector<Field> fields = fields_of(request.options, "tune.");
  for (const char* name : {"budget_s", "gain_min"}) {
    field_named(fields, std::string("tune.") + name).set(py::cast<double>(values[name]));
  }
  field_named(fields, "tune.allow").set(py::cast<std::string>(values["allow"]));
  request.options.only = py::cast<std::vector<std::string>>(values["only"]);
  request.options.fixed = py::cast<std::vector<std::string>>(values["fixed"]);
  request.seed = py::cast<std::uint64_t>(values["seed"]);
  request.title = py::cast<std::string>(values["title"]);
  request.command = py::cast<std::string>(values["command"]);
  request.out = py::cast<std::string>(values["out"]);
  return request;
}

}  // namespace

void register_tune(py::module_& module) {
  module.def(
      "tune_objects",
      [](const py::object& subject, const py::dict& request, const py::function& on_progress) {
        TuneResult result = tune_objects(subject, request_of(request), on_progress);
        return std::pair(std::move(result.document), std::move(result.report));
      },
      py::arg("subject"), py::arg("request"), py::arg("on_progress"),
      "The tuner's loop on a headrace._subject.Subject; returns ledger.json and the report as text.");
}

}  // namespace headrace::python
