#include "core/hardware/thread_usage.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "core/base/clock.h"
#include "core/hardware/detail/system_text.h"

namespace headrace {

ThreadUsage operator-(const ThreadUsage& after, const ThreadUsage& before) {
  return {after.cpu_ns - before.cpu_ns, after.run_delay_ns - before.run_delay_ns,
          after.minor_faults - before.minor_faults, after.major_faults - before.major_faults};
}

ThreadUsage ThreadUsageReader::read() const {
  rusage usage{};
  ThreadUsage now{.cpu_ns = thread_cpu_ns(), .run_delay_ns = run_delay_.ns().value_or(0)};
  if (::getrusage(RUSAGE_THREAD, &usage) == 0) {
    now.minor_faults = usage.ru_minflt;
    now.major_faults = usage.ru_majflt;
  }
  return now;
}

std::vector<ThreadDelay> sibling_delays(const std::string& root) {
  std::vector<ThreadDelay> delays;
  const auto self = static_cast<std::int64_t>(::gettid());
  const std::string tasks = root + "/proc/self/task";
  const auto name = detail::read_system_text(tasks + "/" + std::to_string(self) + "/comm");
  if (!name) return delays;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(tasks, error), end; !error && entry != end; entry.increment(error)) {
    const auto thread = detail::parse_integer(entry->path().filename().native());
    if (!thread || *thread == self) continue;
    const std::string folder = entry->path().native();
    if (detail::read_system_text(folder + "/comm") != name) continue;
    const auto text = detail::read_system_text(folder + "/schedstat");  // None: it has ended.
    if (const auto ns = text ? parse_run_delay(*text) : std::nullopt) {
      delays.push_back({static_cast<int>(*thread), *ns});
    }
  }
  std::sort(delays.begin(), delays.end(),
            [](const ThreadDelay& a, const ThreadDelay& b) { return a.thread < b.thread; });
  return delays;
}

std::optional<std::int64_t> longest_delay_between(const std::vector<ThreadDelay>& before,
                                                  const std::vector<ThreadDelay>& after) {
  std::optional<std::int64_t> longest;
  auto earlier = before.begin();
  for (const ThreadDelay& now : after) {
    while (earlier != before.end() && earlier->thread < now.thread) ++earlier;
    const bool was_there = earlier != before.end() && earlier->thread == now.thread;
    longest = std::max(longest.value_or(0), now.ns - (was_there ? earlier->ns : 0));
  }
  return longest;
}

}  // namespace headrace
