#include "insight/tune/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace headrace {
namespace {

// Wilcoxon's scores are the ranks themselves.
Estimate estimate_wilcoxon(const std::vector<double>& values, double error) {
  return estimate_middle(values, error, error, static_cast<int>(values.size()));
}

TEST(Statistics, SignedRankProbabilitiesMatchThePublishedTable) {
  // Largest rank sums whose probability is at most 0.025: Hollander, Wolfe, Chicken, table of the signed-rank test.
  const std::vector<std::pair<int, int>> critical = {{6, 0},   {7, 2},   {8, 3},   {9, 5},   {10, 8},
                                                     {15, 25}, {20, 52}, {25, 89}, {30, 137}};
  for (const auto& [count, sum] : critical) {
    EXPECT_LE(signed_rank_cdf(count, count, sum), 0.025) << count;
    EXPECT_GT(signed_rank_cdf(count, count, sum + 1), 0.025) << count;
  }
  EXPECT_DOUBLE_EQ(signed_rank_cdf(9, 9, 5), 10.0 / 512);
}

TEST(Statistics, EqualScoresAreTheSignTest) {
  EXPECT_DOUBLE_EQ(signed_rank_cdf(10, 1, 1), 11.0 / 1024);  // At most one of ten coins.
  std::vector<double> values = {5, 1, 9, 3, 7, 2, 10, 4, 8, 6};
  const auto estimate = estimate_middle(values, 0.025, 0.025, 1);
  EXPECT_DOUBLE_EQ(estimate.center, 5.5);
  EXPECT_DOUBLE_EQ(estimate.low, 2);  // Second smallest and second largest: at most one of ten lies outside.
  EXPECT_DOUBLE_EQ(estimate.high, 9);
}

TEST(Statistics, WilcoxonScoresGiveThePublishedEstimate) {
  // Hamilton depression scale, before and after: Hollander and Wolfe, example 3.1; R's wilcox.test(conf.int = TRUE).
  const std::vector<double> differences = {.952, -.147, 1.022, .430, .620, .590, .490, -.080, .010};
  const auto estimate = estimate_wilcoxon(differences, 0.025);
  EXPECT_NEAR(estimate.center, 0.46, 1e-12);
  EXPECT_NEAR(estimate.low, 0.010, 1e-12);
  EXPECT_NEAR(estimate.high, 0.786, 1e-12);
}

TEST(Statistics, StudentQuantilesMatchThePublishedTable) {
  EXPECT_NEAR(student_quantile(1, 0.025), 12.706, 5e-4);
  EXPECT_NEAR(student_quantile(2, 0.025), 4.303, 5e-4);
  EXPECT_NEAR(student_quantile(3, 0.025), 3.182, 5e-4);
  EXPECT_NEAR(student_quantile(4, 0.005), 4.604, 5e-4);
  EXPECT_NEAR(student_quantile(5, 0.025), 2.571, 5e-4);
  EXPECT_NEAR(student_quantile(6, 0.05), 1.943, 5e-4);
}

TEST(Statistics, FewDifferencesFallBackToStudentAndOneSaysNothing) {
  const std::vector<double> three = {0.1, 0.2, 0.3};
  const auto student = estimate_middle(three, 0.025, 0.025);
  EXPECT_NEAR(student.low, 0.2 - 4.3027 * 0.1 / std::sqrt(3.0), 1e-4);
  EXPECT_NEAR(student.high, 0.2 + 4.3027 * 0.1 / std::sqrt(3.0), 1e-4);
  const std::vector<double> one = {0.1};
  const auto nothing = estimate_middle(one, 0.025, 0.025);
  EXPECT_EQ(nothing.center, 0.1);
  EXPECT_TRUE(std::isinf(nothing.low) && nothing.low < 0);
  EXPECT_TRUE(std::isinf(nothing.high) && nothing.high > 0);
}

TEST(Statistics, EstimateMovesWithTheValuesAndTurnsWithTheirSigns) {
  const std::vector<double> values = {0.03, -0.01, 0.05, 0.02, 0.41, 0.01, 0.04, -0.02, 0.025, 0.035};
  std::vector<double> moved, turned;
  for (const double value : values) {
    moved.push_back(value + 1);
    turned.push_back(-value);
  }
  const auto estimate = estimate_middle(values, 0.0075, 0.025);
  const auto estimate_moved = estimate_middle(moved, 0.0075, 0.025);
  const auto estimate_turned = estimate_middle(turned, 0.025, 0.0075);
  EXPECT_NEAR(estimate_moved.center, estimate.center + 1, 1e-12);
  EXPECT_NEAR(estimate_moved.low, estimate.low + 1, 1e-12);
  EXPECT_NEAR(estimate_turned.center, -estimate.center, 1e-12);
  EXPECT_NEAR(estimate_turned.low, -estimate.high, 1e-12);
  EXPECT_NEAR(estimate_turned.high, -estimate.low, 1e-12);
  EXPECT_LT(estimate.low, estimate.center);
  EXPECT_LT(estimate.center, estimate.high);
}

TEST(Statistics, OneWildDifferenceDoesNotMoveTheInterval) {
  std::vector<double> values = {0.10, 0.11, 0.09, 0.12, 0.08, 0.10, 0.11, 0.09, 0.105, 0.095, 0.102, 0.4};
  const auto before = estimate_middle(values, 0.025, 0.025);
  values.back() = 4000;
  const auto after = estimate_middle(values, 0.025, 0.025);
  EXPECT_NEAR(before.low, after.low, 1e-12);
  EXPECT_NEAR(before.high, after.high, 1e-12);
  EXPECT_LT(after.high, 0.12 + 1e-12);
}

TEST(Statistics, EqualDifferencesGiveThatValue) {
  const std::vector<double> values(12, 0.25);
  const auto estimate = estimate_middle(values, 0.025, 0.025);
  EXPECT_DOUBLE_EQ(estimate.center, 0.25);
  EXPECT_DOUBLE_EQ(estimate.low, 0.25);
  EXPECT_DOUBLE_EQ(estimate.high, 0.25);
}

TEST(Statistics, OfManyDifferencesTheIntervalGoesOnWhereThatOfFewerEnds) {
  const auto interval_of = [](int count) {  // Even steps from 0 to 1.
    std::vector<double> values;
    for (int i = 0; i < count; ++i) values.push_back((i + 0.5) / count);
    return estimate_middle(values, 0.025, 0.025);
  };
  const auto exact = interval_of(200), normal = interval_of(201);
  EXPECT_NEAR(normal.center, 0.5, 0.005);
  EXPECT_NEAR(normal.low, exact.low, 0.005);
  EXPECT_NEAR(normal.high, exact.high, 0.005);
  EXPECT_LT(exact.low, 0.48);  // The mean of 200 has a standard deviation of 0.02.
  EXPECT_GT(exact.high, 0.52);
  const auto many = interval_of(2000);
  EXPECT_NEAR((many.high - many.low) / (exact.high - exact.low), std::sqrt(0.1), 0.02);
}

// Differences of log times: heavy tails, and bursts that hit either side.
double noisy_difference(std::mt19937_64& random) {
  std::uniform_real_distribution<double> uniform;
  const auto log_time = [&] {
    const double burst = uniform(random) < 0.1 ? 1.2 + 0.3 * uniform(random) : 1.0;
    return std::log(burst * std::max(0.5, 1 + 0.03 * std::student_t_distribution<double>(3)(random)));
  };
  const double first = log_time();
  return first - log_time();
}

TEST(Statistics, IntervalsHoldTheTruthAsOftenAsTheySayUnderBursts) {
  std::mt19937_64 random(3);
  for (const int count : {3, 5, 8, 12, 20}) {
    const int runs = 4000;
    int below = 0, above = 0;
    for (int run = 0; run < runs; ++run) {
      std::vector<double> values;
      for (int i = 0; i < count; ++i) values.push_back(noisy_difference(random));
      const auto estimate = estimate_middle(values, 0.025, 0.025);
      below += 0 < estimate.low;
      above += 0 > estimate.high;
    }
    // Three standard deviations of a share of 2.5 % in 4,000 runs are 0.74 %.
    EXPECT_LE(below, runs * 0.0325) << count;
    EXPECT_LE(above, runs * 0.0325) << count;
  }
}

TEST(Statistics, MedianIsTheMiddleOrTheMeanOfTheTwo) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(median({7}), 7);
}

}  // namespace
}  // namespace headrace
