#include "insight/tune/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "insight/tune/fake_job.h"

namespace headrace {
namespace {

const Settings kOn = {{"knob", "true"}};

// The share of trials with a outcome, where the true gain is `gain` and blocks have heavy-tailed noise and bursts.
struct Shares {
  double pays = 0, no_gain = 0, slower = 0, covered = 0;
};

Shares simulate_trials(double gain, int runs) {
  std::mt19937_64 random(11);
  std::uniform_real_distribution<double> uniform;
  const auto log_time = [&] {
    const double burst = uniform(random) < 0.05 ? 1.2 + 0.3 * uniform(random) : 1.0;
    return std::log(burst * std::max(0.5, 1 + 0.017 * std::student_t_distribution<double>(3)(random)));
  };
  Shares shares;
  for (int run = 0; run < runs; ++run) {
    std::vector<double> ratios;
    Reading reading;
    for (const std::int64_t look : kLooks) {
      while (static_cast<std::int64_t>(ratios.size()) < look) {
        const double first = log_time();
        ratios.push_back(std::log1p(gain) + first - log_time());
      }
      reading = judge_trial(ratios, 0.02);
      if (reading.outcome != Outcome::open) break;
    }
    shares.pays += (reading.outcome == Outcome::pays) / static_cast<double>(runs);
    shares.no_gain += (reading.outcome == Outcome::no_gain) / static_cast<double>(runs);
    shares.slower += (reading.outcome == Outcome::slower) / static_cast<double>(runs);
    const bool covered = reading.log_gain.low <= std::log1p(gain) && std::log1p(gain) <= reading.log_gain.high;
    shares.covered += covered / static_cast<double>(runs);
  }
  return shares;
}

TEST(Comparison, PeekingKeepsAWorthlessChangeInNoMoreThanOneTrialOfForty) {
  // A gain of exactly gain_min is the hardest case of those that must not be kept. Expected 0.0223; three standard
  // deviations of 8,000 runs are 0.0049.
  const auto shares = simulate_trials(0.02, 8000);
  EXPECT_LT(shares.pays, 0.027);
  EXPECT_GT(shares.pays, 0.015);  // A test that never keeps anything would pass, too.
}

TEST(Comparison, FindsGainsAndLossesThatAreThere) {
  EXPECT_GT(simulate_trials(0.10, 2000).pays, 0.99);
  const auto slower = simulate_trials(-0.05, 2000);
  EXPECT_GT(slower.slower + slower.no_gain, 0.99);
  const auto nothing = simulate_trials(0, 2000);
  EXPECT_LT(nothing.pays, 0.005);
  EXPECT_GT(nothing.no_gain, 0.8);
}

TEST(Comparison, PrintedIntervalHoldsTheTruthInSpiteOfEarlyStops) {
  for (const double gain : {-0.05, 0.0, 0.05, 0.10}) EXPECT_GT(simulate_trials(gain, 4000).covered, 0.94) << gain;
}

TEST(Comparison, NothingIsKeptBeforeTheRankTestCanSayIt) {
  const std::vector<double> seven(7, std::log(2.0));
  EXPECT_EQ(judge_trial(seven, 0.02).outcome, Outcome::open);
  const std::vector<double> eight(8, std::log(2.0));
  EXPECT_EQ(judge_trial(eight, 0.02).outcome, Outcome::pays);
}

TEST(Comparison, AGrosslySlowerChangeIsRefusedAfterThreePairs) {
  const std::vector<double> three = {-1.0, -1.05, -0.98};
  EXPECT_EQ(judge_trial(three, 0.02).outcome, Outcome::slower);
  const std::vector<double> with_burst = {-0.02, 0.01, -0.3};
  EXPECT_EQ(judge_trial(with_burst, 0.02).outcome, Outcome::open);
}

TEST(Comparison, AKeptChangeMustBeWorthGainMinWhenJudgedAgain) {
  std::vector<double> tiny;
  for (int i = 0; i < 12; ++i) tiny.push_back(0.005 + 0.0001 * i);
  EXPECT_EQ(judge_again(tiny, 0.02).outcome, Outcome::no_gain);
  EXPECT_EQ(judge_again(tiny, 0.001).outcome, Outcome::pays);
}

TEST(Comparison, OrderWithinPairsIsBalancedAndDrawn) {
  std::vector<std::string> orders;
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    FakeJob job({}, {{"knob", {}}}, 1);
    Comparison comparison(job, {}, kOn, {1, 2}, 0, seed, 0);
    std::string order;
    for (int pair = 0; pair < 40; ++pair) {
      ASSERT_FALSE(comparison.measure_pair());
      order += job.configured[job.configured.size() - 2].empty() ? 'A' : 'B';
      EXPECT_NE(job.configured[job.configured.size() - 2], job.configured.back());
    }
    EXPECT_EQ(std::count(order.begin(), order.end(), 'A'), 20) << order;
    for (int pair = 0; pair < 40; pair += 2) EXPECT_NE(order[pair], order[pair + 1]) << order;
    orders.push_back(order);
  }
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

}  // namespace
}  // namespace headrace
