#include "insight/tune/tuner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "insight/tune/quietness.h"

namespace headrace {
namespace {

constexpr double kReturnShare = 0.05;          // Of the budget: less is not worth returning to an open trial for.
constexpr std::int64_t kSpeedupPairsMax = 64;  // More make the reported interval no more useful.

std::string percent(double gain) {
  return fmt::format("{:+.1f} %", gain * 100);
}

std::string sentence_of(const Estimate& log_gain, std::int64_t pairs) {
  return gain_text(to_gain(log_gain), pairs);
}

// What a change that pays late does once it pays.
std::string late_sentence(const Trial& trial) {
  if (trial.late_share == 0 || trial.pairs == 0) return {};
  return fmt::format("; after the first {:.0f} % of the run, in which it cannot pay yet, {}", trial.late_share * 100,
                     percent(median(trial.baseline_s) / median(trial.candidate_s) - 1));
}

std::string figures_of(const NumericResult& result) {
  const std::string own =
      result.baseline_error ? fmt::format(" (the job as written: {:.3g})", *result.baseline_error) : "";
  return fmt::format("{}: {:.3g}, at most {:.3g}{}", result.measure, result.value, result.tolerance, own);
}

std::vector<Candidate> select(std::vector<Candidate> candidates, const std::vector<std::string>& only) {
  if (only.empty()) return candidates;
  std::string known;
  for (const auto& candidate : candidates) known += (known.empty() ? "" : ", ") + candidate.name;
  for (const auto& name : only) {
    const auto is_named = [&](const Candidate& candidate) { return candidate.name == name; };
    if (std::any_of(candidates.begin(), candidates.end(), is_named)) continue;
    fail(ErrorCode::invalid_argument, "tune: tune.only names \"{}\"; the candidates are: {}", name,
         known.empty() ? "none" : known);
  }
  std::erase_if(candidates, [&](const Candidate& candidate) {
    return std::find(only.begin(), only.end(), candidate.name) == only.end();
  });
  return candidates;
}

Settings with(Settings settings, const Settings& changes) {
  for (const auto& [key, value] : changes) settings[key] = value;
  return settings;
}

}  // namespace

bool is_fixed(const std::string& key, const std::vector<std::string>& fixed) {
  return std::any_of(fixed.begin(), fixed.end(), [&](const std::string& entry) {
    return key == entry || key.compare(0, entry.size() + 1, entry + ".") == 0;
  });
}

Tuner::Tuner(Job& job, std::vector<Candidate> candidates, const TuneOptions& options, std::uint64_t seed,
             const TuneProgress& progress, Clock clock, LoadReader read_load)
    : job_(job),
      candidates_(select(std::move(candidates), options.only)),
      options_(options),
      seed_(seed),
      progress_(progress),
      clock_(std::move(clock)),
      read_load_(std::move(read_load)),
      check_(job, [this] { return keep_going() && clock_() < trials_end_s_; },
             {clock_, [this] { return std::min(kExactShare * options_.budget_s, (trials_end_s_ - clock_()) / 2); }}) {
  for (const Candidate& candidate : candidates_) {
    if (candidate.switches != Switches::new_process) continue;
    for (const auto& [key, value] : candidate.changes) process_keys_.insert(key);
  }
}

Ledger Tuner::run() {
  start_s_ = clock_();
  end_s_ = start_s_ + options_.budget_s;
  trials_end_s_ = end_of_trials_s(kReserve);
  for (const auto& candidate : candidates_) {
    Trial trial;
    trial.name = candidate.name;
    trial.changes = candidate.changes;
    trial.late_share = candidate.late_share;
    trial.numerics.numeric_class = candidate.numerics;
    ledger_.trials.push_back(trial);
  }
  comparison_of_.resize(candidates_.size());
  job_.snapshot();
  const auto measure_baseline = [this] {
    const CpuLoad before = read_load_ ? read_load_() : CpuLoad{};
    calibrate();
    judge_machine(before);
  };
  if (const auto fault = attempt(measure_baseline)) blame(*fault, {});
  for (std::size_t index = 0; index < candidates_.size(); ++index) {
    if (progress_.trying) progress_.trying(candidates_[index], index, candidates_.size());
    try_candidate(index, candidates_.size() - index);
    if (progress_.decided) progress_.decided(ledger_.trials[index]);
  }
  return_to_open_trials();
  leave_each_out();
  compare_with_baseline();
  processes_.reset();
  ledger_.best = settings_of(kept_);
  job_.configure(without_process_keys(ledger_.best));
  job_.restore();
  ledger_.budget_s = options_.budget_s;
  ledger_.spent_s = clock_() - start_s_;
  return ledger_;
}

void Tuner::calibrate() {
  timed_steps(job_, 1);  // The very first step pays for what later ones find ready.
  const double begin_s = clock_();
  switch_to(job_, {});
  switch_s_ = clock_() - begin_s;
  const double step_s = timed_steps(job_, 1).front();
  const double enough_s = std::min(0.2, 0.02 * options_.budget_s);
  const auto steps = std::clamp<std::int64_t>(std::llround(enough_s / step_s), 1, 1000);
  baseline_step_s_ = best_step_s_ = median(timed_steps(job_, steps));
}

// Blocks of the job as written, as long as a trial's, and what the kernel has counted of others since `before`.
void Tuner::judge_machine(const CpuLoad& before) {
  const auto trials = static_cast<double>(std::max<std::size_t>(1, candidates_.size()));
  const BlockPlan plan = plan_of_trial(best_step_s_, (trials_end_s_ - clock_()) / trials, "");
  const double block_s = static_cast<double>(plan.steps) * best_step_s_;
  const double end_s = clock_() + kQuietShare * options_.budget_s;
  std::vector<double> blocks_s;
  // Where the least number does not fit, the spread stays unavailable.
  const bool fits = clock_() + static_cast<double>(kQuietBlocksMin) * block_s <= end_s;
  while (fits && static_cast<std::int64_t>(blocks_s.size()) < kQuietBlocks && clock_() + block_s <= end_s &&
         keep_going()) {
    const auto times = timed_steps(job_, plan.steps);
    blocks_s.push_back(std::accumulate(times.begin(), times.end(), 0.0));
  }
  const CpuUse use = cpu_use_between(before, read_load_ ? read_load_() : CpuLoad{});
  Quietness& found = ledger_.quietness;
  found = judge_quietness(blocks_s, use, options_.gain_min);
  found.candidates_wanted = static_cast<std::int64_t>(candidates_.size());
  if (!is_quiet()) {
    plan_judged_ = plan;
    found.candidates_held = std::min(decisions_held(), found.candidates_wanted);
    found.sentence += fmt::format(
        " A gain of {:.0f} % takes about {} pairs, {:.3g} s, to decide: the budget of {:.4g} s goes to the first of "
        "the "
        "{} changes, about {} of them, and what it does not hold is left out{}.",
        kGainPlanned * 100, decision_pairs(), seconds_for(decision_pairs()), options_.budget_s, found.candidates_wanted,
        found.candidates_held, found.cores_taken ? ", as is the division of the cores" : "");
  }
  if (progress_.judged) progress_.judged(found);
}

std::int64_t Tuner::decision_pairs() const {
  return ledger_.quietness.pairs_needed > 0 ? ledger_.quietness.pairs_needed : kShortPairsWanted;
}

double Tuner::seconds_for(std::int64_t pairs) const {
  const double pair_s = 2 * (static_cast<double>(plan_judged_.warmup + plan_judged_.steps) * best_step_s_ + switch_s_);
  return static_cast<double>(pairs) * pair_s + 2 * static_cast<double>(kCheckedBatches) * best_step_s_;
}

std::int64_t Tuner::decisions_held() const {
  const double left_s = trials_end_s_ - clock_();
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(left_s / seconds_for(decision_pairs())));
}

