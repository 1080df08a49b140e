// The one table of types of elements: what a new one adds a line to, beside its enumerator.
#pragma once

#include <headrace/dtype.h>

#include <array>

namespace headrace {

struct DTypeRow {
  DType dtype;
  std::int64_t bytes;            // Of one element.
  std::string_view name;         // torch's, in Python.
  std::string_view safetensors;  // In the header of a safetensors file.
  std::string_view libtorch;     // at::ScalarType's.
};

inline constexpr std::array<DTypeRow, kDTypes> kDTypeTable{{
    {DType::u8, 1, "uint8", "U8", "Byte"},
    {DType::i64, 8, "int64", "I64", "Long"},
    {DType::f32, 4, "float32", "F32", "Float"},
    {DType::bf16, 2, "bfloat16", "BF16", "BFloat16"},
    {DType::f64, 8, "float64", "F64", "Double"},
    {DType::f16, 2, "float16", "F16", "Half"},
    {DType::i32, 4, "int32", "I32", "Int"},
    {DType::i16, 2, "int16", "I16", "Short"},
    {DType::i8, 1, "int8", "I8", "Char"},
    {DType::boolean, 1, "bool", "BOOL", "Bool"},
}};

constexpr bool is_in_order_of_numbers() {
  for (std::size_t i = 0; i < kDTypeTable.size(); ++i) {
    if (static_cast<std::size_t>(kDTypeTable[i].dtype) != i) return false;
  }
  return true;
}
static_assert(is_in_order_of_numbers(), "a type is found by its number");

constexpr const DTypeRow& row_of(DType dtype) noexcept {
  return kDTypeTable[static_cast<std::size_t>(dtype)];
}

}  // namespace headrace
