// What the operations have alike that the fused pass knows.
#pragma once

#include <headrace/operation.h>

#include <variant>
#include <vector>

#include "data/transform/fused_part.h"

namespace headrace::transform {

template <class Part>
class FusedOperation : public Operation {
 public:
  template <class Parameters>
  explicit FusedOperation(const Parameters& parameters)
      : fusion_{part_of(parameters)}, parameters_(parameters_of(parameters)) {}
  std::vector<OperationParameter> parameters() const override { return parameters_; }
  const Fusion* fusion() const noexcept override { return &fusion_; }

 protected:
  const Part& part() const noexcept { return *std::get_if<Part>(&fusion_.part); }

 private:
  const Fusion fusion_;
  const std::vector<OperationParameter> parameters_;
};

// Pixels that move and stay what they are.
constexpr bool is_any_type(DType dtype) noexcept {
  return dtype == DType::u8 || dtype == DType::f32 || dtype == DType::bf16;
}

}  // namespace headrace::transform
