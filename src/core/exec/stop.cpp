#include "core/exec/stop.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>

#include "core/base/fail.h"

namespace headrace {
namespace {

constinit std::atomic<int> requested{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal may arrive at any instruction");

void on_stop_signal(int signal) {
  const int before = requested.exchange(signal, std::memory_order_relaxed);
  // Whoever presses Ctrl-C while the verb is already stopping does not want to wait for it.
  if (before != 0 && signal == SIGINT) ::_exit(stop_exit_code(SIGINT));
}

void install(int signal, void (*action)(int)) {
  struct sigaction wanted {};
  wanted.sa_handler = action;
  wanted.sa_flags = SA_RESTART;  // Libraries that read or wait do not all expect to be interrupted.
  sigemptyset(&wanted.sa_mask);
  HEADRACE_CHECK(::sigaction(signal, &wanted, nullptr) == 0, "signal {}: error {}", signal, errno);
}

}  // namespace

void install_stop_signals() {
  install(SIGINT, on_stop_signal);
  install(SIGTERM, on_stop_signal);
  install(SIGPIPE, SIG_IGN);  // A closed stdout is then an error of write(), which names itself.
}

int stop_signal() noexcept {
  return requested.load(std::memory_order_relaxed);
}
void request_stop(int signal) noexcept {
  requested.store(signal, std::memory_order_relaxed);
}
int stop_exit_code(int signal) noexcept {
  return 128 + signal;
}

}  // namespace headrace
