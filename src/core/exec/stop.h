// Asks a running verb to stop: SIGINT and SIGTERM once ask, a second SIGINT ends the process at once.
#pragma once

namespace headrace {

// Installs handlers for SIGINT and SIGTERM (and ignores SIGPIPE). Call once, in main.
void install_stop_signals();
// The signal that asked to stop, or 0. Async-signal-safe to set, cheap to poll (one relaxed load).
int stop_signal() noexcept;
void request_stop(int signal) noexcept;  // As if that signal had come; 0 clears the request (tests).
// 130 for SIGINT, 143 for SIGTERM.
int stop_exit_code(int signal) noexcept;

}  // namespace headrace
