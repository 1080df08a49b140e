#include "insight/compare/run_pairs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "core/base/error_of.h"
#include "insight/compare/output_guard.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using Metrics = std::map<std::string, double>;

RunFigures run(Metrics metrics, std::map<std::string, double> stage_s = {}, std::vector<double> outputs = {}) {
  return {.metrics = std::move(metrics), .stage_s = std::move(stage_s), .outputs = std::move(outputs)};
}

// Noise of a thousandth, the same every time.
class Noise {
 public:
  double next() { return 1 + 0.001 * normal_(random_); }

 private:
  std::mt19937_64 random_{7};
  std::normal_distribution<double> normal_;
};

// Pairs until they are settled, 40 at most; `after` of NEW where the old one has `before`.
RunPairs settled(const Metrics& before, const Metrics& after, MetricChoices choices = {}) {
  RunPairs pairs(std::move(choices));
  Noise noise;
  while (!pairs.is_settled() && pairs.pairs() < 40) {
    Metrics old_run = before, new_run = after;
    for (auto& [name, value] : old_run) value *= noise.next();
    for (auto& [name, value] : new_run) value *= noise.next();
    pairs.add(run(old_run), run(new_run));
  }
  return pairs;
}

MetricChange change_of_metric(const RunPairs& pairs, const std::string& name) {
  for (const MetricVerdict& metric : pairs.verdict().metrics) {
    if (metric.rule.name == name) return metric.change;
  }
  ADD_FAILURE() << "no " << name;
  return MetricChange::missing;
}

// Each metric that a requirement names, by itself.
TEST(RunPairs, EachMetricFailsByItself) {
  const Metrics before{{"step_p50_s", 0.1},        {"step_p95_s", 0.2}, {"step_p99_s", 0.3}, {"samples_per_s", 500},
                       {"peak_memory_bytes", 1e9}, {"hit_rate", 0.8},   {"accuracy", 0.9},   {"tracing_overhead", 1.1}};
  for (const auto& [name, value] : before) {
    Metrics after = before;
    const bool is_more_better = rule_of(name, {}).better == Better::higher;
    after[name] = value * (is_more_better ? 0.9 : 1.1);
    const RunPairs pairs = settled(before, after);
    EXPECT_EQ(change_of_metric(pairs, name), MetricChange::regressed) << name;
    EXPECT_LT(pairs.pairs(), 25) << name;
    const CompareVerdict verdict = pairs.verdict();
    EXPECT_TRUE(verdict.is_failure());
    EXPECT_EQ(std::count_if(verdict.metrics.begin(), verdict.metrics.end(),
                            [](const MetricVerdict& metric) { return metric.change == MetricChange::regressed; }),
              1)
        << name;
  }
}

TEST(RunPairs, TheSameIsEquivalentAndSettledSoon) {
  const RunPairs pairs = settled({{"step_p50_s", 0.1}, {"accuracy", 0.9}}, {{"step_p50_s", 0.1}, {"accuracy", 0.9}});
  EXPECT_EQ(change_of_metric(pairs, "step_p50_s"), MetricChange::equivalent);
  EXPECT_EQ(change_of_metric(pairs, "accuracy"), MetricChange::equivalent);
  EXPECT_FALSE(pairs.verdict().is_failure());
  EXPECT_LT(pairs.pairs(), 30);
}

TEST(RunPairs, BetterIsImprovedAndNoFailure) {
  const RunPairs pairs = settled({{"samples_per_s", 100}}, {{"samples_per_s", 110}});
  EXPECT_EQ(change_of_metric(pairs, "samples_per_s"), MetricChange::improved);
  EXPECT_FALSE(pairs.verdict().is_failure());
  const Interval change = *pairs.verdict().metrics.front().interval;
  EXPECT_NEAR(change.median, 0.1, 0.005);
  EXPECT_LT(change.low, change.high);
}

TEST(RunPairs, WorseByLessThanTheToleranceIsEquivalent) {
  const MetricChoices wide{.only = {}, .higher_is_better = {}, .absolute = {}, .tolerances = {{"step_p50_s", 0.2}}};
  EXPECT_EQ(change_of_metric(settled({{"step_p50_s", 1}}, {{"step_p50_s", 1.1}}, wide), "step_p50_s"),
            MetricChange::equivalent);
  EXPECT_EQ(change_of_metric(settled({{"step_p50_s", 1}}, {{"step_p50_s", 1.1}}), "step_p50_s"),
            MetricChange::regressed);
}

