// Trials of settings that only a process can begin with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "insight/tune/fake_job.h"
#include "insight/tune/tuner.h"

namespace headrace {
namespace {

constexpr const char* kPolicy = "policy";  // The key that needs a new process.
constexpr double kProcess_s = 2;           // Until a process can make steps.

// Whose processes share the fake's clock and its effects, and are counted.
class JobWithProcesses : public FakeJob {
 public:
  using FakeJob::FakeJob;

  void configure(const Settings& wanted) override {
    EXPECT_FALSE(wanted.contains(kPolicy));
    FakeJob::configure(wanted);
  }
  std::unique_ptr<Job> in_processes(const Settings& first, const Settings& second) override;

  struct Fault {
    bool is_of_second = true;
    std::int64_t runs_before = 0;  // That go well.
    ErrorCode code = ErrorCode::internal;
  };
  bool has_processes = true;
  std::optional<Fault> fault;
  std::int64_t living = 0, living_max = 0, pairs_of_processes = 0, runs_in_processes = 0;
};

class FakeProcesses : public Job {
 public:
  FakeProcesses(JobWithProcesses& job, Settings first, Settings second)
      : job_(job), first_(std::move(first)), second_(std::move(second)) {
    ++job_.pairs_of_processes;
    job_.living_max = std::max(job_.living_max, ++job_.living);
  }
  ~FakeProcesses() override { --job_.living; }

  void snapshot() override {}
  void restore() override { job_.restore(); }
  void configure(const Settings& settings) override {
    ASSERT_TRUE(settings == first_ || settings == second_);
    is_second_ = settings == second_;
    bool& started = started_[is_second_ ? 1 : 0];
    if (!std::exchange(started, true)) job_.wait(kProcess_s);
    job_.FakeJob::configure(settings);
  }
  std::vector<double> run(std::int64_t steps) override {
    const auto& fault = job_.fault;
    if (fault && fault->is_of_second == is_second_ && job_.runs_in_processes >= fault->runs_before) {
      fail(fault->code, "fake: the process was killed");
    }
    ++job_.runs_in_processes;
    return job_.run(steps);
  }
  std::uint64_t state_hash() override { return job_.state_hash(); }
  std::int64_t samples_per_step() const override { return job_.samples_per_step(); }
  Fingerprint fingerprint(std::int64_t /*batch*/) override { fail(ErrorCode::unsupported, "fake: not asked for"); }
  double update_difference(const Settings& /*a*/, const Settings& /*b*/) override {
    fail(ErrorCode::unsupported, "fake: not asked for");
  }

