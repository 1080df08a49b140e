#include "core/hardware/memory_use.h"

#include <gtest/gtest.h>

#include "core/hardware/fake_root.h"

namespace headrace {
namespace {

using MemoryUseTest = FakeRoot;

TEST_F(MemoryUseTest, IsUnavailableWhereNothingTellsIt) {
  EXPECT_FALSE(memory_use(root_).has_value());
  put("/proc/meminfo", "MemTotal: 1000 kB\nMemFree: 10 kB\n");  // A kernel before 3.14.
  EXPECT_FALSE(memory_use(root_).has_value());
  put("/proc/meminfo", "MemTotal: 0 kB\nMemAvailable: 0 kB\n");
  EXPECT_FALSE(memory_use(root_).has_value());
}

TEST_F(MemoryUseTest, OfTheMachineIsWhatIsNotAvailable) {
  put("/proc/meminfo", "MemTotal:       1000 kB\nMemFree:        100 kB\nMemAvailable:    250 kB\n");
  const auto use = memory_use(root_);
  ASSERT_TRUE(use.has_value());
  EXPECT_DOUBLE_EQ(use->share, 0.75);
  EXPECT_EQ(use->of, "machine");
}

TEST_F(MemoryUseTest, IsThatOfTheFullerOfMachineAndGroup) {
  put("/proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 250 kB\n");
  put("/proc/self/cgroup", "0::/job\n");
  put("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
  put("/sys/fs/cgroup/job/memory.max", "100000\n");
  put("/sys/fs/cgroup/job/memory.current", "95000\n");
  put("/sys/fs/cgroup/job/memory.stat", "inactive_file 5000\n");
  EXPECT_DOUBLE_EQ(memory_use(root_)->share, 0.9);
  EXPECT_EQ(memory_use(root_)->of, "cgroup v2 /sys/fs/cgroup/job");
  put("/sys/fs/cgroup/job/memory.current", "50000\n");
  EXPECT_EQ(memory_use(root_)->of, "machine");
  put("/sys/fs/cgroup/job/memory.current", "900000\n");  // A limit that was lowered below what is held.
  EXPECT_DOUBLE_EQ(memory_use(root_)->share, 1.0);
}

}  // namespace
}  // namespace headrace
