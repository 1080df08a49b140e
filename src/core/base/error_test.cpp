
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>

#include "core/base/build_info.h"
#include "core/base/clock.h"
#include "core/base/fail.h"

namespace headrace {
namespace {

TEST(Error, CarriesItsCodeAndFormattedMessage) {
  try {
    fail(ErrorCode::corrupt_data, "base: {}: {} labels, {} images", "labels.gz", 3, 4);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
    EXPECT_STREQ(error.what(), "base: labels.gz: 3 labels, 4 images");
    return;
  }
  FAIL() << "fail() returned";
}

TEST(Error, EveryCodeHasANameOfItsOwn) {
  std::set<std::string> names;
  for (int code = 0; code <= static_cast<int>(ErrorCode::internal); ++code) {
    names.insert(to_string(static_cast<ErrorCode>(code)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(ErrorCode::internal) + 1);
  EXPECT_TRUE(names.count("corrupt_data"));
}

TEST(ErrorDeathTest, FailedCheckNamesTheExpressionAndAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const int size = 3;
  EXPECT_EXIT(HEADRACE_CHECK(size == 4, "size is {}", size), testing::KilledBySignal(SIGABRT),
              "error_test.cpp.*size == 4.*size is 3");
}

TEST(Clock, MonotonicTimeNeverStepsBack) {
  std::int64_t last = monotonic_ns();
  for (int i = 0; i < 10'000; ++i) {
    const std::int64_t now = monotonic_ns();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(Clock, SecondsSinceAMomentAreThoseThatWentBy) {
  const std::int64_t begin = monotonic_ns() - 2'000'000'000;
  EXPECT_GE(seconds_since(begin), 2.0);
  EXPECT_LT(seconds_since(begin), 3600);  // Seconds, not nanoseconds.
}

TEST(Clock, ProcessTimeCoversOtherThreadsAndThreadTimeDoesNot) {
  const std::int64_t own = thread_cpu_ns(), whole = process_cpu_ns();
  std::int64_t other = 0;
  std::thread busy([&other] {
    while (thread_cpu_ns() < 20'000'000) {
    }
    other = thread_cpu_ns();
  });
  busy.join();
  EXPECT_GE(process_cpu_ns() - whole, other);
  EXPECT_LT(thread_cpu_ns() - own, process_cpu_ns() - whole);
}

TEST(Clock, StampsAreUtcAndSortByTime) {
  EXPECT_THAT(utc_stamp(), testing::MatchesRegex("[0-9]{8}T[0-9]{6}Z"));
  EXPECT_THAT(utc_text(), testing::MatchesRegex("[0-9]{4}-[0-9][0-9]-[0-9][0-9] [0-9][0-9]:[0-9][0-9]:[0-9][0-9] UTC"));
}

TEST(BuildInfo, NamesVersionCommitCompilerAndPreset) {
  const BuildInfo& info = build_info();
  EXPECT_THAT(info.version, testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_THAT(info.commit, testing::MatchesRegex("unavailable|[0-9a-f]{7,}(-dirty)?"));
  EXPECT_THAT(info.compiler, testing::MatchesRegex("(g|clang)\\+\\+ [0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_NE(std::string(info.preset), "");
}

}  // namespace
}  // namespace headrace
