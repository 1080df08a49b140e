#include <headrace/error.h>
#include <headrace/operation.h>
#include <headrace/option_fields.h>
#include <headrace/options/transforms.h>
#include <pybind11/pybind11.h>

#include <string>

#include "core/options/contradictions.h"
#include "python/bindings.h"
#include "python/keywords.h"

namespace headrace::python {

namespace py = pybind11;

namespace {

py::dict operation_table(const std::string& name, const py::dict& parameters) {
  TransformSpec operation;
  fields_of(operation).front().set(name);
  const std::string prefix = name + ".";
  set_keywords(fields_of(operation, prefix), parameters, prefix);
  if (const std::string fault = operation_contradiction(operation, prefix); !fault.empty()) {
    throw Error(ErrorCode::invalid_argument, fault);
  }
  static_cast<void>(make_operation(operation));  // Refuses what no kernel does.
  return keywords_of(fields_of(operation));
}

}  // namespace

void register_transforms(py::module_& module) {
  module.def("operation_table", &operation_table, py::arg("name"), py::arg("parameters"),
             "The table of an operation of that name in a list of transforms: `name` and every parameter, those given "
             "as they are understood, the others at their defaults.");
}

}  // namespace headrace::python
