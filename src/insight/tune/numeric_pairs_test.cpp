#include "insight/tune/numeric_pairs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr auto kBits = NumericClass::bit_equal;
constexpr auto kRounding = NumericClass::rounding;
constexpr auto kReduced = NumericClass::reduced_precision;

Candidate candidate(const std::string& key, NumericClass numerics) {
  Candidate value;
  value.name = value.key = key;
  value.changes = {{key, "true"}};
  value.numerics = numerics;
  return value;
}

const Candidate kArena = candidate("arena", kBits), kFused = candidate("fused", kRounding),
                kLayout = candidate("layout", kRounding), kBf16 = candidate("bf16", kReduced);

std::vector<NumericPair> pairs(const Candidate& tried, const std::vector<const Candidate*>& kept) {
  return numeric_pairs(tried, kept);
}

TEST(NumericPairs, OfTheFirstChangeIsItAgainstTheJobAsWritten) {
  for (const Candidate* tried : {&kArena, &kFused, &kBf16}) {
    EXPECT_THAT(pairs(*tried, {}), ElementsAre(NumericPair{tried->numerics, {}, tried->changes})) << tried->name;
  }
}

TEST(NumericPairs, WhatIsKeptCountsWithItWhereItIsNoLooser) {
  const Settings both = {{"fused", "true"}, {"layout", "true"}};
  EXPECT_THAT(pairs(kFused, {&kLayout}), ElementsAre(NumericPair{kRounding, {}, both}));
  const Settings all = {{"bf16", "true"}, {"layout", "true"}};
  EXPECT_THAT(pairs(kBf16, {&kLayout}), ElementsAre(NumericPair{kReduced, {}, all}));
}

TEST(NumericPairs, BesideALooserOneItIsJudgedByItselfAndTheWholeByTheLooserClass) {
  const Settings own = {{"fused", "true"}, {"layout", "true"}};
  const Settings all = {{"bf16", "true"}, {"fused", "true"}, {"layout", "true"}};
  EXPECT_THAT(pairs(kFused, {&kBf16, &kLayout}),
              ElementsAre(NumericPair{kRounding, {}, own}, NumericPair{kReduced, {}, all}));
}

TEST(NumericPairs, BitsAreComparedWithWhatIsLooserOnBothSides) {
  const Settings with = {{"arena", "true"}, {"bf16", "true"}};
  EXPECT_THAT(pairs(kArena, {&kBf16}), ElementsAre(NumericPair{kBits, kBf16.changes, with}));
}

TEST(NumericPairs, WhatBatchesHoldAndWhatIsComputedOfThemAreJudgedApart) {
  Candidate loader = candidate("loader", kReduced);
  loader.changes_batches = true;
  EXPECT_THAT(pairs(loader, {&kBf16}), ElementsAre(NumericPair{kReduced, {}, loader.changes}));
  EXPECT_THAT(pairs(kFused, {&loader}), ElementsAre(NumericPair{kRounding, {}, kFused.changes}));
}

TEST(NumericPairs, OfTheSameKeyTheOneThatWasKeptLastCounts) {
  Candidate one = candidate("threads", kBits), two = one;
  two.changes = {{"threads", "2"}};
  EXPECT_EQ(pairs(two, {&one}).at(0).candidate, two.changes);
  EXPECT_THAT(pairs(one, {&one}).at(0).reference, IsEmpty());
}

}  // namespace
}  // namespace headrace
