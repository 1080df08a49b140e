#include "core/base/fault_point.h"

#include <headrace/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "core/base/files.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

// Each body runs in a fresh process of its own, which finds HEADRACE_FAULT in its environment from the start.
class FaultPoint : public testing::Test {
 protected:
  FaultPoint() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    // The fresh process comes through here too and must find the same folder.
    const char* given = std::getenv("FAULT_POINT_TEST_FOLDER");
    std::string name = fs::temp_directory_path() / "headrace-fault-XXXXXX";
    folder_ = given != nullptr ? fs::path(given) : fs::path(::mkdtemp(name.data()));
    owner_ = given == nullptr;
    ::setenv("FAULT_POINT_TEST_FOLDER", folder_.c_str(), 1);
  }
  ~FaultPoint() override {
    ::unsetenv("HEADRACE_FAULT");
    ::unsetenv("FAULT_POINT_TEST_FOLDER");
    if (owner_) fs::remove_all(folder_);
  }

  std::int64_t leftovers() const { return remove_leftovers(folder_); }

  fs::path folder_;
  bool owner_;
};

// "one", then "two" in three pieces.
[[noreturn]] void write_twice(const fs::path& path) {
  write_file(path, "one");
  write_file(path, [](const auto& append) {
    for (const char* piece : {"t", "w", "o"}) append(std::as_bytes(std::span{piece, 1}));
  });
  std::_Exit(0);
}

TEST_F(FaultPoint, WithoutAnOrderNothingHappens) {
  EXPECT_EXIT(write_twice(folder_ / "a"), testing::ExitedWithCode(0), "");
  EXPECT_EQ(read_file(folder_ / "a", 10), "two");
}

TEST_F(FaultPoint, KillsAtTheOrderedPassageAndTheFileIsTheOldOneOrTheNewOneAndWhole) {
  const std::pair<const char*, const char*> cases[] = {
      {"write.begin:2", "one"},  {"write.middle:1", "one"}, {"write.middle:2", "one"}, {"write.sync:2", "one"},
      {"write.rename:2", "one"}, {"write.folder:1", "one"}, {"write.folder:2", "two"},
  };
  for (const auto& [order, content] : cases) {
    ::setenv("HEADRACE_FAULT", order, 1);
    EXPECT_EXIT(write_twice(folder_ / "a"), testing::KilledBySignal(SIGKILL), "") << order;
    EXPECT_EQ(read_file(folder_ / "a", 10), content) << order;
    EXPECT_EQ(leftovers(), std::string(order).starts_with("write.folder") ? 0 : 1) << order;
  }
}

TEST_F(FaultPoint, APassageThatIsNotReachedOrAnotherNameDoesNothing) {
  for (const char* order : {"write.sync:3", "other:1"}) {
    ::setenv("HEADRACE_FAULT", order, 1);
    EXPECT_EXIT(write_twice(folder_ / "a"), testing::ExitedWithCode(0), "") << order;
  }
}

void write_and_say(const fs::path& path) {
  try {
    write_file(path, "new");
    std::fputs("written\n", stderr);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  std::_Exit(7);
}

TEST_F(FaultPoint, ThrowsWhereAnErrorIsOrderedAndTheOldFileStays) {
  std::ofstream(folder_ / "a") << "old";
  ::setenv("HEADRACE_FAULT", "write.rename:1:error", 1);
  EXPECT_EXIT(write_and_say(folder_ / "a"), testing::ExitedWithCode(7), "write.rename was ordered to fail");
  EXPECT_EQ(read_file(folder_ / "a", 10), "old");
  EXPECT_EQ(leftovers(), 0);
}

volatile std::sig_atomic_t raised = 0;

[[noreturn]] void write_and_exit_with_the_signal(const fs::path& path) {
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, [](int signal) { raised = signal; });
  write_file(path, "new");
  std::_Exit(raised);
}

TEST_F(FaultPoint, RaisesTheOrderedSignalAndGoesOnWhereItIsHandled) {
  for (const auto& [order, signal] : {std::pair{"write.begin:1:sigint", SIGINT}, {"write.sync:1:sigterm", SIGTERM}}) {
    std::ofstream(folder_ / "a") << "old";
    ::setenv("HEADRACE_FAULT", order, 1);
    EXPECT_EXIT(write_and_exit_with_the_signal(folder_ / "a"), testing::ExitedWithCode(signal), "") << order;
    EXPECT_EQ(read_file(folder_ / "a", 10), "new") << order;
  }
}

TEST_F(FaultPoint, AnOrderThatNobodyUnderstandsIsRefused) {
  for (const char* order :
       {"", "write.sync", "write.sync:", "write.sync:0", "write.sync:1x", ":1", "a:1:fail", "a:1:sigkill"}) {
    ::setenv("HEADRACE_FAULT", order, 1);
    EXPECT_EXIT(write_and_say(folder_ / "a"), testing::ExitedWithCode(7), "HEADRACE_FAULT: wanted NAME:N") << order;
  }
}

}  // namespace
}  // namespace headrace
