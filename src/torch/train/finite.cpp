#include "torch/train/finite.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <limits>

#include "torch/tensor/parallel.h"

namespace headrace {
namespace {

constexpr std::uint32_t kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;
constexpr std::int64_t kBlock = 4096;    // Floats between two looks at the outcome.
constexpr std::int64_t kGrain = 65'536;  // Floats that are worth a thread.
constexpr std::int64_t kPartsMax = 128;

// A float's bits without the sign rise with its magnitude; infinity and, above it, NaN are the largest. The loop is
// without a branch, so that the compiler makes it one of vectors.
bool block_is_finite(const float* values, std::int64_t count) noexcept {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(values[i]) & kMagnitude);
  }
  return largest < kInfinity;
}

bool floats_are_finite(const float* values, std::int64_t count) {
  std::atomic<bool> finite{true};
  const auto examine = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end && finite.load(std::memory_order_relaxed); i += kBlock) {
      if (!block_is_finite(values + i, std::min(kBlock, end - i))) finite.store(false, std::memory_order_relaxed);
    }
  };
  const std::int64_t parts = std::clamp<std::int64_t>(count / kGrain, 1, kPartsMax);
  if (parts == 1) {
    examine(0, count);
  } else {
    const auto border = [&](std::int64_t part) {
      return part == parts ? count : count * part / parts / kBlock * kBlock;
    };
    for_each_range(parts, [&](std::int64_t begin, std::int64_t end) { examine(border(begin), border(end)); });
  }
  return finite;
}

}  // namespace

bool is_finite(const at::Tensor& tensor) {
  if (!tensor.defined() || !(tensor.is_floating_point() || tensor.is_complex()) || tensor.numel() == 0) return true;
  if (tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.layout() == at::kStrided && !tensor.is_neg() &&
      tensor.is_non_overlapping_and_dense()) {
    return floats_are_finite(tensor.const_data_ptr<float>(), tensor.numel());
  }
  c10::AutoGradMode no_graph(false);
  return at::isfinite(tensor.layout() == at::kSparse ? tensor._values() : tensor).all().item<bool>();
}

double value_not_finite(const at::Tensor& tensor) {
  c10::AutoGradMode no_graph(false);
  const at::Tensor values = (tensor.layout() == at::kSparse ? tensor._values() : tensor).detach();
  if (values.is_complex() || at::isnan(values).any().item<bool>()) return std::numeric_limits<double>::quiet_NaN();
  return values.masked_select(at::isfinite(values).logical_not()).select(0, 0).item<double>();
}

}  // namespace headrace
