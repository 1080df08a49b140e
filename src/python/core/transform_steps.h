// Which operations run in one pass, for Python.
#pragma once

#include <headrace/transform.h>
#include <nanobind/nanobind.h>

#include <vector>

namespace headrace::python {

// A dict each: operations, fused, why.
nanobind::list steps_of(const std::vector<TransformStep>& steps);

}  // namespace headrace::python
