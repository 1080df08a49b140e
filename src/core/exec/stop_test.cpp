#include "core/exec/stop.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace headrace {
namespace {

// Signals change the process: each test runs in a child of its own and judges by its exit code.
class StopDeathTest : public testing::Test {
 protected:
  StopDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(StopDeathTest, FirstSignalAsksAndTheProcessGoesOn) {
  const auto ask = [](int signal) {
    install_stop_signals();
    if (stop_signal() != 0) ::_exit(1);
    ::raise(signal);
    ::_exit(stop_exit_code(stop_signal()));
  };
  EXPECT_EXIT(ask(SIGINT), testing::ExitedWithCode(130), "");
  EXPECT_EXIT(ask(SIGTERM), testing::ExitedWithCode(143), "");
}

TEST_F(StopDeathTest, SecondInterruptEndsAtOnce) {
  const auto ask_twice = [](int first, int second) {
    install_stop_signals();
    ::raise(first);
    ::raise(second);
    ::_exit(7);
  };
  EXPECT_EXIT(ask_twice(SIGINT, SIGINT), testing::ExitedWithCode(130), "");
  EXPECT_EXIT(ask_twice(SIGTERM, SIGINT), testing::ExitedWithCode(130), "");
  EXPECT_EXIT(ask_twice(SIGTERM, SIGTERM), testing::ExitedWithCode(7), "");
}

TEST_F(StopDeathTest, ClosedPipeIsAnErrorOfWrite) {
  const auto write_to_closed = [] {
    install_stop_signals();
    int ends[2];
    if (::pipe(ends) != 0) ::_exit(1);
    ::close(ends[0]);
    ::_exit(::write(ends[1], "x", 1) == -1 && errno == EPIPE ? 0 : 1);
  };
  EXPECT_EXIT(write_to_closed(), testing::ExitedWithCode(0), "");
}

TEST(Stop, RequestIsSeenAndCleared) {
  EXPECT_EQ(stop_signal(), 0);
  request_stop(SIGTERM);
  EXPECT_EQ(stop_signal(), SIGTERM);
  request_stop(0);
  EXPECT_EQ(stop_signal(), 0);
}

}  // namespace
}  // namespace headrace
