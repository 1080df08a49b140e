// A process that this one started and that does not outlive it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "core/base/descriptor.h"

namespace headrace {

struct ExitStatus {
  int code = 0;    // Of _exit(); negative: unknown, as somebody else in this process has taken it.
  int signal = 0;  // That ended it, or 0.

  std::string text() const;  // "was killed by SIGSEGV", "ended with exit status 3".
};

// What a child is started with. Descriptors 0 to 2 are /dev/null, our stdout and our stderr.
struct ChildCommand {
  std::vector<std::string> arguments;    // The program first: a path, or a name looked for in PATH.
  std::vector<int> descriptors;          // Ours, which become 3, 4, ... of the child. It gets no other.
  std::vector<std::string> environment;  // "NAME=value", beside our own.
};

// Started by posix_spawn: nothing of our memory, threads, locks or CUDA goes along. The child leads a process group, so
// that Ctrl-C at a terminal reaches us alone. When this process ends in whatever way, SIGKILL included, the kernel
// kills the whole group; the child need not cooperate. (A process forked from ours without exec defers that to its own
// end.) One thread at a time, but kill() may be called from any.
class ChildProcess {
 public:
  // Error{invalid_argument} without a program, {not_found} when there is none of that name, {io} when the system
  // refuses.
  explicit ChildProcess(const ChildCommand& command);
  // Kills what is left of the group and reaps the child. A process forked from ours leaves it alone.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // How the child ended; nullopt: it has not within `timeout`. What it left in its group is killed then.
  std::optional<ExitStatus> wait(std::chrono::milliseconds timeout);
  // SIGKILL to the group.
  void kill() const noexcept;
  // SIGSTOP and SIGCONT to the group: until resume() none of its threads runs, whatever it was doing. kill() and our
  // own end reach it all the same. Does nothing once wait() has told its end.
  void pause() const noexcept;
  void resume() const noexcept;

 private:
  pid_t start(const ChildCommand& command, int lifeline) const;

  const pid_t owner_;
  pid_t pid_ = -1;
  std::optional<Descriptor> lifeline_;  // A pipe's writing end. When it closes the kernel kills the group.
  std::optional<Descriptor> watch_;     // Readable once the child has ended (pidfd).
  std::optional<ExitStatus> ended_;
};

}  // namespace headrace
