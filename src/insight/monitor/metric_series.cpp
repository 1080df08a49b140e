#include "insight/monitor/metric_series.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include "core/base/fail.h"
#include "core/base/middle.h"

namespace headrace {
namespace {

constexpr std::size_t kFirst = 100;
constexpr std::size_t kSinceMax = 1000;
constexpr double kScatterOfDeviation = 1.4826;  // Standard deviation of a normal / its median absolute deviation.
constexpr double kScatterMin = 0.005;           // Of a logarithm: half a percent.
constexpr double kAllowance = 0.5;              // Units of scatter.
constexpr double kAllowanceMin = 0.05;          // Of a logarithm.
constexpr double kExcessMax = 4;                // Units that one value adds.
constexpr double kTold = 24;                    // Units.

double slope_of(const std::deque<double>& values) {
  const auto count = static_cast<double>(values.size());
  const double middle = (count - 1) / 2;
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double products = 0, squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double distance = static_cast<double>(i) - middle;
    products += distance * (values[i] - mean);
    squares += distance * distance;
  }
  return squares > 0 ? products / squares : 0;
}

}  // namespace

MetricSeries::MetricSeries(std::int64_t window) : window_(window) {
  if (window < 2) fail(ErrorCode::invalid_argument, "monitor: window: wanted at least 2, found {}", window);
}

void MetricSeries::add(double value) {
  if (!std::isfinite(value)) return;
  ++count_;
  sum_ += value;
  newest_.push_back(value);
  if (std::ssize(newest_) > window_) newest_.pop_front();
  if (value > 0 && !slowdown_) watch(std::log(value));
}

void MetricSeries::watch(double value) {
  if (first_.size() < kFirst) {
    first_.push_back(value);
    if (first_.size() < kFirst) return;
    middle_ = middle_of(first_);
    std::vector<double> deviations;
    for (const double one : first_) deviations.push_back(std::abs(one - middle_));
    scatter_ = std::max(kScatterMin, kScatterOfDeviation * middle_of(std::move(deviations)));
    return;
  }
  const double beyond = (value - middle_) / scatter_ - std::max(kAllowance, kAllowanceMin / scatter_);
  excess_ = std::max(0.0, excess_ + std::min(beyond, kExcessMax));
  if (excess_ == 0) {
    since_.clear();
    return;
  }
  if (since_.size() < kSinceMax) since_.push_back(value);
  if (excess_ >= kTold) slowdown_ = Slowdown{count_ - 1, std::exp(middle_of(since_) - middle_)};
}

std::optional<SeriesStatistics> MetricSeries::statistics() const {
  if (newest_.empty()) return std::nullopt;
  std::vector<double> sorted(newest_.begin(), newest_.end());
  std::sort(sorted.begin(), sorted.end());
  SeriesStatistics result;
  result.count = count_;
  result.last = newest_.back();
  result.mean = sum_ / static_cast<double>(count_);
  result.rolling_mean = std::accumulate(sorted.begin(), sorted.end(), 0.0) / static_cast<double>(sorted.size());
  result.minimum = sorted.front();
  result.maximum = sorted.back();
  result.p50 = percentile_of(sorted, 0.50);
  result.p95 = percentile_of(sorted, 0.95);
  result.p99 = percentile_of(sorted, 0.99);
  result.slope = slope_of(newest_);
  result.slowdown = slowdown_;
  return result;
}

}  // namespace headrace
