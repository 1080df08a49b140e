#include "insight/tune/tuner.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "insight/tune/fake_job.h"
#include "insight/tune/quietness.h"

namespace headrace {
namespace {

constexpr double kTenPercentFaster = 1 / 1.1;

using Effects = std::map<std::string, Effect>;

Candidate candidate(const std::string& name, NumericClass numerics = NumericClass::rounding) {
  return {name, "A planted knob.", {{name, "true"}}, numerics, "compute"};
}

std::vector<Candidate> all_of(const Effects& effects) {
  std::vector<Candidate> candidates;
  for (const auto& [name, effect] : effects) candidates.push_back(candidate(name));
  return candidates;
}

Ledger tune_fake(FakeJob& job, const std::vector<Candidate>& candidates, std::uint64_t seed = 1,
                 const TuneOptions& options = {}, const TuneProgress& progress = {}) {
  return Tuner(job, candidates, options, seed, progress, [&job] { return job.now_s(); }).run();
}

const Trial& trial_of(const Ledger& ledger, const std::string& name) {
  for (const auto& trial : ledger.trials) {
    if (trial.name == name) return trial;
  }
  throw std::out_of_range(name);
}

// How often each verdict fell on each candidate, over seeds.
struct Counts {
  std::map<std::string, std::map<Verdict, int>> verdicts;
  std::map<std::string, std::map<Reason, int>> reasons;
  double spent_s_max = 0;
};

Counts count_verdicts(const Effects& effects, const Machine& machine, int seeds, const TuneOptions& options = {}) {
  Counts counts;
  for (int seed = 0; seed < seeds; ++seed) {
    FakeJob job(machine, effects, 1000 + seed);
    const auto ledger = tune_fake(job, all_of(effects), seed, options);
    for (const auto& trial : ledger.trials) {
      ++counts.verdicts[trial.name][trial.verdict];
      ++counts.reasons[trial.name][trial.reason];
    }
    counts.spent_s_max = std::max(counts.spent_s_max, ledger.spent_s);
  }
  return counts;
}

// Twelve candidates at once, in the order of their names.
Effects planted_twelve() {
  return {{"a none", {}},
          {"b throws rarely", {.throw_probability = 0.05}},
          {"c slower", {.time_factor = 1.05}},
          {"d faster", {.time_factor = kTenPercentFaster}},
          {"e wrong", {.time_factor = kTenPercentFaster, .gradient_error = 0.05}},
          {"f throws", {.throw_probability = 1}},
          {"g none", {}},
          {"h slower", {.time_factor = 1.05}},
          {"i faster", {.time_factor = kTenPercentFaster}},
          {"j wrong", {.gradient_error = 0.05}},
          {"k throws rarely", {.time_factor = kTenPercentFaster, .throw_probability = 0.05}},
          {"l none", {}}};
}

void expect_planted_found(const Machine& machine, int seeds) {
  const auto counts = count_verdicts(planted_twelve(), machine, seeds);
  const auto enough = static_cast<int>(std::ceil(0.95 * seeds));
  const auto count = [&](const std::string& name, Verdict verdict) {
    const auto& found = counts.verdicts.at(name);
    return found.count(verdict) ? found.at(verdict) : 0;
  };
  for (const char* name : {"d faster", "i faster"}) EXPECT_GE(count(name, Verdict::kept), enough) << name;
  for (const char* name : {"c slower", "h slower"}) EXPECT_GE(count(name, Verdict::refused), enough) << name;
  for (const char* name : {"a none", "g none", "l none"}) EXPECT_LE(count(name, Verdict::kept), seeds / 100) << name;
  for (const char* name : {"b throws rarely", "f throws", "k throws rarely"}) {
    EXPECT_GE(count(name, Verdict::failed), enough) << name;
  }
  for (const char* name : {"e wrong", "j wrong"}) {
    // Bursts can look like a machine that is not quiet, where the last ones are left out.
    const auto& reasons = counts.reasons.at(name);
    EXPECT_GE(count(name, Verdict::refused), enough) << name;
    EXPECT_EQ(reasons.at(Reason::numerics), count(name, Verdict::refused)) << name;
    EXPECT_EQ(reasons.at(Reason::numerics) + (reasons.count(Reason::not_quiet) ? reasons.at(Reason::not_quiet) : 0),
              seeds)
        << name;
  }
  EXPECT_LE(counts.spent_s_max, 90 + 1.5);
}

TEST(Tuner, JudgesTwelvePlantedCandidatesRightWithinNinetySeconds) {
  expect_planted_found({}, 200);
}

TEST(Tuner, JudgesPlantedCandidatesRightOnADriftingMachine) {
  expect_planted_found({.drift = 0.3}, 200);
}

TEST(Tuner, JudgesPlantedCandidatesRightAmongManyBursts) {
  expect_planted_found({.noise = 0.05, .burst_probability = 0.02}, 200);
}

TEST(Tuner, AGainOfThreePercentIsKeptOrLeftOpenButSeldomRefused) {
  const auto counts = count_verdicts({{"a", {.time_factor = 1 / 1.03}}}, {}, 200);
  const auto& verdicts = counts.verdicts.at("a");
  EXPECT_LE(verdicts.count(Verdict::refused) ? verdicts.at(Verdict::refused) : 0, 10);
  EXPECT_GE(verdicts.count(Verdict::kept) ? verdicts.at(Verdict::kept) : 0, 10);
}

TEST(Tuner, AGainJustBelowTheLeastWorthKeepingIsKeptInFewerThanThreeRunsOfAHundred) {
  const auto counts = count_verdicts({{"a", {.time_factor = 1 / 1.0195}}}, {}, 400);
  const auto& verdicts = counts.verdicts.at("a");
  EXPECT_LE(verdicts.count(Verdict::kept) ? verdicts.at(Verdict::kept) : 0, 12);  // At most 4 expected.
}

TEST(Tuner, FindsTheSameForStepsFromMicrosecondsToSeconds) {
  const Effects effects = {{"a faster", {.time_factor = kTenPercentFaster}},
                           {"b wrong", {.time_factor = kTenPercentFaster, .gradient_error = 0.05}},
                           {"c throws", {.throw_probability = 1}},
                           {"d twice as slow", {.time_factor = 2}}};
  for (const auto& [step_s, budget_s] : std::vector<std::pair<double, double>>{{70e-6, 5}, {2e-3, 30}, {2, 900}}) {
    FakeJob job({.step_s = step_s, .noise = 0.03, .burst_probability = 0.0}, effects, 5);
    TuneOptions options;
    options.budget_s = budget_s;
    const auto ledger = tune_fake(job, all_of(effects), 1, options);
    EXPECT_EQ(trial_of(ledger, "a faster").verdict, Verdict::kept) << step_s;
    EXPECT_EQ(trial_of(ledger, "b wrong").reason, Reason::numerics) << step_s;
    EXPECT_EQ(trial_of(ledger, "c throws").verdict, Verdict::failed) << step_s;
    EXPECT_EQ(trial_of(ledger, "d twice as slow").reason, Reason::slower) << step_s;
    EXPECT_LE(ledger.spent_s, budget_s + 4 * step_s + 0.1) << step_s;
    EXPECT_GT(ledger.speedup.low, 1.02) << step_s;
    EXPECT_LT(ledger.speedup.high, 1.2) << step_s;
  }
}

TEST(Tuner, AStepOfTwoSecondsInNinetyLeavesCandidatesOpenAndKeepsTheBudget) {
  FakeJob job({.step_s = 2}, planted_twelve(), 5);
  const auto ledger = tune_fake(job, all_of(planted_twelve()));
  EXPECT_LE(ledger.spent_s, 90 + 8);
  for (const auto& trial : ledger.trials) EXPECT_NE(trial.verdict, Verdict::kept) << trial.name;
}

TEST(Tuner, ABudgetTooSmallForAnythingLeavesAllOpen) {
  FakeJob job({.step_s = 2}, planted_twelve(), 5);
  TuneOptions options;
  options.budget_s = 1;
  const auto ledger = tune_fake(job, all_of(planted_twelve()), 1, options);
  ASSERT_EQ(ledger.trials.size(), 12u);
  for (const auto& trial : ledger.trials) {
    EXPECT_EQ(trial.verdict, Verdict::inconclusive) << trial.name;
    EXPECT_EQ(trial.reason, Reason::budget) << trial.name;
    EXPECT_FALSE(trial.gain) << trial.name;
  }
  EXPECT_TRUE(ledger.best.empty());
  EXPECT_EQ(ledger.speedup.median, 1);
  EXPECT_EQ(ledger.speedup_pairs, 0);
  EXPECT_NEAR(ledger.baseline_samples_per_second, 64, 20);
  EXPECT_EQ(ledger.best_samples_per_second, ledger.baseline_samples_per_second);
}

TEST(Tuner, ABudgetThatEndsInTheMiddleIsNotOverrunByMoreThanAPair) {
  for (const double budget_s : {2.0, 5.0, 10.0, 20.0, 45.0}) {
    FakeJob job({}, planted_twelve(), 5);
    TuneOptions options;
    options.budget_s = budget_s;
    EXPECT_LE(tune_fake(job, all_of(planted_twelve()), 1, options).spent_s, budget_s + 1) << budget_s;
  }
}

TEST(Tuner, LeavesTheJobInTheBestSettingsAndTheSnapshotsState) {
  FakeJob job({}, planted_twelve(), 5);
  const auto ledger = tune_fake(job, all_of(planted_twelve()));
  const Settings best = {{"d faster", "true"}, {"i faster", "true"}};
  EXPECT_EQ(ledger.best, best);
  EXPECT_EQ(job.settings, best);
  EXPECT_EQ(job.position, 0);
  EXPECT_EQ(job.snapshots, 1);
}

TEST(Tuner, SpeedupIsThatOfAllKeptChangesTogether) {
  int covered = 0;
  const int seeds = 100;
  for (int seed = 0; seed < seeds; ++seed) {
    const Effects effects = {{"a", {.time_factor = 1 / 1.2}}, {"b", {.time_factor = 1 / 1.2}}};
    FakeJob job({}, effects, 100 + seed);
    const auto ledger = tune_fake(job, all_of(effects), seed);
    ASSERT_EQ(ledger.best.size(), 2u) << seed;
    EXPECT_NEAR(ledger.speedup.median, 1.44, 0.1) << seed;
    EXPECT_NEAR(ledger.best_samples_per_second / ledger.baseline_samples_per_second, 1.44, 0.2) << seed;
    EXPECT_GE(ledger.speedup_pairs, 6) << seed;
    covered += ledger.speedup.low <= 1.44 && 1.44 <= ledger.speedup.high;
  }
  EXPECT_GE(covered, 90);  // 95 expected; three standard deviations are 6.5.
}

TEST(Tuner, ASlowJobBecomesHalfAsFastAgainAndAGoodOneStaysAsItIs) {
  const Effects slow = {{"a", {.time_factor = 1 / 1.8}}, {"b", {.time_factor = 1.1}}, {"c", {}}};
  const Effects good = {{"a", {}}, {"b", {.time_factor = 1.05}}, {"c", {.time_factor = 1 / 1.005}}};
  int changed = 0;
  for (int seed = 0; seed < 50; ++seed) {
    FakeJob slow_job({}, slow, 300 + seed), good_job({}, good, 400 + seed);
    EXPECT_GE(tune_fake(slow_job, all_of(slow), seed).speedup.low, 1.5) << seed;
    EXPECT_TRUE(slow_job.settings.contains("a")) << seed;
    const Ledger ledger = tune_fake(good_job, all_of(good), seed);
    EXPECT_EQ(good_job.settings, ledger.best);
    changed += ledger.best.empty() ? 0 : 1;
  }
  EXPECT_LE(changed, 2);  // Three changes, each of which is kept by an error of 1 % at most.
}

// As more threads that load and fewer that compute.
class PaysTogether : public FakeJob {
 public:
  PaysTogether() : FakeJob({}, {{"a", {}}, {"b", {}}, {"together", {.time_factor = 1 / 1.3}}}, 5) {}
  void configure(const Settings& wanted) override {
    FakeJob::configure(wanted.contains("a") && wanted.contains("b") ? Settings{{"together", "true"}} : Settings{});
  }
};

TEST(Tuner, WhatPaysOnlyTogetherIsFoundAsOneChangeBehindThoseOfEachAlone) {
  PaysTogether job;
  Candidate both = candidate("both");
  both.changes = {{"a", "true"}, {"b", "true"}};
  const auto ledger = tune_fake(job, {candidate("a"), candidate("b"), both});
  EXPECT_EQ(ledger.best, both.changes);
  EXPECT_EQ(trial_of(ledger, "both").verdict, Verdict::kept);
  for (const char* alone : {"a", "b"}) EXPECT_NE(trial_of(ledger, alone).verdict, Verdict::kept);
}

TEST(Tuner, AnEmptyListGivesTheBaseline) {
  FakeJob job({}, {}, 5);
  const auto ledger = tune_fake(job, {});
  EXPECT_TRUE(ledger.trials.empty());
  EXPECT_TRUE(ledger.best.empty());
  EXPECT_EQ(ledger.speedup.median, 1);
  EXPECT_NEAR(ledger.baseline_samples_per_second, 128 / 0.04, 500);
}

TEST(Tuner, FixedKeysAndTheirTablesAreNotTried) {
  const Effects effects = {{"data.num_workers", {}}, {"data.num_workers_max", {}}, {"optimizer.fused", {}}};
  FakeJob job({}, effects, 5);
  TuneOptions options;
  options.fixed = {"optimizer", "data.num_workers"};
  const auto ledger = tune_fake(job, all_of(effects), 1, options);
  for (const char* name : {"data.num_workers", "optimizer.fused"}) {
    EXPECT_EQ(trial_of(ledger, name).verdict, Verdict::refused);
    EXPECT_EQ(trial_of(ledger, name).reason, Reason::fixed);
    EXPECT_THAT(trial_of(ledger, name).sentence, testing::HasSubstr(name));
  }
  EXPECT_NE(trial_of(ledger, "data.num_workers_max").reason, Reason::fixed);
  for (const auto& settings : job.configured) EXPECT_FALSE(settings.count("data.num_workers"));
}

TEST(Tuner, AChangeOfALooserClassThanAllowedIsNotTried) {
  const Effects effects = {{"a", {}}, {"b", {}}, {"c", {}}};
  const std::vector<Candidate> candidates = {candidate("a", NumericClass::bit_equal), candidate("b"),
                                             candidate("c", NumericClass::reduced_precision)};
  TuneOptions options;
  for (const NumericClass allow : {NumericClass::bit_equal, NumericClass::rounding, NumericClass::reduced_precision}) {
    FakeJob job({}, effects, 5);
    options.allow = allow;
    const auto ledger = tune_fake(job, candidates, 1, options);
    for (const Trial& trial : ledger.trials) {
      const bool is_tried = trial.numerics.numeric_class <= allow;
      EXPECT_EQ(trial.reason != Reason::not_allowed, is_tried) << trial.name << to_string(allow);
      const auto names = [&](const Settings& settings) { return settings.contains(trial.name); };
      EXPECT_EQ(std::any_of(job.configured.begin(), job.configured.end(), names), is_tried) << trial.name;
      if (is_tried) continue;
      EXPECT_EQ(trial.verdict, Verdict::refused);
      EXPECT_EQ(trial.sentence,
                fmt::format("Not tried: it needs tune.allow = \"{}\".", to_string(trial.numerics.numeric_class)));
    }
  }
}

TEST(Tuner, WhatDoesNothingBesideAKeptChangeIsNotTried) {
  const Effects effects = {{"a", {kTenPercentFaster}}, {"b", {kTenPercentFaster}}, {"c", {kTenPercentFaster}}};
  std::vector<Candidate> candidates = all_of(effects);
  for (Candidate& candidate : candidates) candidate.key = candidate.name;
  candidates[1].excludes = {"a"};
  candidates[2].excludes = {"d"};
  FakeJob job({}, effects, 5);
  const auto ledger = tune_fake(job, candidates);
  EXPECT_EQ(trial_of(ledger, "a").verdict, Verdict::kept);
  EXPECT_EQ(trial_of(ledger, "b").verdict, Verdict::refused);
  EXPECT_EQ(trial_of(ledger, "b").sentence, "Not tried: it does nothing beside a, which is kept.");
  EXPECT_EQ(trial_of(ledger, "c").verdict, Verdict::kept);
  for (const auto& settings : job.configured) EXPECT_FALSE(settings.contains("b"));
}

TEST(Tuner, OnlyNamedCandidatesAreTriedAndAnUnknownNameIsAnError) {
  FakeJob job({}, planted_twelve(), 5);
  TuneOptions options;
  options.only = {"f throws", "e wrong"};
  EXPECT_EQ(tune_fake(job, all_of(planted_twelve()), 1, options).trials.size(), 2u);
  options.only = {"f throw"};
  try {
    tune_fake(job, all_of(planted_twelve()), 1, options);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("\"f throw\""), testing::HasSubstr("f throws")));
  }
}

