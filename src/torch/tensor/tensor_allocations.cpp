#include "torch/tensor/tensor_allocations.h"

#include <c10/core/Allocator.h>

#include <atomic>
#include <memory>

#include "core/base/fail.h"

namespace headrace {
namespace {

std::atomic<bool> counting{false};
std::atomic<std::int64_t> held{0};

struct Reports final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void* /*block*/, std::int64_t bytes, std::size_t /*allocated*/, std::size_t /*reserved*/,
                         c10::Device device) override {
    if (device.is_cpu()) held.fetch_add(bytes, std::memory_order_relaxed);  // A free reports bytes below 0.
  }
  bool memoryProfilingEnabled() const override { return true; }
};

}  // namespace

TensorAllocations::TensorAllocations() : guard_(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<Reports>()) {
  held = 0;
  HEADRACE_CHECK(!counting.exchange(true), "tensors are counted already");
}

TensorAllocations::~TensorAllocations() {
  counting = false;
}

std::optional<std::int64_t> TensorAllocations::bytes() {
  if (!counting.load(std::memory_order_relaxed)) return std::nullopt;
  return held.load(std::memory_order_relaxed);
}

}  // namespace headrace
