// A training run under way that lives in virtual time: what its units take is what a seeded model of a noisy machine
// says, and the clock moves by that. For tests.
#pragma once

#include <headrace/live_tuner.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fail.h"

namespace headrace {

// What a setting that is on does to the loop.
struct LiveEffect {
  double time_factor = 1;  // Of a unit.
  double first_visit = 1;  // Of the first three units that it is on in, further.
  double aftermath = 1;    // Of the units behind the last one that it was on in,
  int aftermath_units = 2;
  double switch_s = 0;     // Of a switch to it or back.
  double prepare_s = 0;    // Of the first replay or unit of each combination that it is in, further.
  double load_factor = 1;  // Of what a batch takes that is given to a worker from now on.
  double queue_factor = 1;
  ReplayDistance distance{.relative_l2 = 1e-7, .output_difference = 1e-7};
  std::optional<ReplayFailure> replay_failure{};
  bool apply_throws = false;
};

// With both on, a unit takes this factor more.
struct LiveInteraction {
  std::string one, other;
  double time_factor = 1;
};

struct LiveMachine {
  double unit_s = 0.1;
  double noise = 0.05;                // Deviation of a unit's log time.
  double correlation = 0.5;           // From one unit to the next.
  double burst_probability = 0;       // A unit begins one, of 2 to 8 units that take half as long again.
  double work_spread = 0;             // Work is drawn from 1 to 1 + this; half of a unit's time grows with it.
  std::int64_t evaluation_every = 0;  // Updates; its unit takes evaluation_s longer and does not count.
  double evaluation_s = 0;
  // Of a loader, a batch a unit: seconds from one batch to the next of all workers together. 0: nothing is loaded.
  double load_s = 0;
  std::int64_t queue = 0;  // Batches that they have ready or in work at most; 0: the loop loads them itself.
  std::int64_t workers = 1;
};

// Worker processes as torch's DataLoader has them: batches are dealt to them in turn and come out in that order.
class FakeWorkers {
 public:
  explicit FakeWorkers(std::int64_t count) : free_at_s_(static_cast<std::size_t>(count), 0) {}

  // Takes the next batch: seconds until it is there. Then others are dealt, so that there are `queue` again.
  double take(double now_s, double load_s, std::int64_t queue) {
    while (dealt() < std::max<std::int64_t>(queue, 1)) deal(now_s, load_s);
    const double wait_s = std::max(0.0, ready_at_s_.front() - now_s);
    ready_at_s_.pop_front();
    while (dealt() < queue) deal(now_s + wait_s, load_s);
    return wait_s;
  }
  std::int64_t dealt() const { return static_cast<std::int64_t>(ready_at_s_.size()); }

 private:
  void deal(double now_s, double load_s) {
    double& free_at_s = free_at_s_[next_++ % free_at_s_.size()];
    free_at_s = std::max(free_at_s, now_s) + load_s * static_cast<double>(free_at_s_.size());
    ready_at_s_.push_back(free_at_s);
  }

  std::vector<double> free_at_s_;
  std::size_t next_ = 0;
  std::deque<double> ready_at_s_;
};

// What user code throws that is no Error, as a Ctrl-C.
struct Interrupt {};

class FakeLiveLoop : public LiveLoop {
 public:
  FakeLiveLoop(LiveMachine machine_model, std::map<std::string, LiveEffect> effects_by_key, std::uint64_t seed)
      : machine(machine_model),
        effects(std::move(effects_by_key)),
        random_(seed),
        workers_(machine.workers),
        workers_as_written_(machine.workers) {}

  void apply(const Settings& wanted) override {
    if (interrupts_next_apply) {
      interrupts_next_apply = false;
      throw Interrupt{};
    }
    for (const auto& [key, value] : wanted) {
      if (effects.at(key).apply_throws) fail(ErrorCode::unsupported, "fake: {} cannot be applied", key);
    }
    for (const auto& [key, effect] : effects) {
      if (wanted.contains(key) != settings.contains(key)) now_s += effect.switch_s;
      if (settings.contains(key) && !wanted.contains(key)) since_off_[key] = 0;
    }
    settings = wanted;
    ++applied;
  }

