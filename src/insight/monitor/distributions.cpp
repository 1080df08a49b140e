#include "insight/monitor/distributions.h"

#include <algorithm>
#include <cmath>

#include "core/base/wildcard.h"

namespace headrace {
namespace {

constexpr double kSecondsMax = 9e9;  // In nanoseconds an int64.

Metric metric_of(const std::string& name, const DurationHistogram& durations) {
  Metric metric;
  metric.name = name + ".distribution";
  metric.unit = "seconds";
  metric.kind = MetricKind::histogram;
  metric.histogram = duration_buckets(durations);
  return metric;
}

}  // namespace

bool Distributions::is_wanted(const std::string& name) const {
  return std::any_of(patterns_.begin(), patterns_.end(),
                     [&](const std::string& pattern) { return matches(pattern, name); });
}

void Distributions::take(const MonitorRecord& record) {
  for (const MetricValue& metric : record.metrics) {
    if (!std::isfinite(metric.value) || !is_wanted(metric.name)) continue;
    auto known = known_.find(metric.name);
    if (known == known_.end()) {
      if (known_.size() == kNamesMax) continue;
      known = known_.try_emplace(metric.name).first;
    }
    known->second.durations.add(std::llround(1e9 * std::clamp(metric.value, 0.0, kSecondsMax)));
  }
}

std::vector<Metric> Distributions::metrics() const {
  std::vector<Metric> all;
  for (const auto& [name, known] : known_) all.push_back(metric_of(name, known.durations));
  return all;
}

std::vector<Metric> Distributions::grown() {
  std::vector<Metric> all;
  for (auto& [name, known] : known_) {
    const std::int64_t count = known.durations.count();
    if (10 * (count - known.given) < std::max<std::int64_t>(known.given, 1)) continue;
    known.given = count;
    all.push_back(metric_of(name, known.durations));
  }
  return all;
}

}  // namespace headrace