double Tuner::end_of_trials_s(double reserve) const {
  return start_s_ + (1 - reserve) * options_.budget_s;
}

bool Tuner::keep_going() {
  if (!stopped_ && progress_.stop && progress_.stop()) stopped_ = true;
  return !stopped_;
}

void Tuner::try_candidate(std::size_t index, std::size_t left) {
  if (settled_untried(index) || settled_for_noise(index)) return;
  ++tried_;
  // A fair share of what is left; what a trial does not use goes to the later ones. One that is near its verdict may
  // take a second share, because those that fail early leave theirs.
  const double now_s = clock_();
  if (!is_quiet()) left = std::min(left, static_cast<std::size_t>(decisions_held()));
  const double share_s = (trials_end_s_ - now_s) / static_cast<double>(left);
  const Limits limits{now_s + share_s, std::min(trials_end_s_, now_s + 2 * share_s)};
  while (try_on_best(index, limits) == Next::again) {
  }
  end_trial(index);
}

// Trials that ended with their share of the budget go on in what the others left: those that promise something first,
// then those that seem to cost something. Where the best configuration has changed since, one that promises something
// begins anew; else the pairs so far count on, as bets hold at every look. As long as nothing is kept, what would pay
// for taking kept changes out goes to them too.
void Tuner::return_to_open_trials() {
  Indices open;
  const auto promises = [this](std::size_t index) { return ledger_.trials[index].gain->median > options_.gain_min; };
  for (std::size_t index = 0; index < ledger_.trials.size(); ++index) {
    const Trial& trial = ledger_.trials[index];
    const bool ended_by_time = trial.verdict == Verdict::inconclusive && trial.reason == Reason::budget && trial.gain;
    if (ended_by_time && (promises(index) || goes_on(index))) open.push_back(index);
  }
  std::sort(open.begin(), open.end(), [&](std::size_t a, std::size_t b) {
    if (promises(a) != promises(b)) return promises(a);
    return std::abs(ledger_.trials[a].gain->median) > std::abs(ledger_.trials[b].gain->median);
  });
  for (std::size_t i = 0; i < open.size(); ++i) {
    trials_end_s_ = end_of_trials_s(kept_.empty() && promises(open[i]) ? kReserveOfOne : kReserve);
    const double now_s = clock_(), share_s = (trials_end_s_ - now_s) / static_cast<double>(open.size() - i);
    if (!keep_going() || share_s < kReturnShare * options_.budget_s) return;
    Trial& trial = ledger_.trials[open[i]];
    const Trial before = trial;
    if (progress_.trying) progress_.trying(candidates_[open[i]], open[i], candidates_.size());
    while (try_on_best(open[i], {now_s + share_s, trials_end_s_}) == Next::again) {
    }
    end_trial(open[i]);
    if (trial.pairs == 0 && trial.verdict == Verdict::inconclusive) trial = before;
    if (progress_.decided) progress_.decided(trial);
  }
}