TEST(Tuner, ACandidateThatDoesNotFitIsRefusedForMemory) {
  const Effects effects = {{"a big", {.out_of_memory = true}}, {"b faster", {.time_factor = kTenPercentFaster}}};
  FakeJob job({}, effects, 5);
  const auto ledger = tune_fake(job, all_of(effects));
  EXPECT_EQ(trial_of(ledger, "a big").verdict, Verdict::refused);
  EXPECT_EQ(trial_of(ledger, "a big").reason, Reason::memory);
  EXPECT_FALSE(trial_of(ledger, "a big").gain);
  EXPECT_EQ(trial_of(ledger, "b faster").verdict, Verdict::kept);
}

TEST(Tuner, ACandidateThatCannotBeAppliedFailsWithItsMessage) {
  const Effects effects = {{"a", {.configure_throws = true}}};
  FakeJob job({}, effects, 5);
  const auto ledger = tune_fake(job, all_of(effects));
  EXPECT_EQ(ledger.trials[0].verdict, Verdict::failed);
  EXPECT_EQ(ledger.trials[0].reason, Reason::error);
  EXPECT_THAT(ledger.trials[0].sentence, testing::HasSubstr("cannot be applied"));
}

TEST(Tuner, WhatTheBaselineThrowsIsThrown) {
  class BrokenJob : public FakeJob {
   public:
    BrokenJob() : FakeJob({}, {{"a", {}}}, 1) {}
    std::vector<double> run(std::int64_t) override { throw std::runtime_error("fake: no such device"); }
  };
  BrokenJob job;
  EXPECT_THROW(tune_fake(job, {candidate("a")}), std::runtime_error);
}

