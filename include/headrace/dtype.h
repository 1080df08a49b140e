// What the elements of an array are, and how many of them lie along each axis.
#pragma once

#include <cstdint>
#include <vector>

namespace headrace {

enum class DType { u8, i64, f32, bf16, f64, f16, i32, i16, i8, boolean };

std::int64_t bytes_of(DType dtype) noexcept;  // Of one element.

// Elements along each axis, outermost first: {128, 1, 28, 28}.
using Shape = std::vector<std::int64_t>;

}  // namespace headrace