bool Tuner::settled_untried(std::size_t index) {
  Trial& trial = ledger_.trials[index];
  for (const auto& [key, value] : candidates_[index].changes) {
    if (!is_fixed(key, options_.fixed)) continue;
    settle(trial, Verdict::refused, Reason::fixed, fmt::format("Not tried: tune.fixed protects {}.", key));
    return true;
  }
  const NumericClass numerics = candidates_[index].numerics;
  if (numerics > options_.allow) {
    settle(trial, Verdict::refused, Reason::not_allowed,
           fmt::format("Not tried: it needs tune.allow = \"{}\".", to_string(numerics)));
    return true;
  }
  if (!keep_going() || clock_() >= trials_end_s_) {
    settle_early(trial);
    return true;
  }
  return false;
}

// On a machine that is not quiet, a budget divided among all changes decides none of them: the first ones get as much
// as a decision takes, and later ones are tried as long as what is left holds the pairs without which nothing is kept.
bool Tuner::settled_for_noise(std::size_t index) {
  if (is_quiet()) return false;
  Trial& trial = ledger_.trials[index];
  if (candidates_[index].divides_cores && ledger_.quietness.cores_taken) {
    settle(trial, Verdict::inconclusive, Reason::not_quiet,
           "Not tried: others take the cores, and which division of them pays depends on that.");
    return true;
  }
  const double left_s = trials_end_s_ - clock_();
  if (tried_ == 0 || left_s >= seconds_for(kPairsToKeep)) return false;
  settle(trial, Verdict::inconclusive, Reason::not_quiet,
         fmt::format("Not tried: the machine is not quiet, and the budget went to the first {}; the {:.2g} s left hold "
                     "fewer than {} pairs.",
                     tried_, left_s, kPairsToKeep));
  return true;
}

// Whether the trial's pairs so far are of the best configuration as it is now.
bool Tuner::goes_on(std::size_t index) const {
  const auto& comparison = comparison_of_[index];
  return comparison && comparison->pairs() > 0 && comparison->first() == settings_of(kept_);
}

