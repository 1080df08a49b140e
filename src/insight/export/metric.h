// Figures of a running job, as every sink takes them: plain values.
#pragma once

#include <headrace/duration_histogram.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

enum class MetricKind {
  gauge,    // A value that goes up and down.
  counter,  // A total that only grows while the process lives.
  histogram,
};

struct MetricLabel {
  std::string name;  // "gpu"
  std::string value;
};

// Numbers of values by range: counts[i] of those at most upper_bounds[i] and above the bound before it, the last count
// of those above all bounds.
struct HistogramBuckets {
  std::vector<double> upper_bounds;   // Ascending, finite.
  std::vector<std::uint64_t> counts;  // One more.
  double sum = 0, sum_of_squares = 0;
  double min = 0, max = 0;

  std::uint64_t count() const;
};

// Durations in nanoseconds as buckets in seconds whose bounds stay the same whatever is added: one a power of two from
// 1.024 us to 18 minutes. The sum of squares is that of the buckets' middles.
HistogramBuckets duration_buckets(const DurationHistogram& durations);

struct Metric {
  std::string name;  // "train.step_duration": dots between its parts.
  std::string help;  // One sentence; may be empty.
  std::string unit;  // "seconds", "bytes", "samples"; empty for a ratio or a number of things.
  MetricKind kind = MetricKind::gauge;
  std::vector<MetricLabel> labels;
  std::optional<double> value;  // Of a gauge or counter, NaN and infinity too; nullopt: unavailable.
  std::optional<HistogramBuckets> histogram;
};

// When a metric was read.
struct MetricMoment {
  std::int64_t wall_ns = 0;  // Since 1970, UTC.
  std::int64_t step = 0;
};

// The metrics of one name, which sinks show as one with a point for each set of labels.
struct MetricFamily {
  std::vector<const Metric*> points;  // At least one; views of what was given.
};

// In the order of first appearance. Error{invalid_argument} names the metric: it has no name, its points differ in
// kind, two of them have the same labels, or its buckets are none (counts not one more than bounds, bounds that do not
// ascend).
std::vector<MetricFamily> metric_families(std::span<const Metric> metrics);

// Of one metric alone, its name and buckets, and of buckets alone. The same error.
void check_metric(const Metric& metric);
void check_buckets(std::string_view name, const HistogramBuckets& buckets);

}  // namespace headrace
