#include <headrace/dtype.h>

#include "core/base/dtype_table.h"

namespace headrace {

static_assert(static_cast<int>(DType::u8) == 0 && static_cast<int>(DType::i64) == 1 &&
                  static_cast<int>(DType::f32) == 2 && static_cast<int>(DType::bf16) == 3 &&
                  static_cast<int>(DType::f64) == 4 && static_cast<int>(DType::f16) == 5 &&
                  static_cast<int>(DType::i32) == 6 && static_cast<int>(DType::i16) == 7 &&
                  static_cast<int>(DType::i8) == 8 && static_cast<int>(DType::boolean) == 9,
              "packs that were written have these numbers");

std::int64_t bytes_of(DType dtype) noexcept {
  return row_of(dtype).bytes;
}

std::string_view name_of(DType dtype) noexcept {
  return row_of(dtype).name;
}

std::optional<DType> dtype_named(std::string_view name) noexcept {
  for (const DTypeRow& row : kDTypeTable) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::optional<DType> dtype_numbered(std::int64_t number) noexcept {
  if (number < 0 || number >= static_cast<std::int64_t>(kDTypeTable.size())) return std::nullopt;
  return static_cast<DType>(number);
}

}  // namespace headrace
