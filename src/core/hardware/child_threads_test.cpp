#include "core/hardware/child_threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "core/base/error_of.h"

namespace headrace {
namespace {

using testing::HasSubstr;

// As a child finds them.
std::string seen_by_child() {
  const std::string command = "echo ${OMP_NUM_THREADS-unset} ${MKL_NUM_THREADS-unset} ${OPENBLAS_NUM_THREADS-unset}";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return "no child";
  std::string text;
  for (int c = std::fgetc(pipe); c != EOF && c != '\n'; c = std::fgetc(pipe)) text += static_cast<char>(c);
  ::pclose(pipe);
  return text;
}

// Puts the variables back that the test program was started with.
class ChildThreads : public testing::Test {
 protected:
  ChildThreads() {
    for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}) {
      if (const char* found = std::getenv(name)) before_[name] = found;
      ::unsetenv(name);
    }
  }
  ~ChildThreads() override {
    for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}) ::unsetenv(name);
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  std::map<std::string, std::string> before_;
};

TEST_F(ChildThreads, AreSeenByChildrenUntilTheyAreUndone) {
  HardwareChange change = set_child_threads(3);
  EXPECT_EQ(seen_by_child(), "3 3 3");
  EXPECT_EQ(change.setting().how, SettingHow::for_children);
  EXPECT_STREQ(to_string(change.setting().how), "for child processes");
  EXPECT_EQ(change.setting().before, "unset");
  EXPECT_EQ(change.setting().now, "3");
  EXPECT_EQ(change.undo().now, "unset");
  EXPECT_EQ(seen_by_child(), "unset unset unset");
}

TEST_F(ChildThreads, OfBeforeComeBackEachForItself) {
  ::setenv("MKL_NUM_THREADS", "5", 1);
  HardwareChange change = set_child_threads(1);
  EXPECT_EQ(change.setting().before, "OMP_NUM_THREADS unset, MKL_NUM_THREADS 5, OPENBLAS_NUM_THREADS unset");
  EXPECT_EQ(seen_by_child(), "1 1 1");
  change.undo();
  EXPECT_EQ(seen_by_child(), "unset 5 unset");
}

TEST_F(ChildThreads, OfANumberOutOfRangeAreAnErrorAndChangeNothing) {
  for (const std::int64_t threads : {0, -1, 1025}) {
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { set_child_threads(threads); }),
                HasSubstr("child_threads: wanted 1 to 1024, found"));
  }
  EXPECT_EQ(seen_by_child(), "unset unset unset");
}

}  // namespace
}  // namespace headrace
