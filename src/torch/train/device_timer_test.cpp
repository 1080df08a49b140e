// The timer over a device that is made up: its clock is a number, and it passes what it is told to have passed.
#include "torch/train/device_timer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/trace.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/fail.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct MadeUpClock {
  double now = 0;         // Where the device is when it comes to what is queued next.
  std::int64_t made = 0;  // Moments.
  std::int64_t passed = 0;
  bool is_captured = false;
};

class MadeUpMoment final : public DeviceMoment {
 public:
  explicit MadeUpMoment(MadeUpClock& clock) : clock_(clock), number_(++clock.made), at_(clock.now) {}
  bool is_passed() const override { return number_ <= clock_.passed; }
  void wait() const override { HEADRACE_CHECK(false, "the timer waits"); }
  double seconds_since(const DeviceMoment& earlier) const override {
    const auto& before = static_cast<const MadeUpMoment&>(earlier);
    HEADRACE_CHECK(is_passed() && before.is_passed(), "asked before it is passed");
    return at_ - before.at_;
  }

 private:
  const MadeUpClock& clock_;
  const std::int64_t number_;
  const double at_;
};

class MadeUpDevice final : public Accelerator {
 public:
  MadeUpClock clock;

  bool captures() const override { return false; }
  void run_aside(const std::function<void()>& work) override { work(); }
  std::unique_ptr<CapturedWork> capture(const std::function<void()>& /*work*/) override { return nullptr; }
  std::unique_ptr<BatchTransfer> batch_transfer() override { return nullptr; }
  std::unique_ptr<HostCopy> copy_to_host(const at::Tensor& /*values*/) override { return nullptr; }
  void copy_elements(const at::Tensor& /*from*/, const at::Tensor& /*to*/, std::int64_t /*place*/) override {}
  std::unique_ptr<DeviceMoment> moment() override {
    return clock.is_captured ? nullptr : std::make_unique<MadeUpMoment>(clock);
  }
  std::optional<DeviceMemory> memory() const override { return std::nullopt; }
  void reset_peak_memory() override {}
  void release_cache() override {}
  std::string memory_snapshot() const override { return {}; }

  void work(DeviceTimer& timer, DevicePhase phase, double seconds) {
    clock.now += seconds;
    timer.end(phase);
  }
  void step(DeviceTimer& timer) {
    timer.begin();
    work(timer, DevicePhase::transfer, 0.125);
    work(timer, DevicePhase::forward, 0.5);
    work(timer, DevicePhase::backward, 1.0);
    work(timer, DevicePhase::optimizer, 0.25);
  }
};

TEST(DeviceTimer, EachPhaseHasTheTimeBetweenItsEvents) {
  MadeUpDevice device;
  DeviceTimer timer(&device, "cuda:0");
  timer.set_wanted(true);
  device.step(timer);
  device.clock.now += 0.0625;  // Between two steps it waits.
  device.step(timer);
  device.clock.passed = device.clock.made;
  const DeviceTimes times = timer.read();
  EXPECT_EQ(times.of(DevicePhase::transfer).seconds, 0.25);
  EXPECT_EQ(times.of(DevicePhase::forward).seconds, 1.0);
  EXPECT_EQ(times.of(DevicePhase::backward).seconds, 2.0);
  EXPECT_EQ(times.of(DevicePhase::optimizer).seconds, 0.5);
  EXPECT_EQ(times.of(DevicePhase::backward).count, 2);
  EXPECT_EQ(times.of(DevicePhase::replay).count, 0);
  EXPECT_EQ(times.seconds, 2 * 1.875 + 0.0625);
  EXPECT_EQ(times.busy_share(), 3.75 / 3.8125);
  EXPECT_EQ(times.waiting, 0);
}

TEST(DeviceTimer, WhatTheDeviceHasNotPassedWaitsAndNothingAsksForIt) {
  MadeUpDevice device;
  DeviceTimer timer(&device, "cuda:0");
  timer.set_wanted(true);
  device.step(timer);
  device.clock.passed = 3;  // Begin, transfer, forward.
  EXPECT_EQ(timer.read().of(DevicePhase::forward).seconds, 0.5);
  EXPECT_EQ(timer.read().of(DevicePhase::backward).count, 0);
  EXPECT_EQ(timer.read().waiting, 2);
  device.clock.passed = device.clock.made;
  EXPECT_EQ(timer.read().of(DevicePhase::backward).seconds, 1.0);
  EXPECT_EQ(timer.read().waiting, 0);
}

