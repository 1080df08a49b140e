// Does memory grow? Judged by minima over windows: what lies between two minima comes and goes.
#pragma once

#include <cstdint>
#include <span>

namespace headrace {

enum class Trend { insufficient_data, stable, increasing, decreasing };
const char* to_string(Trend trend) noexcept;

struct MemoryTrend {
  Trend trend = Trend::insufficient_data;
  double bytes_per_value = 0;  // Theil and Sen's slope of the minima; 0 without enough data.
  std::int64_t windows = 0;    // That were judged.
};

// `values` in bytes at equal distances, each not below 0; `window` of them (above 0) make a cycle of the work: the
// steps of an epoch, or 20 steps where that is longer. The first window is warm-up and left out, as is a rest at the
// end that fills none; six more are needed.
//
// Increasing (or decreasing): Mann and Kendall's test of the minima says so at one in two hundred, one-sided, and
// the second half still moves by at least a quarter of the whole slope (a cache that has filled up does not), and all
// of it is more than 1 MB. The cost is quadratic in the number of windows; of more than 200 only every second (third,
// ...) boundary counts, so that no history is too long.
MemoryTrend memory_trend(std::span<const std::int64_t> values, std::int64_t window);

}  // namespace headrace
