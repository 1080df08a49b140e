
#include <headrace/profile_summary.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/fail.h"
#include "core/base/middle.h"
#include "insight/diagnose/detail/spans.h"
#include "insight/diagnose/json.h"

namespace headrace {
namespace {

using detail::seconds;

}  // namespace

SpanStatistics duration_statistics(const std::string& name, std::vector<double> durations_s) {
  HEADRACE_CHECK(!durations_s.empty(), "insight: statistics of {} need a duration", name);
  std::sort(durations_s.begin(), durations_s.end());
  SpanStatistics result;
  result.name = name;
  result.count = static_cast<std::int64_t>(durations_s.size());
  const auto count = static_cast<double>(durations_s.size());
  for (const double duration : durations_s) result.total_s += duration;
  result.mean_s = result.total_s / count;
  double squares = 0;
  for (const double duration : durations_s) squares += (duration - result.mean_s) * (duration - result.mean_s);
  result.std_s = std::sqrt(squares / count);
  result.min_s = durations_s.front();
  result.max_s = durations_s.back();
  result.p50_s = percentile_of(durations_s, 0.50);
  result.p95_s = percentile_of(durations_s, 0.95);
  result.p99_s = percentile_of(durations_s, 0.99);
  return result;
}

ProfileSummary get_profile_summary(const TraceRecord& record) {
  ProfileSummary summary;
  std::map<std::string, std::vector<double>> durations_s;
  std::int64_t open_ns = 0;
  for (const std::vector<TraceEvent>& spans : detail::spans_by_thread(record)) {
    std::int64_t covered_to = std::numeric_limits<std::int64_t>::min();
    for (const TraceEvent& span : spans) {
      ++summary.total_operations;
      durations_s[record.names[span.name].text].push_back(seconds(span.end_ns - span.begin_ns));
      const std::int64_t from = std::max(span.begin_ns, covered_to);
      if (span.end_ns <= from) continue;
      open_ns += span.end_ns - from;
      covered_to = span.end_ns;
    }
  }
  summary.total_duration_s = seconds(open_ns);
  for (auto& [name, values] : durations_s) summary.operations.push_back(duration_statistics(name, std::move(values)));
  std::stable_sort(summary.operations.begin(), summary.operations.end(),
                   [](const SpanStatistics& a, const SpanStatistics& b) { return a.total_s > b.total_s; });
  return summary;
}

nlohmann::ordered_json to_json(const ProfileSummary& summary) {
  nlohmann::ordered_json operations = nlohmann::ordered_json::array();
  for (const SpanStatistics& operation : summary.operations) {
    operations.push_back({{"name", operation.name},
                          {"count", operation.count},
                          {"total_s", operation.total_s},
                          {"mean_s", operation.mean_s},
                          {"std_s", operation.std_s},
                          {"min_s", operation.min_s},
                          {"max_s", operation.max_s},
                          {"p50_s", operation.p50_s},
                          {"p95_s", operation.p95_s},
                          {"p99_s", operation.p99_s}});
  }
  return {{"total_operations", summary.total_operations},
          {"total_duration", summary.total_duration_s},
          {"operations", operations}};
}

std::string json_text(const ProfileSummary& summary) {
  return to_json(summary).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

DurationHistogram span_durations(const TraceRecord& record, std::string_view name) {
  detail::check_spans(record);
  DurationHistogram durations;
  for (const TraceEvent& event : record.events) {
    if (event.end_ns > event.begin_ns && record.names[event.name].text == name) {
      durations.add(event.end_ns - event.begin_ns);
    }
  }
  return durations;
}

nlohmann::ordered_json to_json(const DurationHistogram& durations) {
  const auto known = [](auto ns) {
    return ns ? nlohmann::ordered_json(static_cast<double>(*ns) * 1e-9) : nlohmann::ordered_json(nullptr);
  };
  nlohmann::ordered_json ranges = nlohmann::ordered_json::array();
  for (const auto& [from, to, count] : durations.ranges()) {
    ranges.push_back({{"from_s", seconds(from)}, {"to_s", seconds(to)}, {"count", count}});
  }
  return {{"count", durations.count()},
          {"mean_s", known(durations.mean())},
          {"min_s", known(durations.least())},
          {"max_s", known(durations.most())},
          {"p50_s", known(durations.quantile(0.50))},
          {"p95_s", known(durations.quantile(0.95))},
          {"p99_s", known(durations.quantile(0.99))},
          {"ranges", std::move(ranges)}};
}

std::string json_text(const DurationHistogram& durations) {
  return to_json(durations).dump();
}

}  // namespace headrace