TEST(DeviceTimer, OffItMakesNoEventAndWithoutADeviceNeither) {
  MadeUpDevice device;
  DeviceTimer timer(&device, "cuda:0"), none(nullptr, "cpu");
  none.set_wanted(true);
  device.step(timer);
  device.step(none);
  EXPECT_EQ(device.clock.made, 0);
  EXPECT_TRUE(timer.can_time());
  EXPECT_FALSE(none.can_time());
  EXPECT_FALSE(none.read().busy_share().has_value()) << "unavailable, not 0";
}

TEST(DeviceTimer, StartsAnewWhenItIsSwitchedOnAgain) {
  MadeUpDevice device;
  DeviceTimer timer(&device, "cuda:0");
  timer.set_wanted(true);
  device.step(timer);
  timer.set_wanted(false);
  device.step(timer);  // Of this one nothing is known.
  timer.set_wanted(true);
  device.step(timer);
  device.clock.passed = device.clock.made;
  EXPECT_EQ(timer.read().of(DevicePhase::forward).count, 1);
  EXPECT_EQ(timer.read().seconds, 1.875);
  EXPECT_EQ(timer.read().busy_share(), 1.0);
}

TEST(DeviceTimer, WhileAStreamIsCapturedNothingIsTimed) {
  MadeUpDevice device;
  DeviceTimer timer(&device, "cuda:0");
  timer.set_wanted(true);
  device.clock.is_captured = true;
  device.step(timer);
  device.clock.is_captured = false;
  device.step(timer);
  device.clock.passed = device.clock.made;
  EXPECT_EQ(timer.read().of(DevicePhase::optimizer).count, 1);
}

TEST(DeviceTimer, APhaseTooManyIsCountedAsDropped) {
  MadeUpDevice device;
  DeviceTimer timer(&device, "cuda:0");
  timer.set_wanted(true);
  for (int step = 0; step < 1025; ++step) device.step(timer);  // Of four phases each.
  EXPECT_EQ(timer.read().waiting, 4096);
  EXPECT_EQ(timer.read().dropped, 4);
  device.clock.passed = device.clock.made;
  EXPECT_EQ(timer.read().of(DevicePhase::forward).count, 1024);
  device.step(timer);
  device.clock.passed = device.clock.made;
  EXPECT_EQ(timer.read().busy_share(), 1.0) << "what was not timed is no gap";
}

TEST(DeviceTimer, ATraceGetsThePhasesInOrderOnATrackOfTheDevice) {
  MadeUpDevice device;
  DeviceTimer timer(&device, "cuda:1");
  const auto short_step = [&] {  // Spans must end before the record does to have their length.
    timer.begin();
    device.work(timer, DevicePhase::transfer, 1e-7);
    device.work(timer, DevicePhase::replay, 3e-7);
  };
  Trace trace;
  short_step();
  short_step();
  device.clock.passed = device.clock.made;
  timer.begin();  // As the next step does.
  const TraceRecord record = trace.stop();
  std::vector<std::string> names;
  std::int64_t end_ns = 0;
  for (const TraceEvent& event : record.events) {
    ASSERT_EQ(record.threads[event.thread], "cuda:1");
    EXPECT_EQ(record.names[event.name].category, "device");
    names.push_back(record.names[event.name].text);
    EXPECT_GE(event.begin_ns, end_ns) << "they never overlap";
    EXPECT_GT(event.end_ns, event.begin_ns);
    end_ns = event.end_ns;
  }
  EXPECT_THAT(names, ElementsAre("device_transfer", "device_replay", "device_transfer", "device_replay"));
  EXPECT_LE(end_ns, record.duration_ns);
  EXPECT_EQ(timer.read().of(DevicePhase::replay).count, 2);
  timer.begin();  // No trace, not wanted.
  EXPECT_EQ(timer.read().waiting, 0);
}

TEST(DeviceTimer, WithoutATraceThereIsNoSpan) {
  MadeUpDevice device;
  DeviceTimer timer(&device, "cuda:0");
  timer.set_wanted(true);
  device.step(timer);
  device.clock.passed = device.clock.made;
  timer.read();
  Trace trace;
  EXPECT_THAT(trace.stop().events, IsEmpty());
}

}  // namespace
}  // namespace headrace
