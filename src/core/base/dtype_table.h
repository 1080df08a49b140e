// The list of types of elements (headrace/dtypes.inc) as a table.
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
#define HEADRACE_DTYPE(enumerator, bytes, name, safetensors, libtorch) \
  {DType::enumerator, bytes, name, safetensors, libtorch},
#include <headrace/dtypes.inc>
#undef HEADRACE_DTYPE
}};

constexpr const DTypeRow& row_of(DType dtype) noexcept {
  return kDTypeTable[static_cast<std::size_t>(dtype)];
}

}  // namespace headrace
