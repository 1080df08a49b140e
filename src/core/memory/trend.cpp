#include "core/memory/trend.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr std::size_t kWindowsMin = 6;
constexpr std::size_t kWindowsMax = 200;
constexpr double kNormalQuantile = 2.576;  // One in two hundred; six values in order give 2.63.
constexpr double kLateShare = 0.25;
constexpr double kBytesMin = 1e6;

// The least value of each whole window but the first.
std::vector<double> minima(std::span<const std::int64_t> values, std::size_t window) {
  std::vector<double> result;
  for (std::size_t first = window; first + window <= values.size(); first += window) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first);
    result.push_back(static_cast<double>(*std::min_element(begin, begin + static_cast<std::ptrdiff_t>(window))));
  }
  return result;
}

// The median of the slopes between all pairs: Theil 1950, Sen 1968.
double median_slope(std::span<const double> values) {
  std::vector<double> slopes;
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (std::size_t j = i + 1; j < values.size(); ++j) {
      slopes.push_back((values[j] - values[i]) / static_cast<double>(j - i));
    }
  }
  const auto middle = slopes.begin() + static_cast<std::ptrdiff_t>(slopes.size() / 2);
  std::nth_element(slopes.begin(), middle, slopes.end());
  if (slopes.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(slopes.begin(), middle)) / 2;
}

// Mann and Kendall's statistic, normal with its correction for ties and continuity: above 0 where values rise.
double rise(const std::vector<double>& values) {
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (std::size_t j = i + 1; j < values.size(); ++j) sum += (values[j] > values[i]) - (values[j] < values[i]);
  }
  const auto spread = [](double n) { return n * (n - 1) * (2 * n + 5) / 18; };
  double variance = spread(static_cast<double>(values.size()));
  std::map<double, double> ties;
  for (const double value : values) ++ties[value];
  for (const auto& [value, count] : ties) variance -= spread(count);
  if (sum == 0 || variance <= 0) return 0;
  return (sum - std::copysign(1.0, sum)) / std::sqrt(variance);
}

}  // namespace

const char* to_string(Trend trend) noexcept {
  switch (trend) {
    case Trend::insufficient_data:
      return "insufficient_data";
    case Trend::stable:
      return "stable";
    case Trend::increasing:
      return "increasing";
    case Trend::decreasing:
      return "decreasing";
  }
  return "?";
}

MemoryTrend memory_trend(std::span<const std::int64_t> values, std::int64_t window) {
  HEADRACE_CHECK(window > 0, "a window of {} values", window);
  const std::size_t fewest = (values.size() + kWindowsMax - 1) / kWindowsMax;
  const std::size_t factor = (fewest + static_cast<std::size_t>(window) - 1) / static_cast<std::size_t>(window);
  const std::size_t cycle = static_cast<std::size_t>(window) * std::max<std::size_t>(factor, 1);
  const std::vector<double> lows = minima(values, cycle);
  MemoryTrend result;
  result.windows = static_cast<std::int64_t>(lows.size());
  if (lows.size() < kWindowsMin) return result;
  const double slope = median_slope(lows);
  const double late_slope = median_slope(std::span(lows).subspan(lows.size() / 2));
  result.bytes_per_value = slope / static_cast<double>(cycle);
  result.trend = Trend::stable;
  if (std::abs(slope) * static_cast<double>(lows.size()) <= kBytesMin || late_slope / slope < kLateShare) return result;
  const double z = rise(lows);
  if (z >= kNormalQuantile && slope > 0) result.trend = Trend::increasing;
  if (z <= -kNormalQuantile && slope < 0) result.trend = Trend::decreasing;
  return result;
}

}  // namespace headrace