TEST(Tuner, AKeptChangeThatFailsLaterIsTakenOutAndOthersAreSeldomBlamed) {
  int kept_first = 0, innocent_failed = 0;
  for (int seed = 0; seed < 100; ++seed) {
    const Effects effects = {{"a fragile", {.time_factor = 1 / 1.3, .throw_probability = 0.01}},
                             {"b faster", {.time_factor = kTenPercentFaster}},
                             {"c none", {}}};
    FakeJob job({}, effects, 300 + seed);
    const auto ledger = tune_fake(job, all_of(effects), seed);
    const auto& fragile = trial_of(ledger, "a fragile");
    kept_first += fragile.removed_again;
    innocent_failed += trial_of(ledger, "b faster").verdict == Verdict::failed;
    innocent_failed += trial_of(ledger, "c none").verdict == Verdict::failed;
    if (fragile.removed_again) {
      EXPECT_EQ(fragile.verdict, Verdict::failed) << seed;
      EXPECT_THAT(fragile.sentence, testing::HasSubstr("Kept at first")) << seed;
    }
    EXPECT_EQ(ledger.best.count("a fragile"), fragile.verdict == Verdict::kept) << seed;
  }
  EXPECT_GE(kept_first, 10);                   // Or this test tests nothing.
  EXPECT_LE(innocent_failed, kept_first / 2);  // As many as kept_first when nobody asks the kept changes.
}

