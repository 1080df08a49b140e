#include "insight/export/metric.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "core/base/fail.h"

namespace headrace {

std::uint64_t HistogramBuckets::count() const {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

HistogramBuckets duration_buckets(const DurationHistogram& durations) {
  constexpr int kFirst = 10, kLast = 40;  // Powers of two.
  HistogramBuckets buckets;
  for (int power = kFirst; power <= kLast; ++power) buckets.upper_bounds.push_back(std::ldexp(1e-9, power));
  buckets.counts.resize(buckets.upper_bounds.size() + 1);
  for (const auto& [from, to, count] : durations.ranges(1)) {
    const int power = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(to - 1)));
    buckets.counts[static_cast<std::size_t>(std::clamp(power, kFirst, kLast + 1) - kFirst)] +=
        static_cast<std::uint64_t>(count);
  }
  for (const auto& [from, to, count] : durations.ranges(32)) {
    const double middle_s = 0.5e-9 * (static_cast<double>(from) + static_cast<double>(to));
    buckets.sum_of_squares += static_cast<double>(count) * middle_s * middle_s;
  }
  if (durations.count() == 0) return buckets;
  buckets.sum = 1e-9 * *durations.mean() * static_cast<double>(durations.count());
  buckets.min = 1e-9 * static_cast<double>(*durations.least());
  buckets.max = 1e-9 * static_cast<double>(*durations.most());
  return buckets;
}

void check_buckets(std::string_view name, const HistogramBuckets& buckets) {
  const std::vector<double>& bounds = buckets.upper_bounds;
  if (buckets.counts.size() != bounds.size() + 1) {
    fail(ErrorCode::invalid_argument, "metric: {}: wanted one count more than the {} bounds, found {}", name,
         bounds.size(), buckets.counts.size());
  }
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    if (!std::isfinite(bounds[i]) || (i > 0 && bounds[i] <= bounds[i - 1])) {
      fail(ErrorCode::invalid_argument, "metric: {}: wanted finite bounds that ascend, found {} at {}", name, bounds[i],
           i);
    }
  }
}

void check_metric(const Metric& metric) {
  if (metric.name.empty()) fail(ErrorCode::invalid_argument, "metric: wanted a name, found an empty one");
  if (metric.histogram) check_buckets(metric.name, *metric.histogram);
}

std::vector<MetricFamily> metric_families(std::span<const Metric> metrics) {
  std::vector<MetricFamily> families;
  std::map<std::string, std::size_t> places;
  std::set<std::pair<std::string, std::vector<std::pair<std::string, std::string>>>> seen;
  for (const Metric& metric : metrics) {
    check_metric(metric);
    const auto [place, is_new] = places.try_emplace(metric.name, families.size());
    if (is_new) families.emplace_back();
    MetricFamily& family = families[place->second];
    if (!is_new && family.points.front()->kind != metric.kind) {
      fail(ErrorCode::invalid_argument, "metric: {}: wanted one kind for all of its labels, found two", metric.name);
    }
    std::vector<std::pair<std::string, std::string>> labels;
    for (const MetricLabel& label : metric.labels) labels.emplace_back(label.name, label.value);
    std::sort(labels.begin(), labels.end());
    if (!seen.emplace(metric.name, std::move(labels)).second) {
      fail(ErrorCode::invalid_argument, "metric: {}: wanted it once for each set of labels, found it twice",
           metric.name);
    }
    family.points.push_back(&metric);
  }
  return families;
}

}  // namespace headrace
