// How often metrics that are durations took which values, for sinks that show histograms.
#pragma once

#include <headrace/duration_histogram.h>
#include <headrace/monitor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "insight/export/metric.h"

namespace headrace {

// Of the metrics that `patterns` (core/base/wildcard.h) match, whose values are seconds, since it was built; without
// patterns of none. A value that is not finite is left out, one below 0 counts as 0. The first 64 names have one each,
// of 15 KiB. For one thread at a time.
class Distributions {
 public:
  static constexpr std::size_t kNamesMax = 64;

  explicit Distributions(std::vector<std::string> patterns = {}) : patterns_(std::move(patterns)) {}

  void take(const MonitorRecord& record);
  // By name: "NAME.distribution", of the unit seconds.
  std::vector<Metric> metrics() const;
  // Those that have a tenth more values than when this gave them last, so that many steps have few points.
  std::vector<Metric> grown();
  void clear() { known_.clear(); }

 private:
  struct Known {
    DurationHistogram durations{};
    std::int64_t given = 0;  // Values that it had in grown().
  };
  bool is_wanted(const std::string& name) const;

  std::vector<std::string> patterns_;
  std::map<std::string, Known> known_;
};

}  // namespace headrace