TEST(RunPairs, WhatScattersTooMuchIsInconclusiveWithThePairsThatItNeeds) {
  RunPairs pairs({});
  for (int pair = 0; pair < 10; ++pair) {
    const double effect = pair % 2 == 0 ? 0.2 : -0.2;
    pairs.add(run({{"step_p50_s", 1}}), run({{"step_p50_s", std::exp(effect)}}));
  }
  const CompareVerdict verdict = pairs.verdict();
  EXPECT_EQ(verdict.metrics.front().change, MetricChange::inconclusive);
  EXPECT_FALSE(verdict.is_settled());
  EXPECT_FALSE(verdict.is_failure());
  EXPECT_NEAR(verdict.metrics.front().scatter, 1.4826 * 0.2, 1e-9);
  // 13 * (scatter / log 1.02)^2, less the ten.
  EXPECT_NEAR(static_cast<double>(verdict.metrics.front().pairs_needed.value()), 2904, 30);
}

TEST(RunPairs, AMetricThatTheNewArmDoesNotTellIsAFailure) {
  RunPairs pairs({});
  pairs.add(run({{"a", 1}, {"b", 1}}), run({{"b", 1}}));
  EXPECT_TRUE(pairs.is_settled());
  EXPECT_EQ(change_of_metric(pairs, "a"), MetricChange::missing);
  EXPECT_TRUE(pairs.verdict().is_failure());
}

TEST(RunPairs, AMetricThatStopsBeingToldIsAFailure) {
  RunPairs pairs({});
  pairs.add(run({{"a", 1}, {"b", 1}}), run({{"a", 1}, {"b", 1}}));
  EXPECT_FALSE(pairs.is_settled());
  pairs.add(run({{"a", 1}, {"b", 1}}), run({{"b", 1}}));
  EXPECT_EQ(change_of_metric(pairs, "a"), MetricChange::missing);
}

TEST(RunPairs, AMetricThatWasAskedForAndNobodyTellsIsAFailure) {
  RunPairs pairs({.only = {"a", "hit_rate"}, .higher_is_better = {}, .absolute = {}, .tolerances = {}});
  pairs.add(run({{"a", 1}, {"b", 1}}), run({{"a", 1}, {"b", 2}}));
  EXPECT_EQ(change_of_metric(pairs, "hit_rate"), MetricChange::missing);
  EXPECT_EQ(pairs.verdict().metrics.size(), 2) << "b was not asked for";
}

TEST(RunPairs, TheOnlyMetricThatWasAskedForIsMissingToo) {
  RunPairs pairs({.only = {"accuracy"}, .higher_is_better = {}, .absolute = {}, .tolerances = {}});
  pairs.add(run({{"a", 1}, {"accuracy", 0.9}}), run({{"a", 1}}));
  EXPECT_TRUE(pairs.is_settled());
  EXPECT_EQ(change_of_metric(pairs, "accuracy"), MetricChange::missing);
  EXPECT_TRUE(pairs.verdict().is_failure());
}

TEST(RunPairs, WhatTheNewArmAloneTellsIsARemark) {
  RunPairs pairs({});
  pairs.add(run({{"a", 1}}), run({{"a", 1}, {"c", 1}}));
  EXPECT_FALSE(pairs.verdict().is_failure());
  EXPECT_THAT(pairs.verdict().remarks, testing::ElementsAre(HasSubstr("c is told by NEW alone")));
}

TEST(RunPairs, WhatIsSeenFromOutsideMayBeMissed) {
  RunPairs pairs({});
  RunFigures seen = run({{"a", 1}, {"peak_memory_bytes", 5}});
  seen.seen_from_outside = {"peak_memory_bytes"};
  pairs.add(seen, seen);
  pairs.add(seen, run({{"a", 1}}));
  EXPECT_FALSE(pairs.verdict().is_failure());
  EXPECT_EQ(pairs.verdict().metrics.size(), 1);
  EXPECT_THAT(pairs.verdict().remarks, testing::ElementsAre(HasSubstr("peak_memory_bytes was seen from outside")));
}

RunFigures without_cache(Metrics metrics) {
  RunFigures figures = run(std::move(metrics));
  figures.not_applicable = {{"hit_rate", "looked for no sample in a cache"}};
  return figures;
}

TEST(RunPairs, ACacheThatIsSwitchedOffIsARemarkAndNoFailure) {
  RunPairs off({}), on({});
  off.add(run({{"a", 1}, {"hit_rate", 0.8}}), without_cache({{"a", 1}}));
  on.add(without_cache({{"a", 1}}), run({{"a", 1}, {"hit_rate", 0.8}}));
  for (const auto& [pairs, arm] : {std::pair{&off, "NEW"}, std::pair{&on, "OLD"}}) {
    const CompareVerdict verdict = pairs->verdict();
    EXPECT_FALSE(verdict.is_failure());
    EXPECT_EQ(verdict.metrics.size(), 1);
    EXPECT_THAT(verdict.remarks, testing::ElementsAre(HasSubstr(std::string("hit_rate is not compared: ") + arm)));
  }
}

