#include "torch/tensor/scalar_type.h"

#include <array>
#include <utility>

#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr std::array<std::pair<DType, at::ScalarType>, 10> kTypes{{{DType::u8, at::ScalarType::Byte},
                                                                   {DType::i64, at::ScalarType::Long},
                                                                   {DType::f32, at::ScalarType::Float},
                                                                   {DType::bf16, at::ScalarType::BFloat16},
                                                                   {DType::f64, at::ScalarType::Double},
                                                                   {DType::f16, at::ScalarType::Half},
                                                                   {DType::i32, at::ScalarType::Int},
                                                                   {DType::i16, at::ScalarType::Short},
                                                                   {DType::i8, at::ScalarType::Char},
                                                                   {DType::boolean, at::ScalarType::Bool}}};

}  // namespace

at::ScalarType scalar_type(DType dtype) {
  for (const auto& [ours, torchs] : kTypes) {
    if (ours == dtype) return torchs;
  }
  fail(ErrorCode::internal, "tensor: unknown type {}", static_cast<int>(dtype));
}

std::optional<DType> dtype_of(at::ScalarType type) noexcept {
  for (const auto& [ours, torchs] : kTypes) {
    if (torchs == type) return ours;
  }
  return std::nullopt;
}

}  // namespace headrace
