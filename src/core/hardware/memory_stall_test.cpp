#include "core/hardware/memory_stall.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/base/temporary_folder.h"

namespace headrace {
namespace {

void write(const TemporaryFolder& root, const std::string& place, const std::string& text) {
  const std::filesystem::path path = root.path() / place;
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

TEST(MemoryStall, IsTheTimeInWhichSomeTaskOfTheMachineWaited) {
  const TemporaryFolder root;
  EXPECT_EQ(memory_stall_s(root.path().string()), std::nullopt);  // Unavailable, and not 0.
  write(root, "proc/pressure/memory",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1000\n");
  EXPECT_DOUBLE_EQ(memory_stall_s(root.path().string()).value(), 2.5);
  write(root, "proc/pressure/memory", "no such file\n");
  EXPECT_EQ(memory_stall_s(root.path().string()), std::nullopt);
}

}  // namespace
}  // namespace headrace
