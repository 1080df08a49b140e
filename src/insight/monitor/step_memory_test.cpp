#include "insight/monitor/step_memory.h"

#include <gtest/gtest.h>
#include <headrace/error.h>
#include <sys/mman.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>

#include "core/hardware/machine.h"

namespace headrace {
namespace {

TEST(StepMemory, ASpikeIsInThePeakOfItsStepAndNotOfTheNext) {
  if (!resident_memory()) {
    EXPECT_FALSE(StepMemoryReader().take());  // A system that does not tell.
    return;
  }
  StepMemoryReader reader(std::chrono::milliseconds(1));
  constexpr std::size_t kBytes = 100'000'000;
  const auto before = reader.take();
  ASSERT_TRUE(before);
  void* const block = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(block, MAP_FAILED);
  std::memset(block, 1, kBytes);
  const auto during = reader.take();  // With a reading of its own: it is resident now.
  ASSERT_EQ(::munmap(block, kBytes), 0);
  reader.take();
  const auto after = reader.take();
  ASSERT_TRUE(during && after);
  EXPECT_GE(during->peak, before->current + 90'000'000);
  EXPECT_LE(after->peak, during->peak - 90'000'000);
  EXPECT_LE(during->mean, static_cast<double>(during->peak));
}

TEST(StepMemory, AnIntervalOfNoTimeIsRefused) {
  EXPECT_THROW(StepMemoryReader(std::chrono::nanoseconds(0)), Error);
}

}  // namespace
}  // namespace headrace