Tuner::Next Tuner::try_on_best(std::size_t index, const Limits& limits) {
  Trial& trial = ledger_.trials[index];
  if (goes_on(index)) return compare_speed(index, comparison_of_[index]->second(), limits);
  trial.pairs = 0;
  trial.gain.reset();
  trial.baseline_s.clear();
  trial.candidate_s.clear();
  const Settings best = settings_of(kept_);
  const Settings settings = with(best, candidates_[index].changes);
  if (settings == best) {
    return settle(trial, Verdict::refused, Reason::no_gain, "Not tried: it changes nothing in the best configuration.");
  }
  for (const std::size_t kept : kept_) {
    const auto& excludes = candidates_[index].excludes;
    if (std::find(excludes.begin(), excludes.end(), candidates_[kept].key) == excludes.end()) continue;
    return settle(trial, Verdict::refused, Reason::no_gain,
                  fmt::format("Not tried: it does nothing beside {}, which is kept.", candidates_[kept].name));
  }
  const Next next = candidates_[index].switches == Switches::new_process ? check_in_processes(index, settings, limits)
                                                                         : check_numerics(index);
  return next == Next::go_on ? compare_speed(index, settings, limits) : next;
}

Settings Tuner::without_process_keys(Settings settings) const {
  std::erase_if(settings, [this](const auto& setting) { return process_keys_.contains(setting.first); });
  return settings;
}

Job& Tuner::job_for(const Settings& first, const Settings& second) {
  if (processes_ != nullptr) return *processes_;
  if (without_process_keys(first) == first && without_process_keys(second) == second) return job_;
  processes_ = job_.in_processes(first, second);
  if (processes_ == nullptr) fail(ErrorCode::unsupported, "tune: this job has no processes to be measured in");
  return *processes_;
}

double Tuner::prepare_s(const Settings& settings) const {
  double longest = 0;
  for (const Candidate& candidate : candidates_) {
    if (candidate.switches != Switches::new_process || with(settings, candidate.changes) != settings) continue;
    longest = std::max(longest, candidate.prepare_s);
  }
  return longest;
}

// No two trials hold processes at a time: each has the memory of a whole job. So pairs that were measured in them
// cannot go on; a trial that is returned to begins anew.
void Tuner::end_trial(std::size_t index) {
  if (processes_ == nullptr) return;
  comparison_of_[index].reset();
  processes_.reset();
}

// Both arms are such processes, so that they differ in nothing else; their state is one of its own, and so is the hash
// that they must agree on.
Tuner::Next Tuner::check_in_processes(std::size_t index, const Settings& settings, const Limits& limits) {
  Trial& trial = ledger_.trials[index];
  const double start_s = candidates_[index].prepare_s;
  // A change that is kept has them started once more, for the last comparison.
  if (clock_() + start_s > limits.hard_end_s || start_s > end_s_ - trials_end_s_) {
    return settle(trial, Verdict::inconclusive, Reason::budget,
                  fmt::format("Not tried: the processes that it is timed in take about {:.2g} s to start, and as long "
                              "again for the last comparison, which the budget of {:.4g} s does not hold.",
                              start_s, options_.budget_s));
  }
  const Settings best = settings_of(kept_);
  std::optional<NumericResult> result;
  const auto fault = attempt([&] {
    NumericCheck check(job_for(best, settings), [this] { return keep_going() && clock_() < trials_end_s_; });
    if (check.prepare(NumericClass::bit_equal, best)) result = check.check(NumericClass::bit_equal, settings);
  });
  if (fault) return settle_fault(index, *fault, 0);
  if (!result) return settle_early(trial);
  trial.numerics = *result;
  if (result->passed) return Next::go_on;
  return settle(trial, Verdict::refused, Reason::numerics,
                fmt::format("Computes something else: {}.", figures_of(*result)));
}

Tuner::Next Tuner::check_numerics(std::size_t index) {
  std::vector<const Candidate*> kept;
  for (const std::size_t other : kept_) kept.push_back(&candidates_[other]);
  for (const NumericPair& pair : numeric_pairs(candidates_[index], kept)) {
    // A kept change that needs a new process is bit_equal there: what it stands beside computes the same without it.
    const Next next = check_numeric_pair(
        index, {pair.numeric_class, without_process_keys(pair.reference), without_process_keys(pair.candidate)});
    if (next != Next::go_on) return next;
  }
  return Next::go_on;
}

