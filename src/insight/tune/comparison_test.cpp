#include "insight/tune/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "insight/tune/fake_job.h"

namespace headrace {
namespace {

const Settings kOn = {{"knob", "true"}};

TEST(Comparison, OrderOfEachPairIsDrawnByItself) {
  std::vector<std::string> orders;
  std::int64_t first_leads = 0, same_as_before = 0;
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    FakeJob job({}, {{"knob", {}}}, 1);
    Comparison comparison(job, {}, kOn, {1, 2}, 0, seed, 0);
    std::string order;
    for (int pair = 0; pair < 100; ++pair) {
      ASSERT_FALSE(comparison.measure_pair());
      order += job.configured[job.configured.size() - 2].empty() ? 'A' : 'B';
      EXPECT_NE(job.configured[job.configured.size() - 2], job.configured.back());
    }
    first_leads += std::count(order.begin(), order.end(), 'A');
    for (int pair = 1; pair < 100; ++pair) same_as_before += order[pair] == order[pair - 1];
    orders.push_back(order);
  }
  // Of 400 and 396 fair coins; five standard deviations are 50.
  EXPECT_NEAR(static_cast<double>(first_leads), 200, 50);
  EXPECT_NEAR(static_cast<double>(same_as_before), 198, 50);
  EXPECT_THAT(orders, testing::Not(testing::Each(orders.front())));
}

TEST(Comparison, BothArmsStartEachBlockFromTheSnapshot) {
  FakeJob job({}, {{"knob", {}}}, 1);
  Comparison comparison(job, {}, kOn, {2, 3}, 0, 1, 0);
  for (int pair = 0; pair < 5; ++pair) ASSERT_FALSE(comparison.measure_pair());
  EXPECT_EQ(job.restores, 10);
  EXPECT_EQ(job.steps_run, 10 * (2 + 3));
  EXPECT_EQ(job.position, 2 + 3);
  EXPECT_EQ(comparison.pairs(), 5);
  EXPECT_EQ(comparison.first_s().size(), 5u);
  EXPECT_EQ(comparison.second_s().size(), 5u);
}

TEST(Comparison, RatioIsThatOfSecondsAStep) {
  FakeJob job({.noise = 0, .burst_probability = 0}, {{"knob", {.time_factor = 0.5}}}, 1);
  Comparison comparison(job, {}, kOn, {1, 4}, 0, 1, 0);
  ASSERT_FALSE(comparison.measure_pair());
  EXPECT_NEAR(comparison.first_s().front(), 0.04, 1e-12);
  EXPECT_NEAR(comparison.second_s().front(), 0.02, 1e-12);
  EXPECT_NEAR(comparison.log_ratios().front(), std::log(2.0), 1e-12);
}

TEST(Comparison, AChangeThatPaysLateCountsAsSlowUntilThen) {
  FakeJob job({.noise = 0, .burst_probability = 0}, {{"knob", {.time_factor = 0.25}}}, 1);
  Comparison comparison(job, {}, kOn, {1, 4}, 0.5, 1, 0);
  ASSERT_FALSE(comparison.measure_pair());
  ASSERT_FALSE(comparison.measure_pair());
  EXPECT_NEAR(comparison.second_s().front(), 0.01, 1e-12);
  // Half of the run at 40 ms a step, half at 10.
  EXPECT_NEAR(comparison.second_run_s().front(), 0.025, 1e-12);
  EXPECT_NEAR(comparison.log_ratios().front(), std::log(1.6), 1e-12);
  EXPECT_EQ(job.steps_run, 5 + 4 * 5);  // The first block brings the change into effect.
}

TEST(Comparison, AFaultNamesItsArmAndItsPairDoesNotCount) {
  FakeJob job({}, {{"knob", {.throw_probability = 1}}}, 1);
  Comparison comparison(job, {}, kOn, {1, 2}, 0, 1, 0);
  const auto fault = comparison.measure_pair();
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->arm, Arm::second);
  EXPECT_EQ(fault->fault.message, "fake: knob broke");  // The first line alone.
  EXPECT_EQ(comparison.pairs(), 0);
  Comparison turned(job, kOn, {}, {1, 2}, 0, 1, 0);
  const auto turned_fault = turned.measure_pair();
  ASSERT_TRUE(turned_fault);
  EXPECT_EQ(turned_fault->arm, Arm::first);
}

