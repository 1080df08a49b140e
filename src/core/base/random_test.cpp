#include "core/base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <vector>

namespace headrace {
namespace {

using Words4 = std::array<std::uint32_t, 4>;

TEST(Philox, EqualsThePublishedVectors) {
  // Known answers of the authors' Random123 library, kat_vectors, philox4x32 with 10 rounds.
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(SampleRandom, TheKeyAloneDecidesTheDraws) {
  SampleRandom first{7, 3, 100}, same{7, 3, 100};
  for (int i = 0; i < 100; ++i) ASSERT_EQ(first.next(), same.next());
}

TEST(SampleRandom, SeedEpochAndIndexEachChangeTheDraws) {
  std::set<std::uint32_t> draws;
  for (const std::uint64_t seed : {std::uint64_t{7}, std::uint64_t{7} << 32}) {
    for (const std::int64_t epoch : {0, 1}) {
      for (const std::int64_t index : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1} << 32}) {
        draws.insert(SampleRandom{seed, epoch, index}.next());
      }
    }
  }
  EXPECT_EQ(draws.size(), 12U);
}

TEST(SampleRandom, ACopyDrawsTheSameAgain) {
  SampleRandom random{1, 2, 3};
  random.next();
  SampleRandom copy = random;
  for (int i = 0; i < 10; ++i) ASSERT_EQ(random.next(), copy.next());
}

TEST(SampleRandom, UniformStaysBelowOneAndHasTheRightMean) {
  SampleRandom random{42, 0, 0};
  double sum = 0;
  for (int i = 0; i < 100'000; ++i) {
    const double x = random.uniform();
    ASSERT_GE(x, 0.0);
    ASSERT_LT(x, 1.0);
    sum += x;
  }
  EXPECT_NEAR(sum / 100'000, 0.5, 0.005);  // Five standard deviations; the seed is fixed.
}

TEST(SampleRandom, BelowMeetsEveryValueEquallyOften) {
  SampleRandom random{42, 0, 1};
  std::array<int, 9> counts{};
  for (int i = 0; i < 90'000; ++i) ++counts[random.below(9)];
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 500);
  EXPECT_EQ(random.below(1), 0U);
}

TEST(SampleRandom, BelowRejectsWhatWouldBeDrawnTooOften) {
  // With bound 3 * 2^30 a plain product would hit every third value twice as often as the others.
  SampleRandom random{42, 0, 2};
  const std::uint32_t bound = 3U << 30;
  std::array<int, 3> counts{};
  for (int i = 0; i < 30'000; ++i) ++counts[random.below(bound) % 3];
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 450);
}

TEST(Permutation, MeetsEveryElementOnce) {
  for (const std::int64_t size : {1, 2, 3, 4, 5, 16, 17, 255, 1000, 60'000}) {
    const Permutation order{size, 5, 1};
    std::vector<bool> met(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t element = order(i);
      ASSERT_GE(element, 0);
      ASSERT_LT(element, size);
      ASSERT_FALSE(met[static_cast<std::size_t>(element)]) << size << ": " << element << " twice";
      met[static_cast<std::size_t>(element)] = true;
    }
  }
}

TEST(Permutation, SeedAndEpochEachChangeTheOrder) {
  const auto order = [](std::uint64_t seed, std::int64_t epoch) {
    const Permutation permutation{1000, seed, epoch};
    std::vector<std::int64_t> out;
    for (std::int64_t i = 0; i < 1000; ++i) out.push_back(permutation(i));
    return out;
  };
  EXPECT_EQ(order(1, 1), order(1, 1));
  EXPECT_NE(order(1, 1), order(1, 2));
  EXPECT_NE(order(1, 1), order(2, 1));
}

TEST(Permutation, EveryOrderOfFiveElementsComesEquallyOften) {
  std::map<std::vector<std::int64_t>, int> counts;
  constexpr int kDraws = 24'000;
  for (int seed = 0; seed < kDraws; ++seed) {
    const Permutation permutation{5, static_cast<std::uint64_t>(seed), 0};
    std::vector<std::int64_t> order;
    for (std::int64_t i = 0; i < 5; ++i) order.push_back(permutation(i));
    ++counts[order];
  }
  EXPECT_EQ(counts.size(), 120U);
  double chi_squared = 0;
  for (const auto& [order, count] : counts) chi_squared += (count - 200.0) * (count - 200.0) / 200.0;
  // Mean 119 and standard deviation 15 for equal chances.
  EXPECT_LT(chi_squared, 119 + 5 * 15);
}

TEST(Permutation, NeighboursDoNotStayNeighbours) {
  const Permutation permutation{60'000, 9, 0};
  int close = 0;
  for (std::int64_t i = 1; i < 60'000; ++i) close += std::abs(permutation(i) - permutation(i - 1)) <= 100;
  EXPECT_NEAR(close, 200, 75);  // 60,000 * 200 / 60,000 for a random order.
}

TEST(Permutation, LargeSizesStayInside) {
  const std::int64_t size = (std::int64_t{1} << 40) + 12345;
  const Permutation permutation{size, 3, 4};
  std::set<std::int64_t> seen;
  for (std::int64_t i = 0; i < 1000; ++i) seen.insert(permutation(i * (size / 1000)));
  EXPECT_EQ(seen.size(), 1000U);
  EXPECT_LT(*seen.rbegin(), size);
  EXPECT_GE(*seen.begin(), 0);
}

}  // namespace
}  // namespace headrace