Tuner::Next Tuner::check_numeric_pair(std::size_t index, const NumericPair& pair) {
  Trial& trial = ledger_.trials[index];
  const bool of_batches = candidates_[index].changes_batches;
  const std::int64_t steps =
      of_batches ? check_.steps_needed_for_batches() : check_.steps_needed(pair.numeric_class, pair.reference);
  if (clock_() + static_cast<double>(steps) * best_step_s_ > trials_end_s_) return settle_early(trial);

  bool whole = false;
  const auto prepare = [&] {
    whole = of_batches ? check_.prepare_batches() : check_.prepare(pair.numeric_class, pair.reference);
  };
  if (const auto fault = attempt(prepare)) {
    Indices in_force;
    for (const std::size_t kept : kept_) {
      if (with(pair.reference, candidates_[kept].changes) == pair.reference) in_force.push_back(kept);
    }
    blame(*fault, in_force);
    return stopped_ ? settle_early(trial) : Next::again;
  }
  if (!whole) return settle_early(trial);

  std::optional<NumericResult> result;
  const auto check = [&] {
    result = of_batches ? check_.check_batches(pair.numeric_class, pair.candidate)
                        : check_.check(pair.numeric_class, pair.candidate);
  };
  if (const auto fault = attempt(check)) return settle_fault(index, *fault, kBitEqualSteps);
  if (!result) return settle_early(trial);
  if (pair.numeric_class == candidates_[index].numerics || !result->passed) trial.numerics = *result;
  if (result->passed) return Next::go_on;
  return settle(trial, Verdict::refused, Reason::numerics,
                fmt::format("{} something else: {}.", of_batches ? "Brings" : "Computes", figures_of(*result)));
}

// What changes loading shows when the queue of batches has settled, which takes longer blocks. Where the machine is not
// quiet, blocks are no longer than those that the decision was estimated with.
BlockPlan Tuner::plan_of_trial(double second_step_s, double share_s, const std::string& resource) const {
  const std::int64_t wanted = resource == "data" ? kPairsWanted : kShortPairsWanted;
  const std::int64_t needed = is_quiet() ? 0 : ledger_.quietness.pairs_needed;
  return plan_blocks(best_step_s_, second_step_s, switch_s_, share_s, std::max(wanted, needed));
}

// Measures nothing yet: what a configuration builds once, and how long its steps are, which decides how long the blocks
// are.
Tuner::Next Tuner::begin_comparison(std::size_t index, const Settings& settings, const Limits& limits,
                                    std::int64_t& steps_run) {
  const auto first_steps = std::clamp<std::int64_t>(std::llround(0.1 / best_step_s_), best_step_s_ > 0.5 ? 1 : 2, 200);
  const Settings best = settings_of(kept_);
  double step_s = 0;
  const auto first_fault = attempt([&] {
    Job& job = job_for(best, settings);
    switch_to(job, settings);
    const auto times = timed_steps(job, first_steps);
    step_s = median({times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end()});
  });
  if (first_fault) return settle_fault(index, *first_fault, first_steps);
  steps_run = first_steps;
  const double share_s = limits.share_end_s - clock_();
  const BlockPlan plan = plan_of_trial(step_s, share_s, candidates_[index].resource);
  comparison_of_[index].emplace(job_for(best, settings), best, settings, plan, ledger_.trials[index].late_share, seed_,
                                comparisons_++);
  return Next::go_on;
}

Tuner::Next Tuner::compare_speed(std::size_t index, const Settings& settings, const Limits& limits) {
  Trial& trial = ledger_.trials[index];
  std::int64_t steps_run = 0;
  if (!goes_on(index)) {
    const Next next = begin_comparison(index, settings, limits, steps_run);
    if (next != Next::go_on) return next;
  }
  Comparison& comparison = *comparison_of_[index];
  const auto measured = run_pairs(comparison, limits);
  trial.pairs = comparison.pairs();
  trial.baseline_s = comparison.first_s();
  trial.candidate_s = comparison.second_s();
  if (trial.pairs > 0) trial.gain = to_gain(measured.log_gain);
  steps_run += trial.pairs * (comparison.plan().warmup + comparison.plan().steps);
  if (measured.end == End::fault) {
    // Of two processes either may be what failed, and without the change there would be neither.
    const bool is_own = measured.fault->arm == Arm::second || processes_ != nullptr;
    if (is_own) return settle_fault(index, measured.fault->fault, steps_run);
    blame(measured.fault->fault, kept_);
    return stopped_ ? settle_early(trial) : Next::again;
  }
  if (measured.end == End::stopped) return settle_early(trial);
  if (trial.pairs == 0) return settle_early(trial);
  best_step_s_ = median(trial.baseline_s);
  if (kept_.empty()) baseline_step_s_ = best_step_s_;

  const auto late_fault =
      run_unmeasured(settings, kTrialStepsMin - steps_run, median(trial.candidate_s), limits.hard_end_s);
  return late_fault ? settle_fault(index, *late_fault, kTrialStepsMin) : judge(index, measured);
}