TEST(Tuner, TheSplitsAndTheSpeedupAreOfTheSameBlocks) {
  const Effects effects = {{"a faster", {.time_factor = 1 / 1.5}}, {"b none", {}}};
  FakeJob job({}, effects, 7);
  const auto ledger = tune_fake(job, all_of(effects));
  ASSERT_EQ(ledger.best, (Settings{{"a faster", "true"}}));
  ASSERT_GT(ledger.speedup_pairs, 0);
  ASSERT_TRUE(ledger.baseline_split && ledger.best_split);
  ASSERT_EQ(ledger.baseline_s.size(), static_cast<std::size_t>(ledger.speedup_pairs));
  ASSERT_EQ(ledger.best_s.size(), static_cast<std::size_t>(ledger.speedup_pairs));
  EXPECT_EQ(job.split_blocks.size(), 2 * ledger.baseline_s.size());  // No other pairs are split.
  const auto step_s = [](const TimeSplit& split) { return split.total_s / static_cast<double>(split.steps); };
  const auto mean = [](const std::vector<double>& block_s) {
    return std::accumulate(block_s.begin(), block_s.end(), 0.0) / static_cast<double>(block_s.size());
  };
  EXPECT_NEAR(step_s(*ledger.baseline_split), mean(ledger.baseline_s), 1e-9);
  EXPECT_NEAR(step_s(*ledger.best_split), mean(ledger.best_s), 1e-9);
  // The middle of the pairs' ratios lies among them, and so does what the bursts of single blocks leave of the means.
  std::vector<double> ratios;
  for (std::size_t i = 0; i < ledger.best_s.size(); ++i) ratios.push_back(ledger.baseline_s[i] / ledger.best_s[i]);
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  for (const double ratio : {ledger.speedup.median, step_s(*ledger.baseline_split) / step_s(*ledger.best_split)}) {
    EXPECT_GE(ratio, *least);
    EXPECT_LE(ratio, *most);
  }
}

TEST(Tuner, WhereNothingWasKeptNothingIsSplit) {
  const Effects effects = {{"a none", {}}};
  FakeJob job({}, effects, 7);
  const auto ledger = tune_fake(job, all_of(effects));
  ASSERT_TRUE(ledger.best.empty());
  EXPECT_FALSE(ledger.baseline_split || ledger.best_split);
  EXPECT_TRUE(ledger.baseline_s.empty() && ledger.best_s.empty());
}

// Two changes, each of which pays alone: together the first is in the second's way.
class CrossedJob : public FakeJob {
 public:
  explicit CrossedJob(std::uint64_t seed) : FakeJob({}, {{"a", {}}, {"b", {}}}, seed) {}
  std::vector<double> run(std::int64_t steps) override {
    auto times = FakeJob::run(steps);
    const bool a = settings.count("a"), b = settings.count("b");
    const double factor = b ? (a ? 0.6 : 0.5) : (a ? 0.9 : 1);
    for (double& time : times) time *= factor;
    return times;
  }
};

TEST(Tuner, AChangeThatNoLongerPaysBesideTheOthersIsTakenOutAgain) {
  int right = 0;
  for (int seed = 0; seed < 50; ++seed) {
    CrossedJob job(seed);
    std::vector<std::string> told;
    TuneProgress progress;
    progress.decided = [&](const Trial& trial) { told.push_back(trial.name + (trial.removed_again ? " out" : "")); };
    const auto ledger = tune_fake(job, {candidate("a"), candidate("b")}, seed, {}, progress);
    const auto& first = ledger.trials[0];
    const bool out = first.removed_again && first.verdict == Verdict::refused && first.gain;
    right += out && ledger.best == Settings{{"b", "true"}} && told == std::vector<std::string>{"a", "b", "a out"};
  }
  EXPECT_GE(right, 47);
}

