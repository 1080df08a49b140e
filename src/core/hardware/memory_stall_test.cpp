#include "core/hardware/memory_stall.h"

#include <gtest/gtest.h>

#include <optional>

#include "core/hardware/fake_root.h"

namespace headrace {
namespace {

using MemoryStall = FakeRoot;

TEST_F(MemoryStall, IsTheTimeInWhichSomeTaskOfTheMachineWaited) {
  EXPECT_EQ(memory_stall_s(root_), std::nullopt);  // Unavailable, and not 0.
  put("/proc/pressure/memory",
      "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1000\n");
  EXPECT_DOUBLE_EQ(memory_stall_s(root_).value(), 2.5);
  put("/proc/pressure/memory", "no such file\n");
  EXPECT_EQ(memory_stall_s(root_), std::nullopt);
}

}  // namespace
}  // namespace headrace
