// What the calling thread has used so far: cores, waiting for one, and pages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/hardware/run_delay.h"

namespace headrace {

struct ThreadUsage {
  std::int64_t cpu_ns = 0;
  std::int64_t run_delay_ns = 0;  // Ready to run without a core; 0 where the kernel does not count it.
  std::int64_t minor_faults = 0;  // Pages that came without a disk,
  std::int64_t major_faults = 0;  // and with one.
};
ThreadUsage operator-(const ThreadUsage& after, const ThreadUsage& before);

// Of the thread that builds it, which alone may read. getrusage(RUSAGE_THREAD), the thread's clock and one pread: two
// to three microseconds.
class ThreadUsageReader {
 public:
  ThreadUsage read() const;
  bool has_run_delay() const { return run_delay_.ns().has_value(); }

 private:
  RunDelay run_delay_;
};

// How long a thread was ready to run without a core since it began.
struct ThreadDelay {
  int thread = 0;
  std::int64_t ns = 0;
};
// Of each thread of this process that has the calling one's name, that one left out, in order of their numbers: threads
// of OpenMP keep the name of whoever starts them, and those that have other tasks get one of their own. Empty: there is
// none, or the kernel does not count it. Some ten microseconds a thread. `root` is prefixed to /proc, for tests on a
// fake tree.
std::vector<ThreadDelay> sibling_delays(const std::string& root = "");
// The longest that one of the threads of `after` had since `before`, in nanoseconds, or since it began in between;
// nullopt: there is none.
std::optional<std::int64_t> longest_delay_between(const std::vector<ThreadDelay>& before,
                                                  const std::vector<ThreadDelay>& after);

}  // namespace headrace