// The trial of "a" ends with its share of the budget; those after it fail at once and leave it theirs.
TEST(Tuner, ATrialLeftOpenGoesOnWhenOthersLeaveTime) {
  const Effects effects = {{"a", {.time_factor = 1 / 1.06}}, {"b", {.gradient_error = 0.05}},
                           {"c", {.gradient_error = 0.05}},  {"d", {.gradient_error = 0.05}},
                           {"e", {.gradient_error = 0.05}},  {"f", {.gradient_error = 0.05}}};
  TuneOptions options;
  options.budget_s = 30;
  int returned = 0, kept = 0, kept_in_all = 0;
  for (int seed = 0; seed < 100; ++seed) {
    FakeJob job({.noise = 0.1}, effects, seed);
    int told = 0;
    TuneProgress progress;
    progress.decided = [&](const Trial& trial) { told += trial.name == "a"; };
    const auto ledger = tune_fake(job, all_of(effects), seed, options, progress);
    const auto& trial = trial_of(ledger, "a");
    EXPECT_LE(ledger.spent_s, 31);
    EXPECT_LE(told, 3);  // Left open, kept, taken out again.
    kept_in_all += trial.verdict == Verdict::kept;
    if (told < 2) continue;
    ++returned;
    kept += trial.verdict == Verdict::kept;
    EXPECT_GE(trial.pairs, 3);
  }
  EXPECT_GE(returned, 10);
  EXPECT_GE(kept, returned / 2) << returned;
  EXPECT_GE(kept_in_all, 65);
}

// Half-second steps: three quarters of the budget hold 8 pairs, nine tenths the 9 or 10 that a verdict takes.
TEST(Tuner, WhileNothingIsKeptAPromisingTrialUsesTheReserveToo) {
  TuneOptions options;
  options.budget_s = 27;
  int kept = 0;
  for (int seed = 0; seed < 50; ++seed) {
    FakeJob job({.step_s = 0.5}, {{"a", {.time_factor = 1 / 1.8}}}, seed);
    const auto ledger = tune_fake(job, {candidate("a")}, seed, options);
    EXPECT_LE(ledger.spent_s, options.budget_s + 1.5);
    if (ledger.trials[0].verdict != Verdict::kept) continue;
    ++kept;
    EXPECT_GE(ledger.trials[0].pairs, kPairsToKeep);
    EXPECT_GT(ledger.speedup_pairs, 0);
  }
  EXPECT_GE(kept, 45);
}

// A budget of 20 s holds 5 or 6 of these pairs.
TEST(Tuner, ATrialLeftOpenSaysHowManyPairsMoreWouldDecideIt) {
  TuneOptions options;
  options.budget_s = 20;
  FakeJob job({.step_s = 0.5, .burst_probability = 0}, {{"a", {.time_factor = 1 / 1.8}}}, 5);
  const auto ledger = tune_fake(job, {candidate("a")}, 1, options);
  const Trial& trial = ledger.trials[0];
  EXPECT_EQ(trial.verdict, Verdict::inconclusive);
  EXPECT_EQ(trial.reason, Reason::budget);
  ASSERT_GT(trial.pairs, 0);
  ASSERT_LT(trial.pairs, kPairsToKeep - 1);
  EXPECT_THAT(trial.sentence,
              testing::HasSubstr(fmt::format("; about {} pairs more would decide it.", kPairsToKeep - trial.pairs)));
}

TEST(Tuner, AChangeThatPaysLateIsJudgedByTheWholeRun) {
  const Effects effects = {{"cache", {.time_factor = 0.5}}};
  const auto run = [&](double late_share) {
    FakeJob job({}, effects, 3);
    auto cache = candidate("cache");
    cache.late_share = late_share;
    return tune_fake(job, {cache});
  };
  const auto ledger = run(0.5);  // Two epochs: 1 + 0.5 of 2.
  EXPECT_NEAR(ledger.trials[0].gain->median, 1 / 0.75 - 1, 0.05);
  EXPECT_NEAR(ledger.speedup.median, 1 / 0.75, 0.05);
  EXPECT_NEAR(ledger.best_samples_per_second / ledger.baseline_samples_per_second, 1 / 0.75, 0.05);
  EXPECT_EQ(ledger.trials[0].late_share, 0.5);
  EXPECT_THAT(ledger.trials[0].sentence, testing::HasSubstr("after the first 50 % of the run"));
  EXPECT_EQ(run(0.99).trials[0].verdict, Verdict::refused);
  EXPECT_NEAR(run(0).speedup.median, 2, 0.1);
}

TEST(Tuner, AChangeOfTheSameKeyReplacesTheEarlierOne) {
  class ThreadsJob : public FakeJob {
   public:
    ThreadsJob() : FakeJob({}, {{"threads", {}}}, 5) {}
    std::vector<double> run(std::int64_t steps) override {
      auto times = FakeJob::run(steps);
      const double threads = settings.count("threads") ? std::stod(settings.at("threads")) : 1;
      for (double& time : times) time /= threads;
      return times;
    }
  };
  ThreadsJob job;
  const Candidate two = {"two", "", {{"threads", "2"}}, NumericClass::rounding, "data"};
  const Candidate four = {"four", "", {{"threads", "4"}}, NumericClass::rounding, "data"};
  const Candidate again = {"four again", "", {{"threads", "4"}}, NumericClass::rounding, "data"};
  const auto ledger = tune_fake(job, {two, four, again});
  EXPECT_EQ(ledger.best, (Settings{{"threads", "4"}}));
  EXPECT_TRUE(ledger.trials[0].removed_again);
  EXPECT_THAT(ledger.trials[0].sentence, testing::HasSubstr("Replaced"));
  EXPECT_EQ(ledger.trials[1].verdict, Verdict::kept);
  EXPECT_EQ(ledger.trials[2].verdict, Verdict::refused);
  EXPECT_EQ(ledger.trials[2].pairs, 0);
}

