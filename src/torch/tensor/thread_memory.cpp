#include "torch/tensor/thread_memory.h"

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "core/base/fail.h"

namespace headrace {
namespace {

namespace profiler = torch::profiler::impl;

struct Counts {
  std::int64_t bytes = 0;
  std::int64_t peak = 0;  // The most since the innermost scope began.
  int askers = 0;         // ThreadMemory objects of this thread.
  // From the first of them to the end of the last one. None of the thread's own objects: at its end LibTorch's, which
  // the guard would restore, may be gone.
  c10::DebugInfoGuard* reports = nullptr;
};
thread_local constinit Counts counts;

// LibTorch casts what holds a profiler's place to this base class, whoever asks whether one runs: to it none does.
class Reports final : public profiler::ProfilerStateBase {
 public:
  Reports()
      : ProfilerStateBase(profiler::ProfilerConfig(profiler::ProfilerState::Disabled, /*report_input_shapes=*/false,
                                                   /*profile_memory=*/true)) {}
  void reportMemoryUsage(void* /*block*/, std::int64_t bytes, std::size_t /*allocated*/, std::size_t /*reserved*/,
                         c10::Device device) override {
    if (!device.is_cpu()) return;
    counts.bytes += bytes;  // A free reports bytes below 0.
    counts.peak = std::max(counts.peak, counts.bytes);
  }
  profiler::ActiveProfilerType profilerType() override { return profiler::ActiveProfilerType::NONE; }
};

void check_free() {
  const c10::DebugInfoBase* held = c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
  if (held != nullptr && dynamic_cast<const Reports*>(held) == nullptr) {
    fail(ErrorCode::unsupported,
         "tensor: memory of operations: wanted LibTorch's reports of memory, found that a PyTorch profiler has them on "
         "this thread");
  }
}

}  // namespace

ThreadMemory::ThreadMemory() {
  check_free();
  if (counts.askers == 0) {
    counts.reports = new c10::DebugInfoGuard(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<Reports>());
  }
  ++counts.askers;
}

ThreadMemory::~ThreadMemory() {
  if (--counts.askers == 0) delete std::exchange(counts.reports, nullptr);
}

std::int64_t thread_bytes() noexcept {
  return counts.bytes;
}

MemoryScope::MemoryScope() : start_(counts.bytes), peak_before_(counts.peak) {
  counts.peak = counts.bytes;
}

MemoryScope::~MemoryScope() {
  counts.peak = std::max(counts.peak, peak_before_);
}

std::int64_t MemoryScope::net_bytes() const noexcept {
  return counts.bytes - start_;
}

std::int64_t MemoryScope::peak_bytes() const noexcept {
  return counts.peak - start_;
}

}  // namespace headrace
