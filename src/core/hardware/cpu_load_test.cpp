#include "core/hardware/cpu_load.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fmt/format.h>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/base/temporary_folder.h"
#include "core/hardware/fake_root.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPressure =
    "some avg10=12.50 avg60=15.19 avg300=8.69 total=49374011\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";

TEST(CpuPressure, IsReadFromTheLineSome) {
  const auto pressure = parse_cpu_pressure(kPressure);
  ASSERT_TRUE(pressure);
  EXPECT_DOUBLE_EQ(pressure->avg10, 0.125);
  EXPECT_EQ(pressure->total_us, 49374011);
  EXPECT_TRUE(parse_cpu_pressure("some avg10=0.00 avg60=0.00 avg300=0.00 total=0"));
}

TEST(CpuPressure, TextThatIsNoPressureFileIsUnavailableAndNotZero) {
  for (const char* text :
       {"", "\n", "some", "full avg10=1.00 avg60=0.00 avg300=0.00 total=7\n",
        "some avg10= avg60=0.00 avg300=0.00 total=7\n", "some avg10=1.00 avg60=0.00 avg300=0.00\n",
        "some avg10=-1.00 avg60=0.00 avg300=0.00 total=7\n", "some avg10=101.0 avg60=0.00 avg300=0.00 total=7\n",
        "some avg10=nan avg60=0.00 avg300=0.00 total=7\n", "some avg10=1.00x avg60=0.00 avg300=0.00 total=7\n",
        "some avg10=1.00 avg60=0.00 avg300=0.00 total=-7\n",
        "some avg10=1.00 avg60=0.00 avg300=0.00 total=99999999999999999999\n", "\x7f\x45\x4c\x46\x02 some",
        "some avg60=1.00 avg10=0.00 avg300=0.00 total=7\n"}) {
    EXPECT_FALSE(parse_cpu_pressure(text)) << text;
  }
}

TEST(CpuTimes, AreSummedFromTheFirstLine) {
  const auto times = parse_cpu_times("cpu  100 20 30 400 50 6 7 8 99 9\ncpu0 1 1 1 1 1 1 1 1 1 1\n");
  ASSERT_TRUE(times);
  EXPECT_EQ(times->busy, 163);  // Guests are in user and nice.
  EXPECT_EQ(times->idle, 450);
  EXPECT_EQ(times->steal, 8);
  for (const char* text :
       {"", "cpu", "cpu0 1 1 1 1 1 1 1 1", "cpu 1 2 3 4 5 6 7", "cpu 1 2 3 4 5 6 7 x", "cpu 1 2 3 4 5 6 7 -8"}) {
    EXPECT_FALSE(parse_cpu_times(text)) << text;
  }
}

TEST(ProcessTimes, NamesMayHoldBlanksAndBrackets) {
  const auto process = parse_process_times("42 (a) b (c)) S 7 42 42 0 -1 4194304 1 0 0 0 10 20 3 4 20 0 1 0 5\n");
  ASSERT_TRUE(process);
  EXPECT_EQ(process->pid, 42);
  EXPECT_EQ(process->parent, 7);
  EXPECT_EQ(process->ticks, 37);
  for (const char* text :
       {"", "42 (a", "(a) S 7", "x (a) S 7 42 42 0 -1 4194304 1 0 0 0 10 20 3 4 20",
        "42 (a) S 7 42 42 0 -1 4194304 1 0 0 0 10 20 3", "42 (a) S y 42 42 0 -1 4 1 0 0 0 10 20 3 4"}) {
    EXPECT_FALSE(parse_process_times(text)) << text;
  }
}

// A tree in which this process has a child, a grandchild and a stranger beside it.
class FakeLoad : public FakeRoot {
 protected:
  void put_process(int pid, int parent, int ticks) {
    put(fmt::format("/proc/{}/stat", pid),
        fmt::format("{} (x) S {} 1 1 0 -1 0 0 0 0 0 {} 0 0 0 20 0 1 0 5\n", pid, parent, ticks));
  }
  void put_times(int busy, int idle, int steal) {
    put("/proc/stat", fmt::format("cpu  {} 0 0 {} 0 0 0 {} 0 0\n", busy, idle, steal));
  }

  const int self_ = getpid();
  const int child_ = self_ + 1, grandchild_ = self_ + 2, stranger_ = self_ + 3;
};

TEST_F(FakeLoad, WhatDescendantsDoIsOwnAndWhatIsLeftIsOthers) {
  put_times(1000, 1000, 0);
  put_process(self_, 1, 100);
  put_process(child_, self_, 50);
  put_process(grandchild_, child_, 30);
  put_process(stranger_, 1, 500);
  put("/proc/pressure/cpu", kPressure);
  CpuLoad before = read_cpu_load(root_);
  EXPECT_EQ(before.own_ticks, 180);
  put_times(1090, 1005, 5);
  put_process(self_, 1, 120);
  put_process(grandchild_, child_, 60);
  put("/proc/pressure/cpu", "some avg10=40.00 avg60=0.00 avg300=0.00 total=49874011\n");
  CpuLoad after = read_cpu_load(root_);
  after.at_s = before.at_s + 1;
  const CpuUse use = cpu_use_between(before, after);
  EXPECT_DOUBLE_EQ(use.own.value(), 0.5);
  EXPECT_DOUBLE_EQ(use.others.value(), 0.4);
  EXPECT_DOUBLE_EQ(use.idle.value(), 0.05);
  EXPECT_DOUBLE_EQ(use.steal.value(), 0.05);
  EXPECT_DOUBLE_EQ(use.pressure.value(), 0.5);
  EXPECT_DOUBLE_EQ(use.pressure_avg10.value(), 0.4);
  EXPECT_FALSE(use.group_pressure);
}

TEST_F(FakeLoad, WhatTheSystemDoesNotShowIsUnavailable) {
  const CpuLoad none = read_cpu_load(root_);
  EXPECT_FALSE(none.times || none.own_ticks || none.machine || none.group);
  put("/proc/stat", "garbage");
  put("/proc/pressure/cpu", "");
  const CpuUse use = cpu_use_between(none, read_cpu_load(root_));
  EXPECT_FALSE(use.own || use.others || use.idle || use.steal || use.pressure || use.pressure_avg10);
}

TEST_F(FakeLoad, TheControlGroupsPressureIsThatOfThisProcess) {
  put("/proc/self/cgroup", "0::/user.slice/job\n");
  put("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
  put("/sys/fs/cgroup/user.slice/job/cpu.pressure", kPressure);
  const CpuLoad load = read_cpu_load(root_);
  ASSERT_TRUE(load.group);
  EXPECT_EQ(load.group->total_us, 49374011);
  EXPECT_FALSE(load.machine);
}

// As a file of /proc does whose process ends between opening and reading.
TEST(CpuLoad, AFileThatOpensAndCannotBeReadIsUnavailable) {
  const TemporaryFolder root;
  fs::create_directories(root.path() / "proc" / "stat");
  fs::create_directories(root.path() / "proc" / "123" / "stat");
  const CpuLoad load = read_cpu_load(root.path().native());
  EXPECT_FALSE(load.times);
  EXPECT_FALSE(load.own_ticks);
}

TEST(CpuLoad, ThisMachineCanBeRead) {
  const CpuLoad load = read_cpu_load();
  ASSERT_TRUE(load.times);
  ASSERT_TRUE(load.own_ticks);
  EXPECT_LE(*load.own_ticks, load.times->busy + load.times->idle);
}

}  // namespace
}  // namespace headrace
