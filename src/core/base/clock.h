// Time for measuring: CLOCK_MONOTONIC, immune to clock changes. Wall time only for what others read:
// names of folders, reports, metrics.
#pragma once

#include <cstdint>
#include <string>

namespace headrace {

std::int64_t monotonic_ns() noexcept;
std::int64_t thread_cpu_ns() noexcept;                 // CPU time of the calling thread.
std::int64_t process_cpu_ns() noexcept;                // CPU time of the whole process.
std::int64_t wall_ns() noexcept;                       // Since 1970.
double seconds_since(std::int64_t begin_ns) noexcept;  // `begin_ns`: an earlier monotonic_ns().
// "20261120T153000Z" and "2026-11-20 15:30:00 UTC".
std::string utc_stamp();
std::string utc_text();

}  // namespace headrace