TEST(RunPairs, NothingIsSaidOfACacheThatNeitherArmHas) {
  RunPairs pairs({});
  pairs.add(without_cache({{"a", 1}}), without_cache({{"a", 1}}));
  EXPECT_TRUE(pairs.verdict().remarks.empty());
}

TEST(RunPairs, AHitRateThatWasAskedForIsARemarkOrTheReasonWhyThereIsNoVerdict) {
  const MetricChoices both{.only = {"a", "hit_rate"}, .higher_is_better = {}, .absolute = {}, .tolerances = {}};
  RunPairs pairs(both);
  pairs.add(run({{"a", 1}, {"hit_rate", 0.8}}), without_cache({{"a", 1}}));
  EXPECT_FALSE(pairs.verdict().is_failure());
  EXPECT_THAT(pairs.verdict().remarks, testing::ElementsAre(HasSubstr("hit_rate is not compared")));
  RunPairs alone({.only = {"hit_rate"}, .higher_is_better = {}, .absolute = {}, .tolerances = {}});
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] {
                         alone.add(run({{"hit_rate", 0.8}}), without_cache({{"a", 1}}));
                       }),
              HasSubstr("hit_rate is not compared: NEW looked for no sample in a cache"));
}

TEST(RunPairs, AHitRateThatNobodyExplainsIsMissing) {
  RunPairs pairs({});
  pairs.add(run({{"a", 1}, {"hit_rate", 0.8}}), run({{"a", 1}}));
  EXPECT_EQ(change_of_metric(pairs, "hit_rate"), MetricChange::missing);
}

TEST(RunPairs, WhereNoMetricIsLeftThereIsNoVerdict) {
  RunPairs pairs({});
  RunFigures seen = run({{"peak_memory_bytes", 5}});
  seen.seen_from_outside = {"peak_memory_bytes"};
  pairs.add(seen, seen);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { pairs.add(seen, run({})); }),
              HasSubstr("no metric is told by every run"));
}

TEST(RunPairs, ArmsThatShareNoMetricAreRefused) {
  RunPairs pairs({});
  const std::string message = error_of(ErrorCode::invalid_argument, [&] {
    pairs.add(run({{"a", 1}}), run({{"b", 1}}));
  });
  EXPECT_THAT(message, HasSubstr("no metric in common; OLD tells a, NEW b"));
  error_of(ErrorCode::invalid_argument, [] { RunPairs({}, 0); });
  error_of(ErrorCode::invalid_argument, [] { RunPairs({}, 1); });
}

TEST(RunPairs, TheStageThatHasChangedIsNamedFirst) {
  RunPairs pairs({});
  Noise noise;
  for (int pair = 0; pair < 20; ++pair) {
    const auto stages = [&](double forward_s) {
      return std::map<std::string, double>{
          {"data_wait", 0.3 * noise.next()}, {"forward", forward_s * noise.next()}, {"backward", 0.5 * noise.next()}};
    };
    pairs.add(run({{"step_p50_s", 1}}, stages(0.2)), run({{"step_p50_s", 1.05}}, stages(0.25)));
  }
  const std::vector<StageChange> stages = pairs.verdict().stages;
  ASSERT_EQ(stages.size(), 3);
  EXPECT_EQ(stages.front().name, "forward");
  EXPECT_TRUE(stages.front().has_changed);
  EXPECT_NEAR(stages.front().share.median, 0.05, 0.002) << "of the whole step";
}

TEST(RunPairs, FasterAndWrongIsAFailure) {
  RunPairs pairs({});
  for (int pair = 0; pair < 3; ++pair) {
    pairs.add(run({{"step_p50_s", 1}}, {}, {1, 2, 3}), run({{"step_p50_s", 0.5}}, {}, {1, 2, 3.01}));
  }
  EXPECT_TRUE(pairs.verdict().is_failure());
  EXPECT_TRUE(pairs.is_settled());
  EXPECT_THAT(pairs.verdict().wrong_outputs, HasSubstr("differ by 0.0033 of the largest one"));
}

TEST(OutputGuard, WhatRunsOfOneBuildDifferByIsNoFault) {
  OutputGuard guard;
  for (const double off : {0.0, 0.001, -0.001, 0.0, 0.0, 0.0, 0.0, 0.0}) guard.add({1 + off, 2}, {1 - off, 2.002});
  EXPECT_TRUE(guard.is_judged());
  EXPECT_EQ(guard.fault(), "");
  guard.add({1, 2}, {1, 2.1});
  EXPECT_THAT(guard.fault(), HasSubstr("at most 0.004 was wanted, as runs of OLD differ by 0.001"));
}

