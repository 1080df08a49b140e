// Places where a test can let the process die, be asked to stop, or fail, to see what is left behind.
#pragma once

namespace headrace {

// Does nothing, for the cost of one relaxed load, unless the environment variable HEADRACE_FAULT is "NAME:N" with this
// name: the N-th passage (from 1, of the whole process) is then killed by SIGKILL. "NAME:N:error" lets it throw
// Error{io} instead; "NAME:N:sigint" and "NAME:N:sigterm" raise that signal there and go on when its handler returns.
// Any other text in the variable is Error{invalid_argument} at the first passage. Thread-safe.
void fault_point(const char* name);

}  // namespace headrace