std::optional<Fault> Tuner::run_unmeasured(const Settings& settings, std::int64_t steps, double step_s, double end_s) {
  const auto piece = std::max<std::int64_t>(1, std::llround(0.2 / step_s));
  Job& job = processes_ == nullptr ? job_ : *processes_;
  return attempt([&] {
    if (steps > 0) switch_to(job, processes_ == nullptr ? without_process_keys(settings) : settings);
    for (std::int64_t left = steps; left > 0 && keep_going(); left -= piece) {
      if (clock_() + static_cast<double>(std::min(piece, left)) * step_s > end_s) return;
      timed_steps(job, std::min(piece, left));
    }
  });
}

Tuner::Next Tuner::judge(std::size_t index, const Measured& measured) {
  Trial& trial = ledger_.trials[index];
  const std::string found = sentence_of(measured.log_gain, trial.pairs) + late_sentence(trial);
  const std::string needed = pairs_needed_text(measured.pairs_needed);
  switch (measured.outcome) {
    case Outcome::slower:
      return settle(trial, Verdict::refused, Reason::slower, fmt::format("Slower: {}.", found));
    case Outcome::no_gain:
      return settle(trial, Verdict::refused, Reason::no_gain,
                    fmt::format("Gains less than {:.1f} %: {}.", options_.gain_min * 100, found));
    case Outcome::open:
      return settle(trial, Verdict::inconclusive, Reason::budget,
                    fmt::format("Not decided when its share of the budget was used up: {}{}{}.", found,
                                needed.empty() ? "" : "; ", needed));
    case Outcome::pays:
      break;
  }
  kept_.push_back(index);
  best_step_s_ = median(trial.candidate_s);
  return settle(trial, Verdict::kept, Reason::none, fmt::format("Pays: {}.", found));
}

Tuner::Measured Tuner::run_pairs(Comparison& comparison, const Limits& limits, std::optional<std::int64_t> pairs) {
  const auto& plan = comparison.plan();
  double pair_s = 2 * switch_s_ + static_cast<double>(plan.warmup + plan.steps) * 2 * best_step_s_;
  double begin_s = clock_();
  std::int64_t pairs_before = comparison.pairs();
  Bets bets(options_.gain_min);
  for (const double log_ratio : comparison.log_ratios()) bets.add(log_ratio);
  const auto ended = [&](End end, std::optional<PairFault> fault = {}) {
    Estimate log_gain;
    if (comparison.pairs() > 0) log_gain = estimate_middle(comparison.log_ratios(), kTailError, kTailError);
    return Measured{end, bets.outcome(), log_gain, bets.pairs_needed(), std::move(fault)};
  };
  while (pairs ? comparison.pairs() < *pairs : bets.outcome() == Outcome::open) {
    if (!keep_going()) return ended(End::stopped);
    // One that seems to gain or to cost something is near its verdict.
    const bool near =
        comparison.pairs() < kPairsToKeep || std::abs(median(comparison.log_ratios())) > std::log1p(options_.gain_min);
    if (clock_() + pair_s > (near ? limits.hard_end_s : limits.share_end_s)) return ended(End::time);
    if (auto fault = comparison.measure_pair()) return ended(End::fault, std::move(fault));
    bets.add(comparison.log_ratios().back());
    if (processes_ != nullptr && comparison.pairs() == 1) {  // It may hold the start of both, as no other pair does.
      begin_s = clock_();
      pairs_before = 1;
      continue;
    }
    pair_s = (clock_() - begin_s) / static_cast<double>(comparison.pairs() - pairs_before);
  }
  return ended(End::done);
}

// A change that paid may pay no longer beside those kept after it. It proved itself once, so that it stays unless this
// comparison speaks against it: by the same bets, or, where they leave it open, by its middle. Where the start of
// processes has taken the time, the middle of fewer pairs than the bets need says nothing.
bool Tuner::still_pays(const Measured& measured, std::int64_t pairs) const {
  if (processes_ != nullptr && pairs < kPairsToDrop) return true;
  if (measured.outcome == Outcome::open) return measured.log_gain.center >= std::log1p(options_.gain_min);
  return measured.outcome == Outcome::pays;
}

void Tuner::leave_each_out() {
  const Indices order = kept_;
  const double end_s = clock_() + (end_s_ - clock_()) / 2;  // The other half is for the comparison with the baseline.
  for (std::size_t i = 0; i < order.size(); ++i) {
    // A single change left: its comparison is the one with the baseline.
    if (stopped_ || kept_.size() < 2) return;
    if (std::find(kept_.begin(), kept_.end(), order[i]) == kept_.end()) continue;
    leave_out(order[i], clock_() + (end_s - clock_()) / static_cast<double>(order.size() - i));
    processes_.reset();
  }
}

