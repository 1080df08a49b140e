// The line of JSON that the programs here print, as protocol.py's scripts do.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "core/base/clock.h"

namespace headrace {

// What is counted between its construction and print().
class Window {
 public:
  double seconds() const { return seconds_since(begin_ns_); }
  void print(std::int64_t images, double first_batch_s, std::int64_t rss_bytes, const std::string& version) const {
    fmt::print(
        "{{\"images\": {}, \"seconds\": {}, \"cpu_seconds\": {}, \"first_batch_s\": {}, \"rss_bytes\": {}, "
        "\"version\": \"{}\"}}\n",
        images, seconds(), static_cast<double>(process_cpu_ns() - cpu_begin_ns_) * 1e-9, first_batch_s, rss_bytes,
        version);
  }

 private:
  std::int64_t cpu_begin_ns_ = process_cpu_ns();
  std::int64_t begin_ns_ = monotonic_ns();
};

}  // namespace headrace