TEST(Tuner, NumericErrorsOfKeptChangesDoNotAddUpUnseen) {
  // Each change alone lies within 1e-2; the second would take the sum beyond it.
  const Effects effects = {{"a", {.time_factor = 1 / 1.2, .gradient_error = 0.007}},
                           {"b", {.time_factor = 1 / 1.2, .gradient_error = 0.007}}};
  FakeJob job({}, effects, 5);
  const auto ledger = tune_fake(job, all_of(effects));
  EXPECT_EQ(ledger.trials[0].verdict, Verdict::kept);
  EXPECT_EQ(ledger.trials[1].reason, Reason::numerics);
  EXPECT_NEAR(ledger.trials[1].numerics.value, 0.014, 0.002);
}

TEST(Tuner, AKeptChangeOfALooserClassDoesNotCountAgainstAStricterOne) {
  const Effects effects = {{"a low", {.time_factor = 1 / 1.2, .gradient_error = 0.2, .other_bits = true}},
                           {"b", {.time_factor = 1 / 1.2, .gradient_error = 0.001}},
                           {"c", {.time_factor = 1 / 1.2}}};
  FakeJob job({}, effects, 5);
  const auto ledger = tune_fake(job, {candidate("a low", NumericClass::reduced_precision), candidate("b"),
                                      candidate("c", NumericClass::bit_equal)});
  for (const auto& trial : ledger.trials) EXPECT_EQ(trial.verdict, Verdict::kept) << trial.name << trial.sentence;
}

TEST(Tuner, AKeptChangeThatBlowsUpRoundingDoesNotRefuseTheNextOne) {
  const Effects effects = {{"a rounding", {.time_factor = 1 / 1.2, .gradient_error = 1e-4}},
                           {"b low", {.time_factor = 1 / 1.2, .gradient_error = 1e-3, .amplification = 200}},
                           {"c rounding", {.time_factor = 1 / 1.2, .gradient_error = 1e-4}},
                           {"d turned", {.time_factor = 1 / 1.2, .gradient_error = 5e-3}}};
  FakeJob job({}, effects, 5);
  const auto ledger = tune_fake(job, {candidate("a rounding"), candidate("b low", NumericClass::reduced_precision),
                                      candidate("c rounding"), candidate("d turned")});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ledger.trials[i].verdict, Verdict::kept) << ledger.trials[i].sentence;
  EXPECT_LT(ledger.trials[2].numerics.value, 1e-2);
  // Within its own class alone, but with the kept ones it points elsewhere than the baseline.
  EXPECT_EQ(ledger.trials[3].reason, Reason::numerics);
  EXPECT_THAT(ledger.trials[3].numerics.measure, testing::HasSubstr("cosine"));
}

TEST(Tuner, ReducedPrecisionIsCheckedBeforeItIsTimedAndMustBeFaster) {
  const Effects effects = {{"a slower", {.time_factor = 1.4, .gradient_error = 0.1}},
                           {"b turned", {.time_factor = 1 / 1.2, .gradient_error = 0.9}},
                           {"c good", {.time_factor = 1 / 1.2, .gradient_error = 0.1}}};
  FakeJob job({}, effects, 5);
  std::vector<Candidate> candidates;
  for (const auto& [name, effect] : effects) candidates.push_back(candidate(name, NumericClass::reduced_precision));
  const auto ledger = tune_fake(job, candidates);
  EXPECT_EQ(ledger.trials[0].reason, Reason::slower);
  EXPECT_TRUE(ledger.trials[0].numerics.passed);
  EXPECT_EQ(ledger.trials[1].reason, Reason::numerics);
  EXPECT_EQ(ledger.trials[1].pairs, 0);
  EXPECT_EQ(ledger.trials[2].verdict, Verdict::kept);
  EXPECT_NEAR(ledger.trials[2].numerics.value, 0.1, 0.02);
  EXPECT_THAT(ledger.trials[2].numerics.measure, testing::HasSubstr("between two batches"));
  EXPECT_LE(ledger.spent_s, 90 + 1);
}

Candidate of_batches(const std::string& name, NumericClass numerics) {
  Candidate one = candidate(name, numerics);
  one.changes_batches = true;
  return one;
}

TEST(Tuner, WrongBatchesAreRefusedBeforeAnyPairAndOtherDrawsAreKept) {
  const Effects effects = {{"a draws", {.time_factor = 1 / 1.2, .other_draws = true}},
                           {"b wrong", {.time_factor = 1 / 1.2, .batch_shift = 2}},
                           {"c broken", {.configure_throws = true}}};
  FakeJob job({}, effects, 5);
  const auto ledger = tune_fake(
      job, {of_batches("a draws", NumericClass::rounding), of_batches("b wrong", NumericClass::reduced_precision),
            of_batches("c broken", NumericClass::reduced_precision)});
  const Trial &draws = ledger.trials[0], &wrong = ledger.trials[1];
  EXPECT_EQ(draws.verdict, Verdict::kept) << draws.sentence;
  EXPECT_TRUE(draws.numerics.passed);
  EXPECT_EQ(draws.numerics.numeric_class, NumericClass::rounding);
  EXPECT_NEAR(draws.numerics.value, 1, 0.2);
  EXPECT_EQ(wrong.verdict, Verdict::refused);
  EXPECT_EQ(wrong.reason, Reason::numerics);
  EXPECT_EQ(wrong.pairs, 0);
  EXPECT_FALSE(wrong.gain);
  EXPECT_EQ(wrong.numerics.numeric_class, NumericClass::reduced_precision);
  EXPECT_THAT(wrong.sentence, testing::StartsWith("Brings something else: mean gradients of 4 batches, distance"));
  EXPECT_THAT(wrong.sentence, testing::EndsWith("at most 1.5."));
  EXPECT_EQ(ledger.trials[2].verdict, Verdict::failed);
  EXPECT_EQ(job.batches_loaded, 8 + 4 + 4);
}