void Tuner::leave_out(std::size_t index, double end_s) {
  const Indices others = kept_without(index);
  const Settings without = settings_of(others), best = settings_of(kept_);
  if (without == best) {
    take_out(index, Verdict::refused, Reason::no_gain, "Replaced by a later change of the same keys.");
    return;
  }
  const double start_s = prepare_s(best);
  if (start_s > 0 && clock_() + start_s > end_s) return;
  const auto plan = plan_blocks(best_step_s_, best_step_s_, switch_s_, end_s - start_s - clock_());
  Comparison comparison(job_for(without, best), without, best, plan, candidates_[index].late_share, seed_,
                        comparisons_++);
  const auto measured = run_pairs(comparison, {end_s, end_s});
  if (measured.end == End::fault) {
    blame(measured.fault->fault, at_fault(measured.fault->arm, others));
    return;
  }
  if (measured.end == End::stopped || comparison.pairs() == 0) return;
  const std::string found = sentence_of(measured.log_gain, comparison.pairs());
  if (still_pays(measured, comparison.pairs())) {
    const bool pays = measured.outcome == Outcome::pays;
    ledger_.trials[index].sentence += fmt::format(" Taken out of the best configuration, {}: {}.",
                                                  pays ? "it still pays" : "nothing speaks against it", found);
    return;
  }
  best_step_s_ = median(comparison.first_s());
  take_out(index, Verdict::refused, Reason::no_gain,
           fmt::format("Taken out again, it no longer pays beside the others: {}.", found));
}

void Tuner::compare_with_baseline() {
  while (!kept_.empty() && !stopped_) {
    const Settings best = settings_of(kept_);
    const double whole_s = end_s_ - clock_(), left_s = std::max(whole_s - prepare_s(best), whole_s / 2);
    const auto plan = plan_blocks(baseline_step_s_, best_step_s_, switch_s_, left_s);
    const double pair_s =
        2 * switch_s_ + static_cast<double>(plan.warmup + plan.steps) * (baseline_step_s_ + best_step_s_);
    // How many is settled before the first one: the interval owes nothing to what the pairs show.
    const auto pairs = std::clamp<std::int64_t>(static_cast<std::int64_t>(left_s / pair_s), 0, kSpeedupPairsMax);
    processes_.reset();
    Comparison comparison(job_for({}, best), {}, best, plan, late_share(kept_), seed_, comparisons_++);
    comparison.sum_splits();
    const auto measured = run_pairs(comparison, {end_s_, end_s_}, pairs);
    if (measured.end == End::fault) {
      blame(measured.fault->fault, at_fault(measured.fault->arm, {}));
      continue;
    }
    if (comparison.pairs() == 0) break;
    if (kept_.size() == 1 && measured.end != End::stopped && !still_pays(measured, comparison.pairs())) {
      baseline_step_s_ = median(comparison.first_s());
      take_out(
          kept_.front(), Verdict::refused, Reason::no_gain,
          fmt::format("Taken out again, it no longer pays: {}.", sentence_of(measured.log_gain, comparison.pairs())));
      break;
    }
    record_speedup(comparison, measured.log_gain);
    return;
  }
  ledger_.baseline_samples_per_second = samples_per_second(baseline_step_s_);
  ledger_.best_samples_per_second = samples_per_second(kept_.empty() ? baseline_step_s_ : best_step_s_);
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  ledger_.speedup = kept_.empty() ? Interval{1, 1, 1} : Interval{unknown, unknown, unknown};
}

void Tuner::record_speedup(const Comparison& comparison, const Estimate& log_gain) {
  ledger_.speedup = {std::exp(log_gain.center), std::exp(log_gain.low), std::exp(log_gain.high)};
  ledger_.speedup_pairs = comparison.pairs();
  ledger_.baseline_s = comparison.first_s();
  ledger_.best_s = comparison.second_s();
  ledger_.baseline_split = comparison.first_split();
  ledger_.best_split = comparison.second_split();
  ledger_.baseline_samples_per_second = samples_per_second(median(comparison.first_s()));
  ledger_.best_samples_per_second = samples_per_second(median(comparison.second_run_s()));
}

double Tuner::samples_per_second(double step_s) const {
  // Nothing was measured when a stop came before the first step.
  return step_s > 0 ? static_cast<double>(job_.samples_per_step()) / step_s : std::numeric_limits<double>::quiet_NaN();
}

