#include "insight/tune/live_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace headrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto kBits = NumericClass::bit_equal;
constexpr auto kRounding = NumericClass::rounding;
constexpr auto kReduced = NumericClass::reduced_precision;

// Gives the replays that it was told to give.
class ScriptedLoop : public LiveLoop {
 public:
  void apply(const Settings& /*settings*/) override { throw std::logic_error("a gate applies nothing"); }
  Replay replay(const Settings& reference, const Settings& candidate, ReplayUse use) override {
    references.push_back(reference);
    replayed.push_back(candidate);
    uses.push_back(use);
    if (throws) throw std::runtime_error("interrupted");
    if (candidate == reference) return {own};
    return next;
  }
  std::optional<double> distance_between_calls() override { return between; }
  std::optional<std::int64_t> updates_left() override { return std::nullopt; }

  Replay next{ReplayDistance{}};
  std::optional<ReplayDistance> own = ReplayDistance{.bit_equal = true};
  std::optional<double> between = 0.5;
  bool throws = false;
  std::vector<Settings> references, replayed;
  std::vector<ReplayUse> uses;
};

// A change by itself against the loop as written.
std::vector<NumericPair> alone(NumericClass numeric_class, const Settings& changes) {
  return {{numeric_class, {}, changes}};
}

TEST(JudgeReplay, BitEqualNeedsEveryBitOfCallAndUpdate) {
  EXPECT_TRUE(judge_replay(kBits, {.bit_equal = true}, std::nullopt).passed);
  EXPECT_TRUE(judge_replay(kBits, {.bit_equal = true, .update_difference = 0.0}, std::nullopt).passed);
  EXPECT_FALSE(judge_replay(kBits, {.bit_equal = false}, std::nullopt).passed);
  EXPECT_FALSE(judge_replay(kBits, {.bit_equal = true, .update_difference = 1e-12}, std::nullopt).passed);
}

TEST(JudgeReplay, RoundingHasABoundForEachFigure) {
  const auto judge = [](const ReplayDistance& distance) { return judge_replay(kRounding, distance, std::nullopt); };
  EXPECT_TRUE(
      judge({.relative_l2 = 9e-3, .worst_tensor = 0.09, .output_difference = 9e-6, .update_difference = 9e-7}).passed);
  const NumericResult gradients = judge({.relative_l2 = 0.05});
  EXPECT_FALSE(gradients.passed);
  EXPECT_EQ(gradients.measure, "gradients, relative L2");
  EXPECT_EQ(gradients.value, 0.05);
  EXPECT_EQ(gradients.tolerance, 1e-2);
  const NumericResult tensor = judge({.relative_l2 = 5e-3, .worst_tensor = 0.2, .worst_name = "fc.weight"});
  EXPECT_FALSE(tensor.passed);
  EXPECT_EQ(tensor.measure, "gradient of fc.weight, relative L2");
  EXPECT_FALSE(judge({.output_difference = 2e-5}).passed);
  EXPECT_EQ(judge({.update_difference = 6.7e-2}).measure, "update on the same gradients, relative L2");
  EXPECT_FALSE(judge({.update_difference = 6.7e-2}).passed);
}

TEST(JudgeReplay, ThatDrawsWereMadeEqualIsTold) {
  const NumericResult layout = judge_replay(kRounding, {.output_difference = 1e-6, .other_draws = true}, std::nullopt);
  EXPECT_TRUE(layout.passed);
  EXPECT_EQ(layout.measure, "outputs, relative L2, of equal draws");
  EXPECT_EQ(judge_replay(kRounding, {.other_draws = true, .update_difference = 1e-7}, std::nullopt).measure,
            "update on the same gradients, relative L2");  // Which draws nothing.
  EXPECT_THAT(judge_replay(kReduced, {.relative_l2 = 0.1, .other_draws = true}, 1.2).measure,
              testing::EndsWith(", of equal draws"));
}

TEST(JudgeReplay, WhatIsNotFinitePassesNoClass) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(judge_replay(kRounding, {.finite = false}, std::nullopt).passed);
  EXPECT_FALSE(judge_replay(kRounding, {.relative_l2 = nan}, std::nullopt).passed);
  EXPECT_FALSE(judge_replay(kRounding, {.worst_tensor = nan}, std::nullopt).passed);
  EXPECT_FALSE(judge_replay(kReduced, {.relative_l2 = 0.1, .cosine = 0.99, .finite = false}, 0.5).passed);
}