TEST(OutputGuard, RunsThatDifferAreJudgedAfterEightPairs) {
  OutputGuard guard;
  for (int pair = 0; pair < 7; ++pair) guard.add({1, 2 + 0.001 * pair}, {1, 3});
  EXPECT_FALSE(guard.is_judged());
  EXPECT_EQ(guard.fault(), "");
  CompareVerdict verdict;
  guard.tell(verdict);
  EXPECT_FALSE(verdict.has_outputs) << "that is no pass";
  EXPECT_THAT(verdict.remarks, testing::ElementsAre(HasSubstr("outputs were not judged: 7 pairs tell them")));
  guard.add({1, 2}, {1, 3});
  EXPECT_THAT(guard.fault(), HasSubstr("outputs of NEW differ"));
}

// Of runs that differ among themselves; the outputs of NEW are drawn as those of OLD.
TEST(OutputGuard, TheSameBuildIsNotCalledWrong) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal(1, 0.01);
  int wrong = 0;
  for (int comparison = 0; comparison < 500; ++comparison) {
    OutputGuard guard;
    for (int pair = 0; pair < 30 && guard.fault().empty(); ++pair) {
      const double before = normal(random), after = normal(random);
      guard.add({before}, {after});
    }
    wrong += !guard.fault().empty();
  }
  EXPECT_LE(wrong, 2);
}

TEST(RunPairs, OutputsThatAreNotJudgedYetLeaveItOpen) {
  RunPairs pairs({.only = {}, .higher_is_better = {}, .absolute = {}, .tolerances = {{"step_p50_s", 0.2}}});
  const RunFigures same = run({{"step_p50_s", 1}}, {}, {1});
  pairs.add(run({{"step_p50_s", 1}}, {}, {1.01}), same);
  while (!pairs.is_settled() && pairs.pairs() < 40) pairs.add(same, same);
  EXPECT_EQ(pairs.pairs(), 8) << "equivalent after six";
  EXPECT_TRUE(pairs.verdict().has_outputs);
  EXPECT_FALSE(pairs.verdict().is_failure());
}

// Nine metrics of which each is worse by less than matters must not lend their evidence to a tenth.
TEST(RunPairs, WhatCannotBeCalledLendsNoEvidence) {
  std::vector<PairedMetric> metrics;
  for (int i = 0; i < 10; ++i) metrics.emplace_back(rule_of("metric" + std::to_string(i), {}));
  for (int pair = 0; pair < 12; ++pair) {
    for (std::size_t i = 0; i < 10; ++i) metrics[i].add_effect(i < 9 ? 0.015 : 0.1);
  }
  EXPECT_GT(metrics[9].evidence_worse(), 100) << "what each of ten that are called would need";
  EXPECT_LT(metrics[9].evidence_worse(), 1000) << "what one needs of ten metrics, worse or better: 20 / 0.02";
  EXPECT_EQ(metrics[0].evidence_worse(), 0);
  EXPECT_EQ(decide(metrics, 0.02)[9], MetricChange::inconclusive);
}

TEST(RunPairs, DifferencesAreJudgedInUnitsOfTheirTolerance) {
  for (const double unit : {1e-6, 1.0, 1000.0}) {
    const MetricChoices choices{
        .only = {}, .higher_is_better = {}, .absolute = {"depth"}, .tolerances = {{"depth", 50 * unit}}};
    RunPairs same(choices), worse(choices);
    for (int pair = 0; pair < 20; ++pair) {
      const double off = pair % 2 == 0 ? unit : -unit;
      same.add(run({{"depth", 10 * unit}}), run({{"depth", 10 * unit + off}}));
      worse.add(run({{"depth", 10 * unit}}), run({{"depth", 110 * unit + off}}));
    }
    EXPECT_EQ(change_of_metric(same, "depth"), MetricChange::equivalent) << unit;
    EXPECT_EQ(change_of_metric(worse, "depth"), MetricChange::regressed) << unit;
  }
}

TEST(OutputGuard, AnotherNumberOfOutputsIsAFaultAtOnce) {
  OutputGuard guard;
  guard.add({1, 2}, {1});
  EXPECT_THAT(guard.fault(), HasSubstr("tells 1 outputs, OLD 2"));
  EXPECT_EQ(output_distance({0, 0}, {0, 0}), 0);
  EXPECT_TRUE(std::isinf(output_distance({0, 0}, {0, 1})));
}

TEST(OutputGuard, NobodyToldAnyIsNoFault) {
  OutputGuard guard;
  guard.add({}, {});
  EXPECT_EQ(guard.fault(), "");
  EXPECT_FALSE(guard.is_told());
}

}  // namespace
}  // namespace headrace
