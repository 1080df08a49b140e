#include "insight/compare/resampling.h"

#include <gtest/gtest.h>

#include "insight/compare/drawn_pairs.h"

namespace headrace {
namespace {

std::vector<MetricRule> rules(std::size_t count) {
  std::vector<MetricRule> rules;
  for (std::size_t i = 0; i < count; ++i) rules.push_back(rule_of("metric" + std::to_string(i) + "_s", {}));
  return rules;
}

// The rate allows 2 %, six of 300; eleven are so many that draws alone would hardly give them.
TEST(Resampling, TheSameTwiceIsRarelyAnAlarmHoweverManyMetricsThereAre) {
  for (const std::size_t metrics : {1, 6}) {
    const Resampled found = resample(drawn_pairs(60, metrics, 0.04, true, 1), rules(metrics), {.comparisons = 300});
    EXPECT_EQ(found.comparisons, 300);
    EXPECT_LE(found.regressed + found.improved, 11) << metrics;
  }
}

TEST(Resampling, ThreePercentAreFoundWithinSixtyPairs) {
  for (const bool heavy_tails : {false, true}) {
    const Resampled found =
        resample(drawn_pairs(60, 3, 0.03, heavy_tails, 2), rules(3), {.comparisons = 100, .slowdown = 0.03});
    EXPECT_GE(found.regressed, 85) << heavy_tails;
    EXPECT_LT(found.pairs, 50);
  }
}

TEST(Resampling, ASlowdownThatCannotMatterIsNoAlarm) {
  const std::vector<MetricRule> wide{{.name = "a", .tolerance = 0.2}};
  const Resampled found = resample(drawn_pairs(60, 1, 0.01, false, 3), wide, {.comparisons = 50, .slowdown = 0.05});
  EXPECT_EQ(found.regressed, 0);
  EXPECT_LT(found.pairs, 20) << "equivalent within 20 %, and settled by that";
}

TEST(Resampling, ASlowdownIsOfTimesAndNotOfWhatNeverScatters) {
  std::vector<PairEffects> pairs = drawn_pairs(60, 1, 0.2, false, 5);
  for (PairEffects& pair : pairs) pair.insert(pair.end(), {0, 0});
  const std::vector<MetricRule> beside{rule_of("step_p50_s", {}), rule_of("peak_memory_bytes", {}),
                                       rule_of("accuracy", {})};
  EXPECT_LE(resample(pairs, beside, {.comparisons = 50, .pairs_max = 20, .slowdown = 0.03}).regressed, 5)
      << "3 % where pairs scatter by 20 %";
}

TEST(Resampling, TheSameSeedDrawsTheSame) {
  const auto pairs = drawn_pairs(20, 2, 0.05, false, 4);
  const auto draw = [&](std::uint64_t seed) {
    return resample(pairs, rules(2), {.comparisons = 20, .slowdown = 0.04, .seed = seed}).pairs;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
}

TEST(Resampling, RecordedPairsAreTheEffectsOfEachPair) {
  std::vector<PairedMetric> metrics{PairedMetric(rule_of("a", {})), PairedMetric(rule_of("b", {}))};
  for (const double effect : {0.1, 0.2}) {
    metrics[0].add_effect(effect);
    metrics[1].add_effect(-effect);
  }
  EXPECT_EQ(recorded_pairs(metrics), (std::vector<PairEffects>{{0.1, -0.1}, {0.2, -0.2}}));
}

}  // namespace
}  // namespace headrace