TEST(JudgeReplay, ReducedPrecisionIsMeasuredByHowFarTwoCallsAreApart) {
  EXPECT_TRUE(judge_replay(kReduced, {.relative_l2 = 0.25, .cosine = 0.97}, 1.2).passed);  // bf16 of ResNet-18.
  EXPECT_FALSE(judge_replay(kReduced, {.relative_l2 = 0.25, .cosine = 0.97}, 0.4).passed);
  EXPECT_FALSE(judge_replay(kReduced, {.relative_l2 = 0.1, .cosine = 0.8}, 1.2).passed);
}

TEST(LiveGate, ReplaysInTheOrderInWhichChangesCame) {
  ScriptedLoop loop;
  LiveGate gate(loop);
  EXPECT_FALSE(gate.next());
  gate.expect(3, alone(kRounding, {{"c", "true"}}));
  gate.expect(1, alone(kRounding, {{"a", "true"}}));
  EXPECT_EQ(gate.next(), 3u);
  EXPECT_TRUE(gate.replay_next().numerics.value().passed);
  EXPECT_EQ(gate.next(), 3u);
  gate.pass_next();
  EXPECT_EQ(gate.next(), 1u);
  EXPECT_TRUE(gate.is_waiting(1));
  gate.forget(1);
  EXPECT_FALSE(gate.is_waiting(1));
  EXPECT_FALSE(gate.next());
  const Settings replayed = {{"c", "true"}};
  EXPECT_THAT(loop.replayed, ElementsAre(replayed));
  EXPECT_TRUE(loop.references.at(0).empty());
}

TEST(LiveGate, APairThatPassedIsKnownByItsSettingsAndItsClass) {
  ScriptedLoop loop;
  LiveGate gate(loop);
  const Settings one = {{"a", "true"}}, both = {{"a", "true"}, {"b", "true"}};
  gate.expect(0, alone(kRounding, both));
  gate.pass_next();
  EXPECT_TRUE(gate.has_passed({kRounding, {}, both}));
  EXPECT_FALSE(gate.has_passed({kReduced, {}, both}));
  EXPECT_FALSE(gate.has_passed({kRounding, one, both}));
  EXPECT_FALSE(gate.has_passed({kRounding, {}, one}));
}

TEST(LiveGate, WhatIsAboutToBeProvedComesFirstAndInThePlaceOfWhatItWaitedFor) {
  ScriptedLoop loop;
  LiveGate gate(loop);
  const Settings one = {{"a", "true"}}, other = {{"b", "true"}}, both = {{"a", "true"}, {"b", "true"}};
  gate.expect(0, alone(kRounding, one));
  gate.expect(1, alone(kRounding, other));
  gate.expect_first(1, {{kRounding, one, both}, {kRounding, {}, both}});
  gate.replay_next();
  gate.pass_next();
  EXPECT_EQ(gate.next(), 1u);
  gate.replay_next();
  gate.pass_next();
  EXPECT_EQ(gate.next(), 0u);
  gate.replay_next();
  gate.pass_next();
  EXPECT_FALSE(gate.next());
  EXPECT_THAT(loop.replayed, ElementsAre(both, both, one));
  EXPECT_THAT(loop.references, ElementsAre(one, Settings{}, Settings{}));
}

TEST(LiveGate, WhetherTheCallCanBeReplayedAtAllIsAskedOfTheReference) {
  ScriptedLoop loop;
  loop.next = {std::nullopt, {ErrorCode::unsupported, "parameters share memory"}};
  EXPECT_TRUE(can_replay_call(loop));
  loop.own.reset();
  EXPECT_FALSE(can_replay_call(loop));
}

