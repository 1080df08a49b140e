#include "core/exec/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "core/base/fail.h"
#include "core/base/files.h"

extern char** environ;

namespace headrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kFirstDescriptor = 3;
// Numbers that no child is given: copies of what it gets lie here, so that putting one in its place hits no other.
constexpr int kOutOfTheWay = 64;

[[noreturn]] void refuse(const std::string& what, int reason) {
  fail(reason == ENOENT ? ErrorCode::not_found : ErrorCode::io, "exec: cannot {}: {}", what, system_message(reason));
}

Descriptor copy_out_of_the_way(int number) {
  Descriptor copy{::fcntl(number, F_DUPFD_CLOEXEC, kOutOfTheWay)};
  if (copy.number() < 0) refuse(fmt::format("copy descriptor {} for a child", number), errno);
  return copy;
}

// A pipe: reading end, writing end.
std::pair<Descriptor, Descriptor> make_lifeline() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) refuse("make a pipe for a child", errno);
  return {Descriptor{ends[0]}, Descriptor{ends[1]}};
}

// The kernel sends SIGKILL to the group when the pipe's last writer closes. The settings belong to the open pipe, which
// the child shares, and outlive our copy of its reading end. PR_SET_PDEATHSIG would do it at the end of the thread that
// started the child, and only if the child asked for it.
void tie(int reading_end, pid_t group) {
  const bool tied = ::fcntl(reading_end, F_SETOWN, -group) == 0 && ::fcntl(reading_end, F_SETSIG, SIGKILL) == 0 &&
                    ::fcntl(reading_end, F_SETFL, O_ASYNC) == 0;
  if (!tied) refuse("tie a child to this process", errno);
}

class SpawnAttributes {
 public:
  SpawnAttributes() {
    ::posix_spawnattr_init(&attributes_);
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    for (const int signal : {SIGINT, SIGTERM, SIGPIPE, SIGHUP, SIGQUIT, SIGCHLD}) sigaddset(&defaults, signal);
    ::posix_spawnattr_setsigmask(&attributes_, &none);
    ::posix_spawnattr_setsigdefault(&attributes_, &defaults);
    ::posix_spawnattr_setpgroup(&attributes_, 0);  // A new group, of the child's own number.
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~SpawnAttributes() { ::posix_spawnattr_destroy(&attributes_); }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;
  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

class SpawnActions {
 public:
  explicit SpawnActions(const std::vector<Descriptor>& descriptors) {
    int refused = ::posix_spawn_file_actions_init(&actions_);
    const auto add = [&refused](int result) { refused = refused == 0 ? result : refused; };
    add(::posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0));
    int place = kFirstDescriptor;
    for (const Descriptor& descriptor : descriptors) {
      add(::posix_spawn_file_actions_adddup2(&actions_, descriptor.number(), place++));
    }
    add(::posix_spawn_file_actions_addclosefrom_np(&actions_, place));
    if (refused != 0) refuse("prepare a child", refused);
  }
  ~SpawnActions() { ::posix_spawn_file_actions_destroy(&actions_); }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (const std::string& text : texts) all.push_back(const_cast<char*>(text.c_str()));  // As execve wants them.
  return all;
}

}  // namespace

std::string ExitStatus::text() const {
  if (signal != 0) {
    const char* name = ::sigabbrev_np(signal);
    return name == nullptr ? fmt::format("was killed by signal {}", signal) : fmt::format("was killed by SIG{}", name);
  }
  if (code < 0) return "ended, how is not known";
  return fmt::format("ended with exit status {}", code);
}

ChildProcess::ChildProcess(const ChildCommand& command) : owner_(::getpid()) {
  if (command.arguments.empty() || command.arguments.front().empty()) {
    fail(ErrorCode::invalid_argument, "exec: a child without a program");
  }
  auto [reading_end, writing_end] = make_lifeline();
  pid_ = start(command, reading_end.number());
  try {
    tie(reading_end.number(), pid_);
    watch_.emplace(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
    if (watch_->number() < 0) refuse("watch a child", errno);
  } catch (...) {
    kill();
    ::waitpid(pid_, nullptr, 0);
    throw;
  }
  lifeline_.emplace(std::move(writing_end));
}

pid_t ChildProcess::start(const ChildCommand& command, int lifeline) const {
  std::vector<Descriptor> copies;
  for (const int number : command.descriptors) copies.push_back(copy_out_of_the_way(number));
  copies.push_back(copy_out_of_the_way(lifeline));
  const SpawnAttributes attributes;
  const SpawnActions actions{copies};
  std::vector<char*> arguments = pointers(command.arguments), environment = pointers(command.environment);
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  arguments.push_back(nullptr);
  environment.push_back(nullptr);
  pid_t pid = -1;
  const int refused =
      ::posix_spawnp(&pid, arguments.front(), actions.get(), attributes.get(), arguments.data(), environment.data());
  if (refused != 0) refuse(fmt::format("start {}", command.arguments.front()), refused);
  return pid;
}

ChildProcess::~ChildProcess() {
  if (owner_ != ::getpid() || ended_) return;
  kill();
  // After SIGKILL this is short, unless the child hangs in the kernel; then the system reaps it once we are gone.
  static_cast<void>(wait(std::chrono::seconds(10)));
}

std::optional<ExitStatus> ChildProcess::wait(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (!ended_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd wanted{.fd = watch_->number(), .events = POLLIN, .revents = 0};
    const int ready = ::poll(&wanted, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30)));
    if (ready <= 0) {
      if (ready < 0 && errno != EINTR) refuse("wait for a child", errno);
      if (Clock::now() >= deadline) return std::nullopt;
      continue;
    }
    kill();  // Before its number is free for another process: what it left in its group.
    int status = 0;
    const bool reaped = ::waitpid(pid_, &status, 0) == pid_;
    if (!reaped) {
      ended_ = ExitStatus{.code = -1};
    } else if (WIFSIGNALED(status)) {
      ended_ = ExitStatus{.signal = WTERMSIG(status)};
    } else {
      ended_ = ExitStatus{.code = WEXITSTATUS(status)};
    }
  }
  return ended_;
}

void ChildProcess::kill() const noexcept {
  if (pid_ > 0) ::kill(-pid_, SIGKILL);
}

void ChildProcess::pause() const noexcept {
  if (pid_ > 0 && !ended_) ::kill(-pid_, SIGSTOP);
}

void ChildProcess::resume() const noexcept {
  if (pid_ > 0 && !ended_) ::kill(-pid_, SIGCONT);
}

}  // namespace headrace
