#include "core/exec/child_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <poll.h>
#include <sys/wait.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "core/base/error_of.h"

namespace headrace {
namespace {

using namespace std::chrono_literals;

constexpr auto kLong = 60s;  // Reached only by a test that fails.

ChildCommand shell(const std::string& script, std::vector<int> descriptors = {}) {
  return {.arguments = {"sh", "-c", script}, .descriptors = std::move(descriptors), .environment = {}};
}

std::pair<Descriptor, Descriptor> make_pipe() {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  return {Descriptor{ends[0]}, Descriptor{ends[1]}};
}

// Whether the last process that held the writing end is gone before long.
bool ends_soon(const Descriptor& reading_end) {
  pollfd wanted{.fd = reading_end.number(), .events = POLLIN, .revents = 0};
  char byte = 0;
  return ::poll(&wanted, 1, 60'000) == 1 && ::read(reading_end.number(), &byte, 1) == 0;
}

TEST(ChildProcess, TellsHowItEnded) {
  ChildProcess three{shell("exit 3")};
  EXPECT_EQ(three.wait(kLong)->text(), "ended with exit status 3");
  EXPECT_EQ(three.wait(0ms)->code, 3) << "asked again";
  ChildProcess crashed{shell("kill -SEGV $$")};
  EXPECT_EQ(crashed.wait(kLong)->text(), "was killed by SIGSEGV");
  ChildProcess endless{shell("sleep 1000")};
  EXPECT_FALSE(endless.wait(0ms));
  endless.kill();
  EXPECT_EQ(endless.wait(kLong)->text(), "was killed by SIGKILL");
}

TEST(ChildProcess, HasTheDescriptorsItWasGivenAndNoOther) {
  const Descriptor open{::open("/dev/null", O_RDONLY)};  // Would go through exec.
  const int far = ::fcntl(open.number(), F_DUPFD, 99);
  const Descriptor closed_later{far};
  auto [reading_end, writing_end] = make_pipe();
  ChildProcess child{shell("test -e /proc/$$/fd/3 && test ! -e /proc/$$/fd/" + std::to_string(far) +
                               " && test \"$(readlink /proc/$$/fd/0)\" = /dev/null && echo ok >&3",
                           {writing_end.number()})};
  EXPECT_EQ(child.wait(kLong)->code, 0);
  char text[4] = {};
  EXPECT_EQ(::read(reading_end.number(), text, 3), 3);
  EXPECT_STREQ(text, "ok\n");
}

TEST(ChildProcess, GetsOurEnvironmentAndMore) {
  ChildCommand command = shell("test \"$HEADRACE_TEST_WORD\" = water && test -n \"$PATH\"");
  command.environment = {"HEADRACE_TEST_WORD=water"};
  ChildProcess child{command};
  EXPECT_EQ(child.wait(kLong)->code, 0);
}

TEST(ChildProcess, IsNotReachedBySignalsToOurGroup) {
  ChildProcess child{shell("sleep 1000")};
  EXPECT_EQ(::getpgid(child.pid()), child.pid());
}

TEST(ChildProcess, LeavesNothingOfItsGroupBehind) {
  auto [reading_end, writing_end] = make_pipe();
  ChildProcess ended{shell("sleep 1000 & exit 0", {writing_end.number()})};
  { ChildProcess destroyed{shell("sleep 1000 & sleep 1000", {writing_end.number()})}; }
  EXPECT_EQ(ended.wait(kLong)->code, 0);
  { const Descriptor ours{std::move(writing_end)}; }
  EXPECT_TRUE(ends_soon(reading_end));
}

TEST(ChildProcess, DiesWithAParentThatIsKilled) {
  auto [reading_end, writing_end] = make_pipe();
  const pid_t parent = ::fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    // Also what the child started itself, and without its doing anything for it.
    ChildProcess child{shell("sleep 1000 & sleep 1000", {writing_end.number()})};
    ::raise(SIGKILL);
  }
  { const Descriptor ours{std::move(writing_end)}; }
  int status = 0;
  ASSERT_EQ(::waitpid(parent, &status, 0), parent);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_TRUE(ends_soon(reading_end));
}

TEST(ChildProcess, OfAForkedProcessIsLeftAlone) {
  ChildProcess child{shell("sleep 1000")};
  const pid_t forked = ::fork();
  ASSERT_GE(forked, 0);
  if (forked == 0) {
    child.~ChildProcess();
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(forked, nullptr, 0), forked);
  EXPECT_FALSE(child.wait(0ms)) << "its end is ours to order";
}

// Of a stopped process the system tells that it is, before anything is read from it.
char state_of(const ChildProcess& child) {
  std::ifstream file("/proc/" + std::to_string(child.pid()) + "/stat");
  const std::string line{std::istreambuf_iterator<char>(file), {}};
  return line.at(line.rfind(')') + 2);
}

TEST(ChildProcess, DoesNothingWhileItIsPausedAndGoesOnAfterwards) {
  auto [reading_end, writing_end] = make_pipe();
  ChildProcess child{shell("while :; do echo x >&3; done", {writing_end.number()})};
  { const Descriptor ours{std::move(writing_end)}; }
  child.pause();
  while (state_of(child) != 'T') {
  }
  child.resume();
  while (state_of(child) == 'T') {
  }
  child.pause();
  child.kill();
  EXPECT_EQ(child.wait(kLong)->text(), "was killed by SIGKILL") << "a paused one, too";
  child.pause();  // Its number may be another process's by now.
  EXPECT_TRUE(child.wait(0ms));
}

TEST(ChildProcess, WithoutAProgramIsRefused) {
  EXPECT_THROW(ChildProcess{ChildCommand{}}, Error);
  const std::string message = error_of(ErrorCode::not_found, [] {
    ChildProcess{{.arguments = {"/nowhere/program"}, .descriptors = {}, .environment = {}}};
  });
  EXPECT_NE(message.find("/nowhere/program"), std::string::npos);
}

}  // namespace
}  // namespace headrace
