#include "core/hardware/run_delay.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/base/temporary_folder.h"

namespace headrace {
namespace {

TEST(RunDelay, TheSecondNumberIsRead) {
  EXPECT_EQ(parse_run_delay("123456 789 42\n"), 789);
  EXPECT_EQ(parse_run_delay("0 0 0"), 0);
}

TEST(RunDelay, AnotherTextIsUnavailableAndNotZero) {
  for (const char* text : {"", "1 2", "1 2 3 4", "a b c", "-1 2 3", "1 -2 3", "99999999999999999999 1 2", "1,2,3"}) {
    EXPECT_EQ(parse_run_delay(text), std::nullopt) << text;
  }
}

TEST(RunDelay, AFileThatIsNotThereIsUnavailable) {
  const TemporaryFolder folder;
  EXPECT_EQ(RunDelay{folder.path().string()}.ns(), std::nullopt);
}

TEST(RunDelay, OfAFakeTreeIsReadAnewEachTime) {
  const TemporaryFolder folder;
  const std::filesystem::path place = folder.path() / "proc" / "thread-self";
  std::filesystem::create_directories(place);
  std::ofstream(place / "schedstat") << "10 20 30\n";
  const RunDelay delay{folder.path().string()};
  EXPECT_EQ(delay.ns(), 20);
  std::ofstream(place / "schedstat") << "10 25 30\n";
  EXPECT_EQ(delay.ns(), 25);
}

TEST(RunDelay, GrowsWhileTwoThreadsShareACore) {
  if (!RunDelay{}.ns()) return;  // This kernel does not count; what follows from that is tested above.
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  int core = 0;
  while (!CPU_ISSET(core, &before)) ++core;
  std::int64_t grown = 0;
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (::sched_setaffinity(0, sizeof one, &one) != 0) return;  // Threads that it starts inherit it.
    const RunDelay delay;
    const std::int64_t at_first = delay.ns().value_or(0);
    std::atomic<bool> stop{false};
    std::thread rival([&stop] {
      while (!stop.load(std::memory_order_relaxed)) {
      }
    });
    const std::int64_t begin_ns = monotonic_ns();
    while (monotonic_ns() - begin_ns < 100'000'000) {
    }
    grown = delay.ns().value_or(0) - at_first;
    stop = true;
    rival.join();
  }).join();
  EXPECT_GT(grown, 0);
}

}  // namespace
}  // namespace headrace