// The kept draws are far off on the same batches, where they would refuse all that comes after them.
TEST(Tuner, WhatBatchesHoldAndWhatIsComputedOfThemAreJudgedApart) {
  const Effects effects = {{"a draws", {.time_factor = 1 / 1.2, .gradient_error = 0.5, .other_draws = true}},
                           {"b", {.time_factor = 1 / 1.2, .gradient_error = 0.001}},
                           {"c bits", {.time_factor = 1 / 1.2}},
                           {"d low", {.time_factor = 1 / 1.2, .gradient_error = 0.2}}};
  FakeJob job({}, effects, 5);
  const auto ledger = tune_fake(
      job, {of_batches("a draws", NumericClass::reduced_precision), candidate("b"),
            candidate("c bits", NumericClass::bit_equal), candidate("d low", NumericClass::reduced_precision)});
  for (const Trial& trial : ledger.trials) EXPECT_EQ(trial.verdict, Verdict::kept) << trial.name << trial.sentence;
  EXPECT_NEAR(ledger.trials[1].numerics.value, 0.001, 0.0005);
  EXPECT_NEAR(ledger.trials[3].numerics.value, 0.2, 0.05);
}

TEST(Tuner, AStopInTheMiddleKeepsWhatIsKnownAndLeavesTheRestOpen) {
  for (const int asked_max : {0, 1, 7, 40, 90}) {
    FakeJob job({}, planted_twelve(), 5);
    int asked = 0;
    TuneProgress progress;
    progress.stop = [&] { return asked++ >= asked_max; };
    const auto ledger = tune_fake(job, all_of(planted_twelve()), 1, {}, progress);
    ASSERT_EQ(ledger.trials.size(), 12u);
    EXPECT_EQ(ledger.trials.back().verdict, Verdict::inconclusive);
    EXPECT_EQ(ledger.trials.back().reason, Reason::none);
    EXPECT_THAT(ledger.trials.back().sentence, testing::HasSubstr("Stopped"));
    EXPECT_EQ(job.settings, ledger.best);
    EXPECT_EQ(job.position, 0);
    // Nothing kept is as fast as the baseline; how fast something kept is, nobody has measured.
    EXPECT_TRUE(ledger.best.empty() ? ledger.speedup.median == 1 : std::isnan(ledger.speedup.median)) << asked_max;
  }
}

TEST(Tuner, ACancelledJobEndsLikeAStop) {
  const Effects effects = {{"a", {.time_factor = 1 / 1.2}}, {"b", {.cancels = true}}, {"c", {}}};
  FakeJob job({}, effects, 5);
  const auto ledger = tune_fake(job, all_of(effects));
  EXPECT_EQ(ledger.trials[0].verdict, Verdict::kept);
  EXPECT_EQ(ledger.trials[1].verdict, Verdict::inconclusive);
  EXPECT_EQ(ledger.trials[2].verdict, Verdict::inconclusive);
  EXPECT_EQ(job.settings, (Settings{{"a", "true"}}));
}

TEST(Tuner, TellsEachCandidateBeforeAndAfter) {
  const Effects effects = {{"a", {.throw_probability = 1}}, {"b", {.gradient_error = 1}}};
  FakeJob job({}, effects, 5);
  std::vector<std::string> told;
  TuneProgress progress;
  progress.trying = [&](const Candidate& tried, std::size_t index, std::size_t count) {
    told.push_back(fmt::format("try {} {} {}", tried.name, index, count));
  };
  progress.decided = [&](const Trial& trial) { told.push_back(trial.name + " " + to_string(trial.verdict)); };
  tune_fake(job, all_of(effects), 1, {}, progress);
  EXPECT_THAT(told, testing::ElementsAre("try a 0 2", "a failed", "try b 1 2", "b refused"));
}

TEST(Tuner, TheSameSeedGivesTheSameLedger) {
  const auto spent = [](std::uint64_t seed) {
    FakeJob job({}, planted_twelve(), 5);
    const auto ledger = tune_fake(job, all_of(planted_twelve()), seed);
    return std::pair{ledger.spent_s, ledger.speedup.median};
  };
  EXPECT_EQ(spent(1), spent(1));
  EXPECT_NE(spent(1), spent(2));
}

TEST(Tuner, PublicDoorMeasuresTheBudgetOnTheMonotonicClock) {
  FakeJob job({.step_s = 1e-4}, {{"a", {.throw_probability = 1}}}, 5);
  const auto ledger = tune(job, {candidate("a")}, {}, 1);
  EXPECT_EQ(ledger.trials[0].verdict, Verdict::failed);
  EXPECT_EQ(ledger.budget_s, 90);
  EXPECT_GT(ledger.spent_s, 0);
}

// Pairs scatter by some 25 %: what is left of 90 s holds few decisions.
constexpr Machine kNoisy{.step_s = 0.04, .noise = 0.8, .burst_probability = 0.1};

TEST(Tuner, AMachineThatIsNotQuietIsToldFirstAndItsBudgetGoesToTheFirstChanges) {
  int left_out = 0;
  for (int seed = 0; seed < 50; ++seed) {
    FakeJob job(kNoisy, planted_twelve(), 700 + seed);
    std::vector<std::string> told;
    TuneProgress progress;
    progress.judged = [&](const Quietness& found) {
      ASSERT_TRUE(found.quiet);
      told.push_back(*found.quiet ? "quiet" : "not quiet");
    };
    progress.trying = [&](const Candidate& tried, std::size_t, std::size_t) { told.push_back(tried.name); };
    const auto ledger = tune_fake(job, all_of(planted_twelve()), seed, {}, progress);
    ASSERT_GT(told.size(), 1u);
    EXPECT_EQ(told[0], "not quiet") << ledger.quietness.sentence;
    EXPECT_EQ(told[1], "a none");
    EXPECT_GT(ledger.quietness.pairs_needed, kPairsPlannedMax / 2);
    EXPECT_LT(ledger.quietness.candidates_held, 12);
    EXPECT_LE(ledger.spent_s, 91.5);
    bool left = false;
    for (const Trial& trial : ledger.trials) {
      EXPECT_TRUE(!left || trial.reason == Reason::not_quiet) << "only the last ones are left out: " << trial.name;
      if (trial.reason != Reason::not_quiet) continue;
      left = true;
      ++left_out;
      EXPECT_EQ(trial.verdict, Verdict::inconclusive);
      EXPECT_EQ(trial.pairs, 0);
      EXPECT_THAT(trial.sentence, testing::HasSubstr("the machine is not quiet"));
    }
  }
  EXPECT_GE(left_out, 50);
}