  Replay replay(const Settings& reference, const Settings& candidate, ReplayUse /*use*/) override {
    if (call_failure_) return {std::nullopt, *call_failure_};
    if (reference_kept_ != reference) {
      now_s += machine.unit_s * factor_of(reference) + prepare(reference);
      ++forwards_of_reference;
    }
    reference_kept_ = reference;
    now_s += machine.unit_s * factor_of(candidate) + prepare(candidate);
    replayed.push_back(candidate);
    ReplayDistance distance;
    distance.bit_equal = candidate == reference && repeats_itself;
    for (const auto& [key, value] : candidate) {
      if (effects.at(key).replay_failure) return {std::nullopt, *effects.at(key).replay_failure};
      distance = effects.at(key).distance;
    }
    if (const auto known = distances.find(candidate); known != distances.end()) distance = known->second;
    distance.seconds = machine.unit_s * factor_of(candidate);
    return {distance};
  }

  std::optional<double> distance_between_calls() override {
    return calls_kept < 2 ? std::nullopt : std::optional(call_distance);
  }
  std::optional<std::int64_t> updates_left() override {
    return updates_in_all ? std::optional(*updates_in_all - updates) : std::nullopt;
  }
  std::int64_t queued_units() override { return std::max(workers_.dealt(), queue()); }
  bool agree(bool yes) override { return answer ? answer(yes) : yes; }

  // One update of the user's loop, with the hooks around it.
  void step(LiveTuner& tuner) {
    LiveUnit unit = next_unit();
    const bool keeps_call = tuner.keeps_call();
    if (keeps_call) {
      ++calls_kept;
      reference_kept_.reset();
      call_failure_.reset();
      if (failing_calls > 0) call_failure_ = ReplayFailure{ErrorCode::unsupported, "the kept call holds an iterator"};
      failing_calls = std::max<std::int64_t>(0, failing_calls - 1);
      if (keeps_calls) tuner.before_update();
    }
    unit.seconds = now_s - boundary_s_;
    boundary_s_ = now_s;
    behind_s += unit.seconds - as_written_s_;
    if (!keeps_call) longest_excess_s = std::max(longest_excess_s, unit.seconds - as_written_s_);
    in_force_of_unit.push_back(settings);
    tuner.after_update(unit);
  }
  // At most so many, until the search is over. Whether it is.
  bool run(LiveTuner& tuner, std::int64_t updates_max) {
    for (std::int64_t i = 0; i < updates_max && !ended; ++i) step(tuner);
    return ended;
  }
  LiveProgress progress() {
    LiveProgress progress;
    progress.judged = [this](const Quietness& found) { told.push_back("judged: " + found.sentence); };
    progress.began = [this](const std::string& sentence) { told.push_back("began: " + sentence); };
    progress.preparing = [this](const std::string& sentence) { told.push_back("preparing: " + sentence); };
    progress.prepared = [this](const Candidate& candidate, double seconds) {
      told_prepared.emplace_back(candidate.name, seconds);
    };
    progress.decided = [this](const Trial& trial) { told.push_back("decided: " + trial.name); };
    progress.ended = [this](const std::string& sentence) {
      told.push_back("ended: " + sentence);
      ended = true;
    };
    return progress;
  }

  LiveMachine machine;
  std::map<std::string, LiveEffect> effects;
  std::vector<LiveInteraction> interactions;
  std::map<Settings, ReplayDistance> distances;  // Of those that are not as their last key's.
  std::int64_t failing_calls = 0;                // Of the next kept calls, those that cannot be replayed.
  std::function<bool(bool)> answer;              // Of agree(); empty: yes.
  std::optional<std::int64_t> updates_in_all;
  double call_distance = 0.5;
  bool keeps_calls = true, repeats_itself = true, interrupts_next_apply = false;

