// The line of JSON that the programs here print, as protocol.py's scripts do.
#pragma once

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

#include "base/clock.h"

namespace headrace {

inline double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

inline std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t whole = 0, resident = 0;
  file >> whole >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// What is counted between its construction and print().
class Window {
 public:
  double seconds() const { return static_cast<double>(monotonic_ns() - begin_ns_) * 1e-9; }
  void print(std::int64_t images, double first_batch_s, std::int64_t rss_bytes, const std::string& version) const {
    fmt::print(
        "{{\"images\": {}, \"seconds\": {}, \"cpu_seconds\": {}, \"first_batch_s\": {}, \"rss_bytes\": {}, "
        "\"version\": \"{}\"}}\n",
        images, seconds(), cpu_seconds() - cpu_begin_, first_batch_s, rss_bytes, version);
  }

 private:
  double cpu_begin_ = cpu_seconds();
  std::int64_t begin_ns_ = monotonic_ns();
};

}  // namespace headrace
