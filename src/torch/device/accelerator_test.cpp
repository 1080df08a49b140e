#include "torch/device/accelerator.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error_of.h"

namespace headrace {
namespace {

using testing::HasSubstr;

Accelerator& cpu() {
  std::string reason;
  Accelerator* const found = accelerator_of(at::kCPU, reason);
  if (found == nullptr) throw std::runtime_error(reason);
  return *found;
}

class CpuCaptures : public testing::Test {
 protected:
  void SetUp() override { let_cpu_capture(true); }
  void TearDown() override { let_cpu_capture(false); }
};

TEST(Accelerator, OfADeviceIsTheSameEachTime) {
  EXPECT_EQ(&cpu(), &cpu());
}

TEST(Accelerator, OfTheCpuRunsAtOnceAndHasNothingToTellOfMemory) {
  int runs = 0;
  cpu().run_aside([&runs] { ++runs; });
  EXPECT_EQ(runs, 1);
  EXPECT_THROW(cpu().run_aside([] { throw std::runtime_error("out"); }), std::runtime_error);
}

TEST(Accelerator, OfTheCpuCapturesNothing) {
  EXPECT_FALSE(cpu().captures());
  int runs = 0;
  EXPECT_THAT(error_of(ErrorCode::unsupported, [&runs] { cpu().capture([&runs] { ++runs; }); }),
              HasSubstr("device: a CPU captures nothing"));
  EXPECT_EQ(runs, 0);
}

TEST_F(CpuCaptures, RunAtEachReplay) {
  EXPECT_TRUE(cpu().captures());
  const at::Tensor sum = at::zeros({2}), step = at::full({2}, 1.5);
  const auto captured = cpu().capture([&] { sum.add_(step); });
  captured->replay();
  EXPECT_TRUE(sum.equal(at::full({2}, 1.5))) << "the first replay is what the capture ran";
  step.fill_(2);
  captured->replay();
  EXPECT_TRUE(sum.equal(at::full({2}, 3.5)));
  EXPECT_EQ(captured->pool_bytes(), 0);
}

TEST_F(CpuCaptures, WhatTheWorkThrowsGoesOn) {
  EXPECT_THROW(cpu().capture([] { throw std::runtime_error("out"); }), std::runtime_error);
}

TEST(Accelerator, OfTheCpuCopiesBatchesOfAnyStridesAndType) {
  const auto transfer = cpu().batch_transfer();
  const at::Tensor images = at::arange(24, at::kFloat).view({1, 2, 3, 4});
  const at::Tensor to = at::zeros({1, 2, 3, 4}), labels = at::zeros({3}, at::kLong);
  for (int batch = 0; batch < 3; ++batch) {
    const at::Tensor from = images.add(batch).contiguous(at::MemoryFormat::ChannelsLast);
    transfer->copy({from, at::full({3}, batch, at::kInt)}, {to, labels});
    EXPECT_TRUE(to.equal(images.add(batch)));
    EXPECT_TRUE(labels.eq(batch).all().item<bool>());
  }
}

TEST(Accelerator, OfTheCpuHasValuesAtOnceAsTheyWere) {
  const at::Tensor values = at::full({3}, 7.0).requires_grad_();
  const auto copy = cpu().copy_to_host(values);
  values.detach().fill_(8);
  EXPECT_TRUE(copy->values().equal(at::full({3}, 7.0)));
  EXPECT_FALSE(copy->values().requires_grad());
}

TEST(Accelerator, OfTheCpuHasPassedAMomentWhenItIsMade) {
  const auto first = cpu().moment();
  EXPECT_TRUE(first->is_passed());
  first->wait();
  const auto second = cpu().moment();
  EXPECT_GE(second->seconds_since(*first), 0.0);
  EXPECT_EQ(first->seconds_since(*first), 0.0);
}

TEST(Accelerator, OfTheCpuHasNoCachingAllocatorToTellOf) {
  EXPECT_FALSE(cpu().memory().has_value()) << "unavailable, not 0";
  cpu().reset_peak_memory();
  EXPECT_THAT(error_of(ErrorCode::unsupported, [] { cpu().memory_snapshot(); }), HasSubstr("wanted a CUDA device"));
}

TEST(DeviceTimes, BelowNineTenthsAtWorkThereIsAdviceAndOfTooLittleNone) {
  const auto times_of = [](double busy_s, double all_s, std::int64_t count) {
    DeviceTimes times;
    times.phases[0] = {busy_s / 4, count};
    times.phases[4] = {busy_s * 3 / 4, count};
    times.seconds = all_s;
    return times;
  };
  EXPECT_THAT(times_of(6, 10, 15).advice(), HasSubstr("at work in 60 % of the time"));
  EXPECT_THAT(times_of(6, 10, 15).advice(), HasSubstr("data.num_workers"));
  EXPECT_EQ(times_of(6, 10, 14).advice(), "") << "28 phases";
  EXPECT_EQ(times_of(9, 10, 100).advice(), "");
  EXPECT_NE(times_of(8.99, 10, 100).advice(), "");
  EXPECT_EQ(DeviceTimes{}.advice(), "");
  EXPECT_EQ(times_of(9, 10, 100).busy_share(), 0.9);
}

TEST(Accelerator, OfAnotherKindOfDeviceThereIsNone) {
  std::string reason;
  EXPECT_EQ(accelerator_of(at::kMeta, reason), nullptr);
  EXPECT_EQ(reason, "the engine has CUDA and the CPU, found meta");
}

// The plugin does not lie beside this program; where it does, there may be a device or none.
TEST(Accelerator, OfCudaIsThereOrSaysWhyNotFromAnyThread) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([] {
      std::string reason;
      const Accelerator* const found = accelerator_of(at::Device(at::kCUDA, 0), reason);
      EXPECT_EQ(found == nullptr, !reason.empty()) << reason;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace headrace
