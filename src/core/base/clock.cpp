#include "core/base/clock.h"

#include <fmt/format.h>

#include <ctime>

namespace headrace {
namespace {

std::int64_t read_clock_ns(clockid_t clock) noexcept {
  timespec time{};
  clock_gettime(clock, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

std::tm utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  return parts;
}

}  // namespace

std::int64_t monotonic_ns() noexcept {
  return read_clock_ns(CLOCK_MONOTONIC);
}
std::int64_t thread_cpu_ns() noexcept {
  return read_clock_ns(CLOCK_THREAD_CPUTIME_ID);
}
std::int64_t process_cpu_ns() noexcept {
  return read_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}
std::int64_t wall_ns() noexcept {
  return read_clock_ns(CLOCK_REALTIME);
}

double seconds_since(std::int64_t begin_ns) noexcept {
  return static_cast<double>(monotonic_ns() - begin_ns) * 1e-9;
}

std::string utc_stamp() {
  const std::tm t = utc_now();
  return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", t.tm_year + 1900, t.tm_mon + 1, t.tm_mday, t.tm_hour, t.tm_min,
                     t.tm_sec);
}

std::string utc_text() {
  const std::tm t = utc_now();
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02} UTC", t.tm_year + 1900, t.tm_mon + 1, t.tm_mday, t.tm_hour,
                     t.tm_min, t.tm_sec);
}

}  // namespace headrace
