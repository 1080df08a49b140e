// The values of one metric over a run: rolling figures, and whether they have come to be larger for good.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace headrace {

struct Slowdown {
  std::int64_t found_at = 0;  // Index of the value at which it was sure.
  double ratio = 0;           // Median of the values since it began / median of the first ones.
};

// Of the newest values, but for count and mean. Percentiles interpolate between the two nearest values (NumPy's
// default).
struct SeriesStatistics {
  std::int64_t count = 0;  // Finite ones.
  double last = 0, mean = 0;
  double rolling_mean = 0, minimum = 0, maximum = 0, p50 = 0, p95 = 0, p99 = 0;
  double slope = 0;  // By least squares, a value; 0 of one value.
  std::optional<Slowdown> slowdown;
};

// Takes durations, as the seconds of each step. For one thread at a time.
//
// The slow-down is found by a cumulative sum (E. S. Page, Continuous Inspection Schemes, Biometrika 41, 1954) of the
// logarithms' distance from the median of the first 100 values, in units of their scatter (median absolute deviation),
// less an allowance of half a unit or 5 %, whichever is more; a single value adds at most 4 units, so that a pause
// raises nothing. At a sum of 24 units it is told, once. Where values scatter independently and evenly by up to 15 % on
// either side, a slow-down of 20 % is told within 100 values (metric_series_test). Where each depends on the one before
// it, the sum says more than they do, and may tell of a slow-down that is none.
class MetricSeries {
 public:
  // `window`: the newest values that are kept, at least 2.
  explicit MetricSeries(std::int64_t window = 1000);

  void add(double value);  // One that is not finite is passed over.
  // nullopt: there is no value. n log n in the window.
  std::optional<SeriesStatistics> statistics() const;

 private:
  void watch(double value);

  const std::int64_t window_;
  std::deque<double> newest_;
  std::int64_t count_ = 0;
  double sum_ = 0;
  std::vector<double> first_;  // Logarithms, until there are enough of them.
  double middle_ = 0, scatter_ = 0, excess_ = 0;
  std::vector<double> since_;  // Logarithms since the sum left 0, at most kSinceMax.
  std::optional<Slowdown> slowdown_;
};

}  // namespace headrace
