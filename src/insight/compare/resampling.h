// How often a comparison alarms for nothing, and how often it finds a change: drawn anew from recorded pairs.
#pragma once

#include <cstdint>
#include <vector>

#include "insight/compare/run_pairs.h"

namespace headrace {

// The effects of one pair, one a metric.
using PairEffects = std::vector<double>;

struct ResamplePlan {
  std::int64_t comparisons = 1000;
  std::int64_t pairs_max = 60;  // At which a comparison ends undecided.
  // Put into each pair of the times and rates (names that end with _s or _per_second), where there are none of all
  // ratios: 0.03 is 3 % worse. Not of a memory or an accuracy beside them, which is found at once if it never scatters.
  double slowdown = 0;
  double false_discovery_rate = kFalseDiscoveryRate;
  std::uint64_t seed = 1;
};

struct Resampled {
  std::int64_t comparisons = 0;
  std::int64_t regressed = 0;  // Comparisons that called a metric regressed,
  std::int64_t improved = 0;   // or none, and one improved.
  double pairs = 0;            // Mean until it was settled.
};

// The effects in `metrics`, pair by pair.
std::vector<PairEffects> recorded_pairs(const std::vector<PairedMetric>& metrics);

// Comparisons of pairs drawn with replacement from `recorded` (at least one, each with an effect a metric), each with
// the coin of its order drawn anew: as the two arms were the same, either could have been called new. Stops each as
// `headrace compare` does. The cost of a comparison grows with the square of its pairs.
Resampled resample(const std::vector<PairEffects>& recorded, const std::vector<MetricRule>& rules,
                   const ResamplePlan& plan);

}  // namespace headrace
