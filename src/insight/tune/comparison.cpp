#include "insight/tune/comparison.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <numeric>
#include <utility>

#include "core/base/fail.h"
#include "core/base/random.h"

namespace headrace {
namespace {

constexpr double kBlockSecondsMin = 0.02;  // A scheduler's time slice or two, or the block times the scheduler.
constexpr double kBlockSecondsMax = 0.5;   // More pairs tell more than longer blocks.
constexpr double kWarmupSecondsMax = 0.05;

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

void check_times(const std::vector<double>& times, std::int64_t steps) {
  if (static_cast<std::int64_t>(times.size()) != steps) {
    fail(ErrorCode::internal, "tune: the job was asked for {} steps and returned {} times", steps, times.size());
  }
  for (const double time : times) {
    if (!(time > 0 && std::isfinite(time))) fail(ErrorCode::internal, "tune: the job says a step took {} s", time);
  }
}

}  // namespace

Interval to_gain(const Estimate& log_gain) {
  return {std::expm1(log_gain.center), std::expm1(log_gain.low), std::expm1(log_gain.high)};
}

std::string gain_text(const Interval& gain, std::int64_t pairs) {
  const auto percent = [](double value) { return fmt::format("{:+.1f} %", value * 100); };
  if (!std::isfinite(gain.high)) {
    return fmt::format("{} ({} pair{}, too few for an interval)", percent(gain.median), pairs, pairs == 1 ? "" : "s");
  }
  return fmt::format("{} (95 %: {} to {}, {} pairs)", percent(gain.median), percent(gain.low), percent(gain.high),
                     pairs);
}

std::string pairs_needed_text(std::optional<std::int64_t> pairs) {
  if (!pairs) return "";
  return fmt::format("about {} pair{} more would decide it", *pairs, *pairs == 1 ? "" : "s");
}

std::optional<Fault> attempt(const std::function<void()>& work) {
  try {
    work();
    return std::nullopt;
  } catch (const Error& error) {
    return Fault{error.code(), first_line(error.what()), std::current_exception()};
  } catch (const std::bad_alloc&) {
    return Fault{ErrorCode::out_of_memory, "out of memory", std::current_exception()};
  } catch (const std::exception& error) {
    return Fault{ErrorCode::internal, first_line(error.what()), std::current_exception()};
  } catch (...) {
    return Fault{ErrorCode::internal, "an exception without a message", std::current_exception()};
  }
}

BlockPlan plan_blocks(double first_step_s, double second_step_s, double switch_s, double share_s,
                      std::int64_t pairs_wanted) {
  const double step_s = (first_step_s + second_step_s) / 2;
  const double arm_s = share_s / static_cast<double>(pairs_wanted) / 2 - switch_s;
  const double block_s = std::clamp(arm_s * 0.8, kBlockSecondsMin, kBlockSecondsMax);
  BlockPlan plan;
  // A job of hundreds of microseconds needs many steps, one of seconds is timed by a single one.
  plan.steps = std::max<std::int64_t>(1, std::llround(block_s / step_s));
  const auto warmup_max = std::max<std::int64_t>(2, std::llround(kWarmupSecondsMax / step_s));
  plan.warmup = std::clamp<std::int64_t>(plan.steps / 3, 1, warmup_max);
  return plan;
}

void switch_to(Job& job, const Settings& settings) {
  job.configure(settings);
  job.restore();
}

std::vector<double> timed_steps(Job& job, std::int64_t steps) {
  auto times = job.run(steps);
  check_times(times, steps);
  return times;
}

Comparison::Comparison(Job& job, Settings first, Settings second, BlockPlan plan, double late_share, std::uint64_t seed,
                       std::int64_t number)
    : job_(job),
      first_(std::move(first)),
      second_(std::move(second)),
      plan_(plan),
      late_share_(late_share),
      seed_(seed),
      number_(number) {}

std::optional<PairFault> Comparison::measure_pair() {
  if (late_share_ > 0 && pairs() == 0) {
    const auto fault = attempt([&] {
      switch_to(job_, second_);
      timed_steps(job_, plan_.warmup + plan_.steps);
    });
    if (fault) return PairFault{Arm::second, *fault};
  }
  const bool first_leads = SampleRandom(seed_, number_, pairs()).below(2) == 0;
  Job::SplitRun blocks[2];
  double step_s[2] = {0, 0};
  for (const Arm arm : {first_leads ? Arm::first : Arm::second, first_leads ? Arm::second : Arm::first}) {
    const auto fault = attempt([&] {
      Job::SplitRun& block = blocks[arm == Arm::second];
      block = measure_block(arm == Arm::first ? first_ : second_);
      step_s[arm == Arm::second] =
          std::accumulate(block.step_s.begin(), block.step_s.end(), 0.0) / static_cast<double>(plan_.steps);
    });
    if (fault) return PairFault{arm, *fault};
  }
  first_s_.push_back(step_s[0]);
  second_s_.push_back(step_s[1]);
  second_run_s_.push_back(late_share_ * step_s[0] + (1 - late_share_) * step_s[1]);
  log_ratios_.push_back(std::log(first_s_.back() / second_run_s_.back()));
  add_splits(blocks[0], blocks[1]);
  return std::nullopt;
}

Job::SplitRun Comparison::measure_block(const Settings& settings) {
  switch_to(job_, settings);
  timed_steps(job_, plan_.warmup);
  if (!sums_splits_) return {timed_steps(job_, plan_.steps), std::nullopt};
  Job::SplitRun block = job_.run_split(plan_.steps);
  check_times(block.step_s, plan_.steps);
  if (block.split && block.split->steps != plan_.steps) {
    fail(ErrorCode::internal, "tune: the job was asked for {} steps and split {}", plan_.steps, block.split->steps);
  }
  return block;
}

void Comparison::add_splits(const Job::SplitRun& first, const Job::SplitRun& second) {
  if (!first.split || !second.split) return;
  add_sums(splits_[0], *first.split);
  add_sums(splits_[1], *second.split);
  ++pairs_split_;
}

std::optional<TimeSplit> Comparison::split_of(Arm arm) const {
  if (pairs_split_ == 0 || pairs_split_ != pairs()) return std::nullopt;
  return splits_[arm == Arm::second];
}

}  // namespace headrace
