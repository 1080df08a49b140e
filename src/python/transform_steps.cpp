#include "python/transform_steps.h"

#include <pybind11/stl.h>

namespace headrace::python {

namespace py = pybind11;
using namespace py::literals;

py::list steps_of(const std::vector<TransformStep>& steps) {
  py::list list;
  for (const TransformStep& step : steps) {
    list.append(py::dict("operations"_a = step.operations, "fused"_a = step.fused, "why"_a = step.why));
  }
  return list;
}

}  // namespace headrace::python
