// The spans of a trace by name: how many, and how long. A pure function, safe to call from any thread.
#pragma once

#include <headrace/duration_histogram.h>
#include <headrace/trace.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

// The durations of all spans of one name. Percentiles interpolate between the two nearest values (NumPy's default);
// std_s is that of these spans themselves (divided by count), so it is 0 for one span.
struct SpanStatistics {
  std::string name;
  std::int64_t count = 0;
  double total_s = 0;
  double mean_s = 0;
  double std_s = 0;
  double min_s = 0;
  double max_s = 0;
  double p50_s = 0;
  double p95_s = 0;
  double p99_s = 0;
};

// Of at least one duration, in seconds and any order.
SpanStatistics duration_statistics(const std::string& name, std::vector<double> durations_s);

// A name's total_s counts a nested span of that name again, as its own call took that long. total_duration_s does not:
// it is the time during which a thread had any span open, added up over threads. Gauges are no operations.
struct ProfileSummary {
  std::int64_t total_operations = 0;
  double total_duration_s = 0;
  std::vector<SpanStatistics> operations;  // Largest total first.
};
ProfileSummary get_profile_summary(const TraceRecord& record);
// {"total_operations", "total_duration", "operations"} on one line.
std::string json_text(const ProfileSummary& summary);

// How often the spans of this name, of whatever category, took how many nanoseconds. Error{corrupt_data}: the record
// contradicts itself.
DurationHistogram span_durations(const TraceRecord& record, std::string_view name);
// {"count", "mean_s", "min_s", "max_s", "p50_s", "p95_s", "p99_s", "ranges": [{"from_s", "to_s", "count"}, ...]} on one
// line: four ranges a power of two, from the first that has a value to the last one. Of nothing all but the count and
// the ranges is null.
std::string json_text(const DurationHistogram& durations);

}  // namespace headrace