TEST(Tuner, ChangesWithoutWorthAreNotKeptOnAMachineThatIsNotQuiet) {
  const Effects effects = {{"a none", {}}, {"b slower", {.time_factor = 1.05}}, {"c none", {}}, {"d none", {}}};
  const auto counts = count_verdicts(effects, kNoisy, 200);
  for (const auto& [name, verdicts] : counts.verdicts) {
    EXPECT_LE(verdicts.count(Verdict::kept) ? verdicts.at(Verdict::kept) : 0, 2) << name;
  }
}

// What the kernel would say: two cores, of which others take this share while the job runs.
LoadReader load_with_others(const FakeJob& job, double share) {
  return [&job, share] {
    CpuLoad load;
    load.at_s = job.now_s();
    const double ticks = 200 * (job.now_s() - kStart_s);
    load.times = CpuTimes{static_cast<std::int64_t>(ticks), 0, 0};
    load.own_ticks = static_cast<std::int64_t>(ticks * (1 - share));
    return load;
  };
}

TEST(Tuner, TheDivisionOfTheCoresIsNotTriedWhileOthersTakeThem) {
  const Effects effects = {{"a threads", {.time_factor = 1 / 1.3}}, {"b faster", {.time_factor = 1 / 1.2}}};
  for (const bool is_busy : {true, false}) {
    FakeJob job({}, effects, 5);
    auto candidates = all_of(effects);
    candidates[0].divides_cores = true;
    const auto ledger =
        Tuner(
            job, candidates, {}, 1, {}, [&job] { return job.now_s(); }, load_with_others(job, is_busy ? 0.5 : 0.01))
            .run();
    EXPECT_EQ(ledger.quietness.quiet, !is_busy) << ledger.quietness.sentence;
    EXPECT_EQ(ledger.trials[0].reason, is_busy ? Reason::not_quiet : Reason::none) << ledger.trials[0].sentence;
    EXPECT_EQ(ledger.trials[1].verdict, Verdict::kept);
    if (!is_busy) continue;
    EXPECT_NEAR(ledger.quietness.others.value(), 0.5, 0.02);
    for (const auto& settings : job.configured) EXPECT_FALSE(settings.count("a threads"));
  }
}

TEST(Tuner, ANoisyMachineWhoseCoresNobodyTakesHasTheirDivisionTried) {
  FakeJob job(kNoisy, {{"a threads", {.time_factor = 1 / 1.3}}}, 5);
  auto tried = candidate("a threads");
  tried.divides_cores = true;
  const auto ledger = Tuner(
                          job, {tried}, {}, 1, {}, [&job] { return job.now_s(); }, load_with_others(job, 0.02))
                          .run();
  EXPECT_EQ(ledger.quietness.quiet, false) << ledger.quietness.sentence;
  EXPECT_FALSE(ledger.quietness.cores_taken);
  EXPECT_GT(ledger.trials[0].pairs, 0);
}

// What is left when the first changes are decided early goes to the next ones, though it holds no decision on a small
// gain.
TEST(Tuner, OnAMachineThatIsNotQuietLargeGainsLeaveTimeForTheNextChanges) {
  Effects effects;
  for (const char* name : {"a", "b", "c", "d"}) effects[name] = {.time_factor = 1 / 2.0};
  int tried = 0;
  for (int seed = 0; seed < 20; ++seed) {
    FakeJob job(kNoisy, effects, 900 + seed);
    const auto ledger = tune_fake(job, all_of(effects), seed);
    for (const Trial& trial : ledger.trials) tried += trial.pairs > 0;
  }
  EXPECT_GE(tried, 60);  // Of 80; with one decision on a small gain reserved for each, some 40.
}

TEST(Tuner, ASlowJobLeavesTheSpreadUnavailableAndTriesAll) {
  FakeJob job({.step_s = 2}, planted_twelve(), 5);
  const auto ledger = tune_fake(job, all_of(planted_twelve()));
  EXPECT_FALSE(ledger.quietness.quiet);
  EXPECT_FALSE(ledger.quietness.scatter);
  for (const Trial& trial : ledger.trials) EXPECT_NE(trial.reason, Reason::not_quiet);
}

TEST(Tuner, AChangeTwoAndAHalfHundredThousandthsOffInItsLossIsKeptWhereFloat64TellsThatItIsRounding) {
  const Effects effects = {{"a layout", {.time_factor = 1 / 1.2, .loss_error = 2.4e-5}},
                           {"b wrong", {.time_factor = 1 / 1.2, .gradient_error = 0.05}}};
  for (const bool has_exact : {true, false}) {
    FakeJob job({}, effects, 5);
    job.has_exact = has_exact;
    job.own_loss_error = 1e-7;
    const auto ledger = tune_fake(job, all_of(effects));
    EXPECT_EQ(ledger.trials[0].verdict, has_exact ? Verdict::kept : Verdict::refused);
    EXPECT_EQ(ledger.trials[0].numerics.baseline_error.has_value(), has_exact);
    EXPECT_EQ(ledger.trials[0].numerics.why_not_float64.empty(), has_exact);
    EXPECT_EQ(ledger.trials[1].reason, Reason::numerics);
  }
}

}  // namespace
}  // namespace headrace
