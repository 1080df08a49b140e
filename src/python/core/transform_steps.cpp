#include "python/core/transform_steps.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

namespace headrace::python {

namespace nb = nanobind;

nb::list steps_of(const std::vector<TransformStep>& steps) {
  nb::list list;
  for (const TransformStep& step : steps) {
    nb::dict entry;
    entry["operations"] = step.operations;
    entry["fused"] = step.fused;
    entry["why"] = step.why;
    list.append(std::move(entry));
  }
  return list;
}

}  // namespace headrace::python