Tuner::Next Tuner::settle(Trial& trial, Verdict verdict, Reason reason, std::string sentence) {
  trial.verdict = verdict;
  trial.reason = reason;
  trial.sentence = std::move(sentence);
  return Next::settled;
}

Tuner::Next Tuner::settle_early(Trial& trial) {
  const std::string when = trial.pairs == 0 ? "before a pair was measured" : fmt::format("after {} pairs", trial.pairs);
  if (stopped_) return settle(trial, Verdict::inconclusive, Reason::none, fmt::format("Stopped {}.", when));
  return settle(trial, Verdict::inconclusive, Reason::budget,
                fmt::format("The budget of {:.4g} s was used up {}.", options_.budget_s, when));
}

// The candidate ran on top of the kept changes, one of which may be what failed: they run without it for a while first,
// the longer, the rarer the fault seems to be.
Tuner::Next Tuner::settle_fault(std::size_t index, const Fault& fault, std::int64_t steps_run) {
  Trial& trial = ledger_.trials[index];
  if (fault.code == ErrorCode::cancelled) {
    stopped_ = true;
    return settle_early(trial);
  }
  job_.restore();
  trial.gain.reset();
  // Where the trial had processes of its own, the fault was theirs.
  const bool others_may_be = !kept_.empty() && processes_ == nullptr;
  const std::int64_t steps = others_may_be ? std::min(3 * kTrialStepsMin, 3 * steps_run + 5) : 0;
  if (const auto other = run_unmeasured(settings_of(kept_), steps, best_step_s_, trials_end_s_)) {
    blame(*other, kept_);
    return stopped_ ? settle_early(trial) : Next::again;
  }
  if (fault.code == ErrorCode::out_of_memory) {
    return settle(trial, Verdict::refused, Reason::memory, fmt::format("Does not fit: {}.", fault.message));
  }
  return settle(trial, Verdict::failed, Reason::error, fmt::format("Failed: {}.", fault.message));
}

// Of several kept changes the newest has run the fewest steps without a fault. With none in force the job itself fails,
// which is no outcome of a trial.
void Tuner::blame(const Fault& fault, const Indices& in_force) {
  if (fault.code == ErrorCode::cancelled) {
    stopped_ = true;
    return;
  }
  if (in_force.empty()) std::rethrow_exception(fault.exception);
  job_.restore();
  best_step_s_ = baseline_step_s_;
  const bool memory = fault.code == ErrorCode::out_of_memory;
  take_out(in_force.back(), memory ? Verdict::refused : Verdict::failed, memory ? Reason::memory : Reason::error,
           fmt::format("Kept at first, then failed: {}.", fault.message));
}

void Tuner::take_out(std::size_t index, Verdict verdict, Reason reason, const std::string& sentence) {
  kept_ = kept_without(index);
  Trial& trial = ledger_.trials[index];
  trial.removed_again = true;
  settle(trial, verdict, reason, sentence);
  if (progress_.decided) progress_.decided(trial);
}

Tuner::Indices Tuner::kept_without(std::size_t index) const {
  Indices others = kept_;
  std::erase(others, index);
  return others;
}

// In processes, whichever arm it was, those without which there would be none. Where another one fails there, the
// comparisons that the job itself makes afterwards show it.
Tuner::Indices Tuner::at_fault(Arm arm, const Indices& kept_in_first) const {
  if (processes_ == nullptr) return arm == Arm::first ? kept_in_first : kept_;
  Indices found;
  for (const std::size_t index : kept_) {
    if (candidates_[index].switches == Switches::new_process) found.push_back(index);
  }
  return found;
}

Settings Tuner::settings_of(const Indices& kept) const {
  Settings settings;
  for (const std::size_t index : kept) settings = with(std::move(settings), candidates_[index].changes);
  return settings;
}

double Tuner::late_share(const Indices& kept) const {
  double share = 0;
  for (const std::size_t index : kept) share = std::max(share, candidates_[index].late_share);
  return share;
}

Ledger tune(Job& job, const std::vector<Candidate>& candidates, const TuneOptions& options, std::uint64_t seed,
            const TuneProgress& progress) {
  const auto seconds = [] { return static_cast<double>(monotonic_ns()) * 1e-9; };
  return Tuner(job, candidates, options, seed, progress, seconds, [] { return read_cpu_load(); }).run();
}

}  // namespace headrace
