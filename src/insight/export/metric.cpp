#include "insight/export/metric.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "core/base/fail.h"

namespace headrace {

std::uint64_t HistogramBuckets::count() const {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
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