 private:
  JobWithProcesses& job_;
  Settings first_, second_;
  bool is_second_ = false, started_[2] = {false, false};
};

std::unique_ptr<Job> JobWithProcesses::in_processes(const Settings& first, const Settings& second) {
  if (!has_processes) return nullptr;
  return std::make_unique<FakeProcesses>(*this, first, second);
}

Candidate plain(const std::string& name, NumericClass numerics = NumericClass::rounding) {
  return {name, "A planted knob.", {{name, "true"}}, numerics, "compute"};
}

Candidate policy() {
  Candidate candidate = plain(kPolicy, NumericClass::bit_equal);
  candidate.switches = Switches::new_process;
  candidate.prepare_s = 2 * kProcess_s;
  return candidate;
}

Ledger tune_fake(JobWithProcesses& job, const std::vector<Candidate>& candidates, const TuneOptions& options = {}) {
  const Ledger ledger = Tuner(job, candidates, options, 1, {}, [&job] { return job.now_s(); }).run();
  EXPECT_EQ(job.living, 0);
  EXPECT_LE(job.living_max, 1);
  EXPECT_FALSE(job.settings.contains(kPolicy));
  return ledger;
}

TEST(ProcessTrials, WhatPaysIsKeptBesideOthersAndTheJobItselfNeverGetsIt) {
  JobWithProcesses job({}, {{"faster", {.time_factor = 0.8}}, {kPolicy, {.time_factor = 0.75}}}, 5);
  const Ledger ledger = tune_fake(job, {plain("faster"), policy()});
  ASSERT_EQ(ledger.trials.size(), 2U);
  for (const Trial& trial : ledger.trials) EXPECT_EQ(trial.verdict, Verdict::kept) << trial.sentence;
  EXPECT_EQ(ledger.best, (Settings{{"faster", "true"}, {kPolicy, "true"}}));
  EXPECT_TRUE(ledger.trials[1].numerics.checked && ledger.trials[1].numerics.passed);
  EXPECT_EQ(ledger.trials[1].numerics.numeric_class, NumericClass::bit_equal);
  EXPECT_NEAR(ledger.speedup.median, 1 / 0.6, 0.1);
  EXPECT_EQ(job.pairs_of_processes, 4) << "its trial, each of the two left out, and the baseline";
  EXPECT_EQ(job.settings, (Settings{{"faster", "true"}}));
  EXPECT_FALSE(ledger.best_split) << "processes tell no parts of a step";
  EXPECT_LE(ledger.spent_s, 90 + 1.5);
}

TEST(ProcessTrials, WhatIsTriedBesideAKeptOneIsTimedWithItAndItsNumbersAreCheckedWithout) {
  JobWithProcesses job({}, {{"faster", {.time_factor = 0.8}}, {kPolicy, {.time_factor = 0.75}}}, 5);
  const Ledger ledger = tune_fake(job, {policy(), plain("faster")});
  for (const Trial& trial : ledger.trials) EXPECT_EQ(trial.verdict, Verdict::kept) << trial.sentence;
  EXPECT_TRUE(ledger.trials[1].numerics.passed);
  EXPECT_EQ(job.pairs_of_processes, 5);
}

TEST(ProcessTrials, OneThatLosesIsRefusedAndOneWithOtherBitsIsNotTimed) {
  JobWithProcesses slower({}, {{kPolicy, {.time_factor = 1.25}}}, 5);
  EXPECT_EQ(tune_fake(slower, {policy()}).trials[0].reason, Reason::slower);
  JobWithProcesses wrong({}, {{kPolicy, {.time_factor = 0.5, .other_bits = true}}}, 5);
  const Trial trial = tune_fake(wrong, {policy()}).trials[0];
  EXPECT_EQ(trial.reason, Reason::numerics);
  EXPECT_EQ(trial.pairs, 0);
}

TEST(ProcessTrials, AProcessThatDiesIsAFailureOfTheTrialWhicheverOfTheTwoItIs) {
  for (const bool is_of_second : {false, true}) {
    for (const std::int64_t runs_before : {0, 1, 9}) {
      SCOPED_TRACE(std::to_string(runs_before) + (is_of_second ? " second" : " first"));
      JobWithProcesses job({}, {{"faster", {.time_factor = 0.8}}, {kPolicy, {.time_factor = 0.75}}}, 5);
      job.fault = {is_of_second, runs_before};
      const Ledger ledger = tune_fake(job, {plain("faster"), policy()});
      EXPECT_EQ(ledger.trials[0].verdict, Verdict::kept) << ledger.trials[0].sentence;
      EXPECT_EQ(ledger.trials[1].verdict, Verdict::failed);
      EXPECT_EQ(ledger.trials[1].sentence, "Failed: fake: the process was killed.");
      EXPECT_EQ(ledger.best, (Settings{{"faster", "true"}}));
      EXPECT_EQ(job.pairs_of_processes, 1);
    }
  }
}

TEST(ProcessTrials, AProcessThatDiesOnceItsChangeIsKeptTakesItOutAgain) {
  for (const bool is_of_second : {false, true}) {
    JobWithProcesses job({}, {{kPolicy, {.time_factor = 0.75}}}, 5);
    ASSERT_EQ(tune_fake(job, {policy()}).trials[0].verdict, Verdict::kept);
    const std::int64_t runs = job.runs_in_processes;
    JobWithProcesses again({}, {{kPolicy, {.time_factor = 0.75}}}, 5);
    again.fault = {is_of_second, runs - 4};  // In the last comparison's last pairs.
    const Trial trial = tune_fake(again, {policy()}).trials[0];
    EXPECT_EQ(trial.verdict, Verdict::failed);
    EXPECT_TRUE(trial.removed_again);
    EXPECT_THAT(trial.sentence, testing::HasSubstr("Kept at first, then failed"));
  }
}

TEST(ProcessTrials, TooLittleMemoryForThemIsRefusedAndAStopEndsTheTuning) {
  JobWithProcesses full({}, {{kPolicy, {}}}, 5);
  full.fault = {true, 0, ErrorCode::out_of_memory};
  EXPECT_EQ(tune_fake(full, {policy()}).trials[0].reason, Reason::memory);
  JobWithProcesses stopped({}, {{kPolicy, {}}, {"faster", {.time_factor = 0.8}}}, 5);
  stopped.fault = {true, 3, ErrorCode::cancelled};
  const Ledger ledger = tune_fake(stopped, {policy(), plain("faster")});
  for (const Trial& trial : ledger.trials) EXPECT_THAT(trial.sentence, testing::StartsWith("Stopped"));
}

TEST(ProcessTrials, AJobWithoutProcessesAndABudgetTooSmallForThemSaySo) {
  JobWithProcesses job({}, {{kPolicy, {}}}, 5);
  job.has_processes = false;
  const Trial failed = tune_fake(job, {policy()}).trials[0];
  EXPECT_EQ(failed.verdict, Verdict::failed);
  EXPECT_THAT(failed.sentence, testing::HasSubstr("has no processes"));
  JobWithProcesses hurried({}, {{kPolicy, {}}}, 5);
  const Trial open = tune_fake(hurried, {policy()}, {.budget_s = 4}).trials[0];
  EXPECT_EQ(open.verdict, Verdict::inconclusive);
  EXPECT_EQ(open.reason, Reason::budget);
  EXPECT_EQ(hurried.pairs_of_processes, 0);
}

}  // namespace
}  // namespace headrace
