// What the elements of an array are, and how many of them lie along each axis.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace headrace {

// u8, i64, f32, bf16, f64, f16, i32, i16, i8, boolean and so on.
enum class DType {
#define HEADRACE_DTYPE(enumerator, bytes, name, safetensors, libtorch) enumerator,
#include <headrace/dtypes.inc>
#undef HEADRACE_DTYPE
};
inline constexpr std::size_t kDTypes = 0
#define HEADRACE_DTYPE(enumerator, bytes, name, safetensors, libtorch) +1  // NOLINT(bugprone-macro-parentheses)
#include <headrace/dtypes.inc>
#undef HEADRACE_DTYPE
    ;

std::int64_t bytes_of(DType dtype) noexcept;                       // Of one element.
std::string_view name_of(DType dtype) noexcept;                    // As torch has it: "uint8", "bfloat16", "bool".
std::optional<DType> dtype_named(std::string_view name) noexcept;  // nullopt: none of ours, as "complex64".
std::optional<DType> dtype_numbered(std::int64_t number) noexcept;

// Elements along each axis, outermost first: {128, 1, 28, 28}.
using Shape = std::vector<std::int64_t>;

}  // namespace headrace
