// What the elements of an array are, and how many of them lie along each axis.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace headrace {

// The numbers are in packs and on the wire to worker processes: append only.
enum class DType { u8 = 0, i64 = 1, f32 = 2, bf16 = 3, f64 = 4, f16 = 5, i32 = 6, i16 = 7, i8 = 8, boolean = 9 };
inline constexpr std::size_t kDTypes = 10;

std::int64_t bytes_of(DType dtype) noexcept;                       // Of one element.
std::string_view name_of(DType dtype) noexcept;                    // As torch has it: "uint8", "bfloat16", "bool".
std::optional<DType> dtype_named(std::string_view name) noexcept;  // nullopt: none of ours, as "complex64".
std::optional<DType> dtype_numbered(std::int64_t number) noexcept;

// Elements along each axis, outermost first: {128, 1, 28, 28}.
using Shape = std::vector<std::int64_t>;

}  // namespace headrace
