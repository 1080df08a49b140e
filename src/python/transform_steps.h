// Which operations run in one pass, for Python.
#pragma once

#include <headrace/transform.h>
#include <pybind11/pybind11.h>

#include <vector>

namespace headrace::python {

// A dict each: operations, fused, why.
pybind11::list steps_of(const std::vector<TransformStep>& steps);

}  // namespace headrace::python
