// Pairs without a clock, for tests and the bench: effects of two arms that are the same.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "insight/compare/resampling.h"

namespace headrace {

// `count` pairs whose effects scatter by `scatter`: normal ones, or with heavy tails Student's t of 3 degrees of
// freedom, where one pair in twelve is far out. The metrics of a pair share half of their variance.
inline std::vector<PairEffects> drawn_pairs(std::int64_t count, std::size_t metrics, double scatter, bool heavy_tails,
                                            std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::student_t_distribution<double> tails(3);
  const auto draw = [&] { return heavy_tails ? tails(random) / std::sqrt(3.0) : normal(random); };
  std::vector<PairEffects> pairs;
  for (std::int64_t pair = 0; pair < count; ++pair) {
    const double together = draw();
    PairEffects effects;
    for (std::size_t metric = 0; metric < metrics; ++metric) {
      effects.push_back(scatter * (together + draw()) / std::sqrt(2.0));
    }
    pairs.push_back(effects);
  }
  return pairs;
}

}  // namespace headrace