double seconds_of_blocks(const FakeJob& job, const Settings& settings) {
  double sum = 0;
  for (const auto& [in_force, step_s] : job.split_blocks) {
    for (const double time_s : step_s) sum += in_force == settings ? time_s : 0;
  }
  return sum;
}

TEST(Comparison, SplitsAreOfTheStepsWhoseTimesItComparesAndOfNoOthers) {
  FakeJob job({}, {{"knob", {.time_factor = 0.5}}}, 1);
  Comparison comparison(job, {}, kOn, {2, 3}, 0, 1, 0);
  comparison.sum_splits();
  for (int pair = 0; pair < 5; ++pair) ASSERT_FALSE(comparison.measure_pair());
  const auto first = comparison.first_split(), second = comparison.second_split();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->steps, 5 * 3);
  EXPECT_EQ(second->steps, 5 * 3);
  EXPECT_NEAR(first->total_s, seconds_of_blocks(job, {}), 1e-9);
  EXPECT_NEAR(second->total_s, seconds_of_blocks(job, kOn), 1e-9);
  const auto sum = [](const std::vector<double>& block_s) {
    return 3 * std::accumulate(block_s.begin(), block_s.end(), 0.0);
  };
  EXPECT_NEAR(first->total_s, sum(comparison.first_s()), 1e-9);
  EXPECT_NEAR(second->total_s, sum(comparison.second_s()), 1e-9);
  EXPECT_NEAR(first->other_s, 0.05 * first->total_s, 1e-9);
}

TEST(Comparison, ABlockThatTheJobCannotSplitLeavesNoSplit) {
  class SometimesBlind : public FakeJob {
   public:
    SometimesBlind() : FakeJob({}, {{"knob", {}}}, 1) {}
    SplitRun run_split(std::int64_t steps) override {
      SplitRun block = FakeJob::run_split(steps);
      if (split_blocks.size() == 3) block.split.reset();
      return block;
    }
  };
  SometimesBlind job;
  Comparison comparison(job, {}, kOn, {1, 2}, 0, 1, 0);
  comparison.sum_splits();
  ASSERT_FALSE(comparison.measure_pair());
  EXPECT_TRUE(comparison.first_split());
  ASSERT_FALSE(comparison.measure_pair());
  EXPECT_EQ(comparison.pairs(), 2);
  EXPECT_FALSE(comparison.first_split());
  EXPECT_FALSE(comparison.second_split());
  Comparison unasked(job, {}, kOn, {1, 2}, 0, 1, 0);
  ASSERT_FALSE(unasked.measure_pair());
  EXPECT_FALSE(unasked.first_split());
}

class AnswersWith : public FakeJob {
 public:
  explicit AnswersWith(std::vector<double> answer) : FakeJob({}, {}, 1), answer_(std::move(answer)) {}
  std::vector<double> run(std::int64_t) override { return answer_; }

 private:
  std::vector<double> answer_;
};

TEST(Comparison, TimesThatCannotBeAreRefused) {
  for (const double wrong :
       {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    AnswersWith job({0.1, wrong});
    EXPECT_THROW(timed_steps(job, 2), Error) << wrong;
  }
  AnswersWith few({0.1});
  EXPECT_THROW(timed_steps(few, 2), Error);
}

TEST(Comparison, BlocksFitStepsFromMicrosecondsToSeconds) {
  for (const double step_s : {70e-6, 1e-3, 0.04, 0.3, 2.0}) {
    const double share_s = 5.6;
    const auto plan = plan_blocks(step_s, step_s, 0.002, share_s);
    EXPECT_GE(plan.steps, 1) << step_s;
    EXPECT_GE(plan.warmup, 1) << step_s;
    EXPECT_GE(static_cast<double>(plan.steps) * step_s, 0.02) << step_s;
    EXPECT_LE(static_cast<double>(plan.steps) * step_s, std::max(0.5, step_s)) << step_s;
    if (step_s <= 0.04) {
      const double pair_s = 2 * (0.002 + static_cast<double>(plan.warmup + plan.steps) * step_s);
      EXPECT_GE(share_s / pair_s, 11) << step_s;
    }
  }
}

TEST(Comparison, PairsThatWouldDecideAreToldWhereTheyAreKnown) {
  EXPECT_EQ(pairs_needed_text(23), "about 23 pairs more would decide it");
  EXPECT_EQ(pairs_needed_text(1), "about 1 pair more would decide it");
  EXPECT_EQ(pairs_needed_text(std::nullopt), "");
}

}  // namespace
}  // namespace headrace
