#include "insight/tune/mean_gradient.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace headrace {
namespace {

MeanGradient mean_of(const std::vector<Fingerprint>& batches) {
  MeanGradient mean;
  for (const Fingerprint& batch : batches) mean.add(batch);
  return mean;
}

TEST(MeanGradient, DistanceOfSetsIsTheRootMeanSquareOverAllWaysToDivideTheBatches) {
  std::mt19937_64 random(1);
  std::uniform_int_distribution<int> small(-9, 9);
  std::vector<Fingerprint> batches;
  for (int batch = 0; batch < 8; ++batch) {
    std::vector<float> weight, bias;
    for (int i = 0; i < 3; ++i) weight.push_back(static_cast<float>(100 + small(random)));
    bias.push_back(static_cast<float>(small(random)));
    batches.push_back({1, {{"weight", weight}, {"bias", bias}}});
  }
  double squares = 0;
  int ways = 0;
  for (std::uint32_t chosen = 0; chosen < 256; ++chosen) {
    if (std::popcount(chosen) != 4) continue;
    MeanGradient in, out;
    for (std::size_t batch = 0; batch < 8; ++batch) ((chosen >> batch) % 2 == 1 ? in : out).add(batches[batch]);
    squares += std::pow(distance(in, out), 2);
    ++ways;
  }
  ASSERT_EQ(ways, 70);
  EXPECT_NEAR(mean_of(batches).distance_of_sets(4), std::sqrt(squares / ways), 1e-9);
}

TEST(MeanGradient, ATensorThatABatchLacksCountsAsZeros) {
  const Fingerprint weight{1, {{"weight", {2, 4}}}}, bias{1, {{"bias", {6}}}};
  const Fingerprint wanted{1, {{"weight", {1, 2}}, {"bias", {3}}}};
  for (const auto& order : {std::vector{weight, bias}, std::vector{bias, weight}}) {
    const MeanGradient mean = mean_of(order);
    EXPECT_EQ(distance(mean, mean_of({wanted})), 0);
    EXPECT_NEAR(mean.distance_of_sets(1), std::sqrt(4 + 16 + 36), 1e-12);
  }
  EXPECT_NEAR(distance(mean_of({weight}), mean_of({bias})), std::sqrt(4 + 16 + 36), 1e-12);
  EXPECT_NEAR(distance(mean_of({bias}), mean_of({weight})), std::sqrt(4 + 16 + 36), 1e-12);
}

TEST(MeanGradient, ATensorOfAnotherSizeIsNamed) {
  const Fingerprint two{1, {{"weight", {2, 4}}}}, three{1, {{"weight", {2, 4, 6}}}};
  const auto message_of = [](const auto& work) -> std::string {
    try {
      work();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::internal);
      return error.what();
    }
    return "accepted";
  };
  const auto of_weight = testing::HasSubstr("gradient of weight has 3 values where another batch has 2");
  EXPECT_THAT(message_of([&] { mean_of({two, three}); }), of_weight);
  EXPECT_THAT(message_of([&] { distance(mean_of({two}), mean_of({three})); }), of_weight);
}

TEST(MeanGradient, WhatWasNotFiniteOnceStaysSo) {
  const Fingerprint fine{1, {{"weight", {2}}}};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto infinite_f = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(mean_of({fine, fine}).is_finite());
  for (const Fingerprint& broken : {Fingerprint{nan, {{"weight", {2}}}}, Fingerprint{1, {{"weight", {infinite_f}}}},
                                    Fingerprint{1, {{"weight", {static_cast<float>(nan)}}}}}) {
    EXPECT_FALSE(mean_of({broken, fine}).is_finite());
    EXPECT_FALSE(mean_of({fine, broken, fine}).is_finite());
  }
}

}  // namespace
}  // namespace headrace