  double now_s = 1000;
  Settings settings;
  std::vector<Settings> in_force_of_unit, replayed;
  std::int64_t updates = 0, applied = 0, calls_kept = 0, forwards_of_reference = 0;
  double behind_s = 0;          // The same noise as written, which nobody but a fake can know.
  double longest_excess_s = 0;  // Of a unit without replays, over that.
  double as_written_s = 0;      // Of all units.
  // What the tuner told, given progress().
  std::vector<std::string> told;
  std::vector<std::pair<std::string, double>> told_prepared;
  bool ended = false;

 private:
  double factor_of(const Settings& on) const {
    double factor = 1;
    for (const auto& [key, value] : on) factor *= effects.at(key).time_factor;
    for (const LiveInteraction& both : interactions) {
      if (on.contains(both.one) && on.contains(both.other)) factor *= both.time_factor;
    }
    return factor;
  }
  double prepare(const Settings& on) {
    double seconds = 0;
    for (const auto& [key, value] : on) {
      const double prepare_s = effects.at(key).prepare_s;
      if (prepare_s > 0 && prepared_.emplace(key, on).second) seconds += prepare_s;
    }
    return seconds;
  }
  double factor_of_visits() {
    double factor = 1;
    for (const auto& [key, effect] : effects) {
      if (settings.contains(key)) {
        if (visits_[key]++ < 3) factor *= effect.first_visit;
      } else if (since_off_.contains(key) && since_off_[key]++ < effect.aftermath_units) {
        factor *= effect.aftermath;
      }
    }
    return factor;
  }
  double noise() {
    std::normal_distribution<double> normal;
    std::uniform_real_distribution<double> uniform;
    const double fresh = std::sqrt(1 - machine.correlation * machine.correlation);
    log_noise_ = machine.correlation * log_noise_ + fresh * machine.noise * normal(random_);
    if (burst_left_ == 0 && machine.burst_probability > 0 && uniform(random_) < machine.burst_probability) {
      burst_left_ = 2 + static_cast<int>(6 * uniform(random_));
    }
    const double burst = burst_left_ > 0 ? 1.5 : 1;
    burst_left_ = std::max(0, burst_left_ - 1);
    return burst * std::exp(log_noise_);
  }
  std::int64_t queue() const {
    double batches = static_cast<double>(machine.queue);
    for (const auto& [key, value] : settings) batches *= effects.at(key).queue_factor;
    return static_cast<std::int64_t>(std::lround(batches));
  }
  // What the unit waits for its batch; and what it would wait, had the loop been as written all the time.
  std::pair<double, double> waits_s() {
    if (machine.load_s == 0) return {0, 0};
    double load_s = machine.load_s;
    for (const auto& [key, value] : settings) load_s *= effects.at(key).load_factor;
    return {workers_.take(now_s, load_s, queue()),
            workers_as_written_.take(now_as_written_s_, machine.load_s, machine.queue)};
  }
  LiveUnit next_unit() {
    LiveUnit unit;
    unit.update = ++updates;
    unit.work = 1 + machine.work_spread * std::uniform_real_distribution<double>()(random_);
    as_written_s_ = machine.unit_s * (0.5 + 0.5 * unit.work) * noise();
    const double compute_s = as_written_s_ * factor_of(settings) * factor_of_visits() + prepare(settings);
    const auto [wait_s, wait_as_written_s] = waits_s();
    unit.wait_s = wait_s;
    as_written_s_ += wait_as_written_s;
    now_s += compute_s + wait_s;
    if (machine.evaluation_every > 0 && updates % machine.evaluation_every == 0) {
      now_s += machine.evaluation_s;
      as_written_s_ += machine.evaluation_s;
      unit.countable = false;
      unit.why_not = "evaluation";
    }
    now_as_written_s_ += as_written_s_;
    as_written_s += as_written_s_;
    return unit;
  }

  std::mt19937_64 random_;
  FakeWorkers workers_, workers_as_written_;
  double boundary_s_ = 1000, as_written_s_ = 0, now_as_written_s_ = 1000;
  double log_noise_ = 0;
  int burst_left_ = 0;
  std::optional<Settings> reference_kept_;
  std::optional<ReplayFailure> call_failure_;
  std::set<std::pair<std::string, Settings>> prepared_;
  std::map<std::string, int> visits_, since_off_;
};

}  // namespace headrace
