#include "torch/tensor/thread_memory.h"

#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <thread>

#include "core/base/fail.h"
#include "torch/tensor/tensor_allocations.h"

namespace headrace {
namespace {

constexpr std::int64_t kMegabyte = 1'000'000;

at::Tensor bytes(std::int64_t count) {
  return at::empty({count}, at::kByte);
}

TEST(ThreadMemory, AScopeTellsWhatItKeepsAndTheMostThatItHeld) {
  at::Tensor kept;
  const MemoryScope scope;
  {
    const at::Tensor temporary = bytes(200 * kMegabyte);
    kept = bytes(50 * kMegabyte);
  }
  EXPECT_EQ(scope.net_bytes(), 50 * kMegabyte);
  EXPECT_EQ(scope.peak_bytes(), 250 * kMegabyte);
}

TEST(ThreadMemory, AScopeWithinAnotherOneLeavesItItsPeak) {
  const MemoryScope outer;
  { const at::Tensor early = bytes(3 * kMegabyte); }
  {
    const MemoryScope inner;
    const at::Tensor late = bytes(kMegabyte);
    EXPECT_EQ(inner.peak_bytes(), kMegabyte);
  }
  EXPECT_EQ(outer.peak_bytes(), 3 * kMegabyte);
  EXPECT_EQ(outer.net_bytes(), 0);
}

TEST(ThreadMemory, ScopesMayEndInAnotherOrder) {
  auto first = std::make_unique<MemoryScope>();
  auto second = std::make_unique<MemoryScope>();
  first.reset();
  const at::Tensor kept = bytes(kMegabyte);
  EXPECT_EQ(second->net_bytes(), kMegabyte);
  second.reset();
  EXPECT_FALSE(c10::memoryProfilingEnabled());
}

TEST(ThreadMemory, ThreadsDoNotMix) {
  const MemoryScope here;
  const at::Tensor mine = bytes(2 * kMegabyte);
  std::int64_t there = 0;
  std::thread other([&] {
    const MemoryScope scope;
    const at::Tensor its = bytes(7 * kMegabyte);
    there = scope.net_bytes();
  });
  other.join();
  EXPECT_EQ(there, 7 * kMegabyte);
  EXPECT_EQ(here.net_bytes(), 2 * kMegabyte);
}

TEST(ThreadMemory, LibTorchSeesMemoryReportedAndNoProfiler) {
  EXPECT_FALSE(c10::memoryProfilingEnabled());
  {
    const MemoryScope scope;
    EXPECT_TRUE(c10::memoryProfilingEnabled());
    EXPECT_FALSE(torch::profiler::impl::profilerEnabled());
    EXPECT_EQ(torch::profiler::impl::profilerType(), torch::profiler::impl::ActiveProfilerType::NONE);
  }
  EXPECT_FALSE(c10::memoryProfilingEnabled());
}

TEST(ThreadMemory, ReportsThatAnotherOneHasAreNotTaken) {
  const TensorAllocations others;
  const std::int64_t before = TensorAllocations::bytes().value();
  try {
    const MemoryScope scope;
    FAIL() << "it took them";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_THAT(error.what(), testing::HasSubstr("a PyTorch profiler has them"));
  }
  const at::Tensor more = bytes(kMegabyte);
  EXPECT_EQ(TensorAllocations::bytes().value() - before, kMegabyte);
}

}  // namespace
}  // namespace headrace
