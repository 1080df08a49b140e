#include "insight/measure/part_use_counter.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "core/base/clock.h"

namespace headrace {
namespace {

using Part = PartUseCounter::Part;

constexpr std::size_t kPages = 64;

void touch_new_pages() {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const memory = ::mmap(nullptr, kPages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ::madvise(memory, kPages * page, MADV_NOHUGEPAGE);
  for (std::size_t i = 0; i < kPages; ++i) static_cast<volatile char*>(memory)[i * page] = 1;
  ::munmap(memory, kPages * page);
}

void compute(std::int64_t ns) {
  const std::int64_t begin_ns = thread_cpu_ns();
  while (thread_cpu_ns() - begin_ns < ns) {
  }
}

TEST(PartUseCounter, EachPartHasWhatHappenedInIt) {
  PartUseCounter counter;
  for (int step = 0; step < 2; ++step) {
    counter.begin(Part::data_wait);
    ::usleep(2000);
    counter.begin(Part::forward);
    compute(2'000'000);
    counter.begin(Part::other);
    touch_new_pages();
    counter.end_step(true);
  }
  const auto uses = counter.uses(2);
  ASSERT_TRUE(uses);
  EXPECT_GE(uses->data_wait.wall_s, 0.004);
  EXPECT_GE(uses->forward.cpu_s, 0.004);
  EXPECT_GE(uses->other.minor_faults, static_cast<std::int64_t>(2 * kPages));
  EXPECT_LT(uses->data_wait.cpu_s, uses->data_wait.wall_s);
  EXPECT_EQ(uses->backward.wall_s, 0);
  EXPECT_LE(uses->data_wait.blocked_s() + uses->data_wait.cpu_s, uses->data_wait.wall_s + 1e-9);
}

TEST(PartUseCounter, WhatIsNoStepOfTrainingAndWhatStandsBetweenDoesNotCount) {
  PartUseCounter counter;
  counter.begin(Part::forward);
  counter.end_step(false);
  EXPECT_FALSE(counter.uses(1));
  counter.pause();
  compute(1'000'000);
  counter.begin(Part::optimizer);
  compute(1'000'000);
  counter.pause();
  compute(20'000'000);
  counter.begin(Part::other);
  compute(1'000'000);
  counter.end_last_step(true);  // The open part is the script's.
  const auto uses = counter.uses(1);
  ASSERT_TRUE(uses);
  EXPECT_GE(uses->optimizer.cpu_s, 0.001);
  EXPECT_LT(uses->optimizer.cpu_s, 0.020);
  EXPECT_EQ(uses->other.wall_s, 0);
}

TEST(PartUseCounter, FiguresOfSomeStepsStandForAll) {
  PartUseCounter counter;
  counter.begin(Part::forward);
  compute(1'000'000);
  counter.end_step(true);
  const auto one = counter.uses(1), ten = counter.uses(10);
  ASSERT_TRUE(one && ten);
  EXPECT_DOUBLE_EQ(ten->forward.cpu_s, 10 * one->forward.cpu_s);
}

TEST(PartUseCounter, OfManyShortStepsOnlySomeAreCounted) {
  PartUseCounter counter;
  constexpr std::int64_t kSteps = 10'000;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    counter.begin(Part::forward);
    counter.end_step(true);
  }
  EXPECT_GE(counter.counted(), PartUseCounter::kFirst);
  EXPECT_LT(counter.counted(), kSteps / 2);
}

}  // namespace
}  // namespace headrace
