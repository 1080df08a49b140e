#include "insight/diagnose/live_split.h"

#include <headrace/time_split.h>

#include <algorithm>
#include <limits>

namespace headrace {
namespace {

constexpr std::int64_t kSteps = 200;
constexpr std::int64_t kTime_ns = 1'000'000'000;

}  // namespace

std::int64_t split_time_ns(std::int64_t step_ns) {
  const std::int64_t least = 4 * std::max<std::int64_t>(step_ns, 1);
  return std::max(least, std::min(kTime_ns, kSteps * std::max<std::int64_t>(step_ns, 1)));
}

bool has_whole_step(const TraceRecord& record) {
  std::int64_t whole_from_ns = 0;
  if (record.dropped > 0) {
    whole_from_ns = std::numeric_limits<std::int64_t>::max();
    for (const TraceEvent& event : record.events) whole_from_ns = std::min(whole_from_ns, event.end_ns);
  }
  return std::any_of(record.events.begin(), record.events.end(), [&](const TraceEvent& event) {
    return record.names[event.name].text == step::kStep.text && event.end_ns > event.begin_ns &&
           event.begin_ns >= whole_from_ns;
  });
}

std::map<std::string, double> split_figures(const TraceRecord& record) {
  if (record.dropped > 0 || !has_whole_step(record)) return {};
  const TimeSplit split = split_time(record);
  const auto steps = static_cast<double>(split.steps);
  return {{"time.data_wait_s", split.data_wait_s / steps}, {"time.transfer_s", split.transfer_s / steps},
          {"time.forward_s", split.forward_s / steps},     {"time.backward_s", split.backward_s / steps},
          {"time.optimizer_s", split.optimizer_s / steps}, {"time.other_s", split.other_s / steps}};
}

}  // namespace headrace
