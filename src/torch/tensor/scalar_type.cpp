#include "torch/tensor/scalar_type.h"

#include <array>

#include "core/base/dtype_table.h"
#include "core/base/fail.h"

namespace headrace {
namespace {

// By the number of ours.
std::array<at::ScalarType, kDTypes> types_by_name() {
  std::array<at::ScalarType, kDTypes> types{};
  for (std::size_t i = 0; i < types.size(); ++i) {
    int number = 0;
    while (number < static_cast<int>(at::ScalarType::NumOptions) &&
           kDTypeTable[i].libtorch != c10::toString(static_cast<at::ScalarType>(number))) {
      ++number;
    }
    types[i] = static_cast<at::ScalarType>(number);
    HEADRACE_CHECK(types[i] != at::ScalarType::NumOptions, "LibTorch has no type {}", kDTypeTable[i].libtorch);
  }
  return types;
}

const std::array<at::ScalarType, kDTypes>& types() {
  static const auto found = types_by_name();
  return found;
}

}  // namespace

at::ScalarType scalar_type(DType dtype) {
  return types()[static_cast<std::size_t>(dtype)];
}

std::optional<DType> dtype_of(at::ScalarType type) noexcept {
  for (const DTypeRow& row : kDTypeTable) {
    if (scalar_type(row.dtype) == type) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace headrace