TEST(LiveGate, ReducedPrecisionWaitsForASecondCall) {
  ScriptedLoop loop;
  loop.between.reset();
  LiveGate gate(loop);
  gate.expect(0, alone(kRounding, {{"a", "true"}}));
  gate.expect(1, alone(kReduced, {{"b", "true"}}));
  EXPECT_TRUE(gate.is_ready());
  gate.pass_next();
  EXPECT_FALSE(gate.is_ready());
  loop.between = 0.5;
  EXPECT_TRUE(gate.is_ready());
  EXPECT_EQ(gate.replay_next().numerics->numeric_class, kReduced);
}

TEST(LiveGate, AReplayThatFailedSaysWhyAndOneThatThrewIsStillNext) {
  ScriptedLoop loop;
  loop.next = {std::nullopt, {ErrorCode::out_of_memory, "needs 3 GiB, 1 GiB is free"}};
  LiveGate gate(loop);
  gate.expect(0, alone(kRounding, {{"a", "true"}}));
  loop.throws = true;
  EXPECT_THROW(gate.replay_next(), std::runtime_error);
  EXPECT_EQ(gate.next(), 0u);
  loop.throws = false;
  const auto finding = gate.replay_next();
  EXPECT_FALSE(finding.numerics);
  EXPECT_EQ(finding.failure.code, ErrorCode::out_of_memory);
  EXPECT_THAT(finding.failure.sentence, HasSubstr("3 GiB"));
}

TEST(LiveGate, WhetherTheLoopRepeatsItsOwnBitsIsAskedOnce) {
  ScriptedLoop loop;
  loop.own->bit_equal = false;
  LiveGate gate(loop);
  for (std::size_t change = 0; change < 3; ++change) gate.expect(change, alone(kBits, {{"a", "true"}}));
  for (std::size_t change = 0; change < 3; ++change) {
    EXPECT_THAT(gate.replay_next().numerics->measure, HasSubstr("the loop does not repeat its own bits either"));
    gate.forget(change);
  }
  EXPECT_EQ(loop.replayed.size(), 4u);
}

TEST(ReplayTimes, TheFirstPairIsNotCounted) {
  ScriptedLoop loop;
  loop.own->seconds = 0.3;
  loop.next.distance->seconds = 2.0;
  ReplayTimes times(loop, kReduced, {{"a", "true"}}, 0.02, 1);
  EXPECT_FALSE(times.replay_pair(1));
  EXPECT_EQ(times.record().pairs(), 0);
  loop.next.distance->seconds = 0.2;
  for (std::int64_t number = 2; !times.is_done(); ++number) EXPECT_FALSE(times.replay_pair(number));
  EXPECT_EQ(times.record().pairs(), ReplayTimes::kPairs);
  EXPECT_NEAR(times.record().gain()->median, 0.5, 1e-9);
  EXPECT_TRUE(times.numerics().checked);
}

TEST(ReplayTimes, TheFirstPairComparesInFullPrecisionAndTheOthersAreTimedAsTheLoopComputes) {
  ScriptedLoop loop;
  loop.own->seconds = 0.3;
  loop.next.distance->seconds = 0.2;
  ReplayTimes times(loop, kRounding, {{"a", "true"}}, 0.02, 1);
  EXPECT_FALSE(times.replay_pair(1));
  EXPECT_THAT(loop.uses, ElementsAre(ReplayUse::compare, ReplayUse::compare));
  EXPECT_TRUE(times.numerics().passed);
  loop.next.distance->output_difference = 1e-3;  // As TF32 rounds.
  EXPECT_FALSE(times.replay_pair(2));
  EXPECT_THAT(loop.uses, ElementsAre(ReplayUse::compare, ReplayUse::compare, ReplayUse::time, ReplayUse::time));
  EXPECT_TRUE(times.numerics().passed);
}

TEST(ReplayTimes, FailuresAndTimesThatAreNoneEndIt) {
  ScriptedLoop loop;
  ReplayTimes times(loop, kRounding, {{"a", "true"}}, 0.02, 1);
  EXPECT_FALSE(times.replay_pair(1));
  const auto no_time = times.replay_pair(2);  // Both took 0 s.
  ASSERT_TRUE(no_time);
  EXPECT_THAT(no_time->sentence, HasSubstr("0 s"));
  loop.next = {std::nullopt, {ErrorCode::internal, "no kernel"}};
  EXPECT_EQ(times.replay_pair(3)->sentence, "no kernel");
}

}  // namespace
}  // namespace headrace
