#include <headrace/duration_histogram.h>
#include <headrace/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace headrace {
namespace {

// As the histogram defines it: of the values in order, the one at floor(share * (count - 1)).
double exact(std::vector<std::int64_t> values, double share) {
  std::sort(values.begin(), values.end());
  return static_cast<double>(values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))]);
}

std::vector<std::int64_t> long_tailed(unsigned seed, int count) {
  std::mt19937_64 draws{seed};
  std::lognormal_distribution<double> durations{12, 3};
  std::vector<std::int64_t> values;
  for (int i = 0; i < count; ++i) values.push_back(std::llround(durations(draws)));
  return values;
}

DurationHistogram of(const std::vector<std::int64_t>& values) {
  DurationHistogram histogram;
  for (const std::int64_t value : values) histogram.add(value);
  return histogram;
}

TEST(DurationHistogram, QuantilesOfALongTailAreWithinTheStatedError) {
  const std::vector<std::int64_t> values = long_tailed(1, 20'000);
  const DurationHistogram histogram = of(values);
  EXPECT_EQ(histogram.count(), 20'000);
  for (const double share : {0.0, 0.01, 0.5, 0.95, 0.99, 0.999, 1.0}) {
    const double wanted = exact(values, share);
    EXPECT_NEAR(histogram.quantile(share).value(), wanted, wanted * DurationHistogram::kRelativeError) << share;
  }
  EXPECT_EQ(histogram.least(), *std::min_element(values.begin(), values.end()));
  EXPECT_EQ(histogram.most(), *std::max_element(values.begin(), values.end()));
}

TEST(DurationHistogram, EveryPowerOfTwoAndItsNeighboursAreWithinTheStatedError) {
  for (int bit = 0; bit < 63; ++bit) {
    for (const std::int64_t beside : {-1, 0, 1}) {
      const std::int64_t value = (std::int64_t{1} << bit) + beside;
      DurationHistogram histogram;
      histogram.add(value);
      const auto wanted = static_cast<double>(value);
      EXPECT_NEAR(histogram.quantile(0.5).value(), wanted, wanted * DurationHistogram::kRelativeError) << value;
      // Between two others far away, so that least and most do not clamp it.
      histogram.add(0);
      histogram.add(std::numeric_limits<std::int64_t>::max());
      EXPECT_NEAR(histogram.quantile(0.5).value(), wanted, wanted * DurationHistogram::kRelativeError) << value;
    }
  }
}

TEST(DurationHistogram, BelowSixtyFourEachValueIsExact) {
  for (std::int64_t value = 0; value < 64; ++value) {
    DurationHistogram histogram = of({0, value, value, value, 1000});
    EXPECT_EQ(histogram.quantile(0.5), static_cast<double>(value));
  }
}

TEST(DurationHistogram, MergedInAnyOrderItIsThatOfAllValues) {
  const std::vector<std::int64_t> first = long_tailed(2, 3000), second = long_tailed(3, 500), third = long_tailed(4, 1);
  std::vector<std::int64_t> all = first;
  all.insert(all.end(), second.begin(), second.end());
  all.insert(all.end(), third.begin(), third.end());
  const DurationHistogram whole = of(all);
  DurationHistogram forward = of(first), backward = of(third);
  forward.merge(of(second));
  forward.merge(of(third));
  backward.merge(of(second));
  backward.merge(of(first));
  for (const DurationHistogram* merged : {&forward, &backward}) {
    EXPECT_EQ(merged->count(), whole.count());
    EXPECT_EQ(merged->least(), whole.least());
    EXPECT_EQ(merged->most(), whole.most());
    for (const double share : {0.1, 0.5, 0.95, 0.99}) EXPECT_EQ(merged->quantile(share), whole.quantile(share));
  }
}

TEST(DurationHistogram, RangesHaveEveryValueOnceBetweenTheirBoundsAndNoGaps) {
  const std::vector<std::int64_t> values = long_tailed(5, 5'000);
  const DurationHistogram histogram = of(values);
  for (const int per_octave : {1, 2, 4, 8, 16, 32}) {
    const std::vector<DurationHistogram::Range> ranges = histogram.ranges(per_octave);
    ASSERT_FALSE(ranges.empty());
    EXPECT_GT(ranges.front().count, 0);
    EXPECT_GT(ranges.back().count, 0);
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const auto& [from, to, count] = ranges[i];
      EXPECT_EQ(from, i > 0 ? ranges[i - 1].to : from);
      EXPECT_EQ(count, std::count_if(values.begin(), values.end(), [from = from, to = to](std::int64_t value) {
                  return from <= value && value < to;
                }));
    }
  }
}

TEST(DurationHistogram, ARangeOfAnOctaveIsAPowerOfTwo) {
  const std::vector<DurationHistogram::Range> ranges = of({0, 31, 32, 63, 1000, 1024}).ranges(1);
  ASSERT_EQ(ranges.size(), 7U);  // Below 32, 64, 128, 256, 512, 1024, 2048.
  EXPECT_EQ(ranges[0].to, 32);
  EXPECT_EQ(ranges[0].count, 2);
  EXPECT_EQ(ranges[1].count, 2);
  EXPECT_EQ(ranges[2].count, 0);
  EXPECT_EQ(ranges[5].count, 1);
  EXPECT_EQ(ranges[6].from, 1024);
  EXPECT_EQ(ranges[6].to, 2048);
  EXPECT_EQ(of({std::numeric_limits<std::int64_t>::max()}).ranges(1).back().to,
            std::numeric_limits<std::int64_t>::max());
}

TEST(DurationHistogram, RangesOfNothingAreNoneAndTheirNumberIsChecked) {
  EXPECT_TRUE(DurationHistogram{}.ranges().empty());
  for (const int per_octave : {-1, 0, 3, 64}) EXPECT_THROW(static_cast<void>(of({1}).ranges(per_octave)), Error);
}

TEST(DurationHistogram, OfNothingIsUnavailableAndNotZero) {
  DurationHistogram histogram;
  histogram.merge({});
  EXPECT_EQ(histogram.count(), 0);
  EXPECT_FALSE(histogram.quantile(0.5) || histogram.mean() || histogram.least() || histogram.most());
}

TEST(DurationHistogram, ATimeBelowZeroCountsAsZeroAndASharesRangeIsChecked) {
  DurationHistogram histogram = of({-5, std::numeric_limits<std::int64_t>::min()});
  EXPECT_EQ(histogram.count(), 2);
  EXPECT_EQ(histogram.mean(), 0.0);
  for (const double share : {-0.1, 1.1, std::nan("")})
    EXPECT_THROW(static_cast<void>(histogram.quantile(share)), Error);
}

}  // namespace
}  // namespace headrace
