#include "engine/assembly/online_tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "app/knobs/strategy_offer.h"
#include "core/base/clock.h"
#include "core/base/fail.h"
#include "engine/assembly/online_ledger.h"
#include "engine/assembly/tuned_recipe.h"
#include "torch/tensor/translate.h"

namespace headrace {
namespace {

constexpr std::size_t kTurnsLeft = 64;  // For the pair at hand, and for going back.

LiveOptions options_of(const TuneOptions& tune, const std::optional<LiveLedger>& resumed) {
  LiveOptions options;
  options.allow = tune.allow;
  options.gain_min = tune.gain_min;
  options.fixed = tune.fixed;
  if (resumed) options.lost_s = std::max(0.0, options.lost_s - behind_s(*resumed));
  return options;
}

// A name of a change that is not tried is one, too: whoever reads the report finds why.
void check_names(const std::vector<std::string>& only, const Offer& offered) {
  for (const std::string& name : only) {
    const bool is_candidate = std::any_of(offered.candidates.begin(), offered.candidates.end(),
                                          [&](const Candidate& candidate) { return candidate.name == name; });
    const bool is_known =
        is_candidate || std::any_of(offered.not_tried.begin(), offered.not_tried.end(),
                                    [&](const Report::NotTried& change) { return name.starts_with(change.name); });
    if (is_known) continue;
    std::vector<std::string> names;
    for (const Candidate& candidate : offered.candidates) names.push_back(candidate.name);
    fail(ErrorCode::invalid_argument, "tune: tune.only names \"{}\"; the changes are: {}", name,
         fmt::join(names, ", "));
  }
}

}  // namespace

OnlineTuning::OnlineTuning(Training& training, const Machine& machine, LiveProgress progress,
                           std::optional<LiveLedger> saved, LiveTuner::Clock clock)
    : OnlineRun(training, machine),
      written_(training.recipe()),
      clock_(clock ? clock : [] { return static_cast<double>(monotonic_ns()) * 1e-9; }) {
  update_ = updates_of(training.trainer().progress());
  if (loop_.updates_left() == 0) {
    resumed_ = saved ? std::move(*saved) : LiveLedger{};
    if (!resumed_->ended) resumed_->end_reason = "no update is left";
    resumed_->ended = true;
  } else if (saved) {
    resumed_at_ = update_;
    resumed_ = resumed_ledger(std::move(*saved), update_);
  }
  begin(machine, std::move(progress), std::move(clock));
  boundary_s_ = clock_();
}

void OnlineTuning::begin(const Machine& machine, LiveProgress progress, LiveTuner::Clock clock) {
  KnobContext context = context_of(written_, machine, training_.data_context());
  context.live = true;
  context.run_steps = loop_.updates_left();
  offered_ = offer(context, "");
  add_strategies(offered_, loop_.strategies(), loop_.strategy_context(), "");
  check_names(written_.tune.only, offered_);
  std::erase_if(offered_.candidates, [&only = written_.tune.only](const Candidate& candidate) {
    return !only.empty() && std::find(only.begin(), only.end(), candidate.name) == only.end();
  });
  if (resumed_) loop_.build_on(resumed_->ledger.best);
  std::vector<Candidate> open = open_candidates();
  if (resumed_ && (resumed_->ended || open.empty())) return;
  tried_ = open.size();
  tuner_.emplace(loop_, std::move(open), options_of(written_.tune, resumed_), static_cast<std::uint64_t>(written_.seed),
                 std::move(progress), std::move(clock));
  tuner_->note_update(update_);
  loop_.before_update = [this] { guarded([this] { tuner_->before_update(); }); };
  follow();
}

std::vector<Candidate> OnlineTuning::open_candidates() const {
  std::vector<Candidate> open = offered_.candidates;
  if (!resumed_) return open;
  std::erase_if(open, [this](const Candidate& candidate) {
    const std::vector<Trial>& decided = resumed_->ledger.trials;
    return std::any_of(decided.begin(), decided.end(),
                       [&](const Trial& trial) { return trial.name == candidate.name; });
  });
  return open;
}

// ---- What the loop tells ----

BatchStream OnlineTuning::stream(Epoch& epoch) {
  taint("an epoch began");
  const auto next = [this, &epoch]() -> std::optional<Batch> {
    if (!tuner_ || !tuner_->watching()) return epoch.next();
    const double begin_s = clock_();
    std::optional<Batch> batch = epoch.next();
    wait_s_ += clock_() - begin_s;
    if (batch) loop_.see(*batch);
    return batch;
  };
  return {next, epoch.batches()};
}

void OnlineTuning::taint(const std::string& why) {
  if (taint_.empty()) taint_ = why;
}

void OnlineTuning::after_step(const StepDone& done) {
  ++micro_batches_;
  work_ += static_cast<double>(done.samples);
  if (done.progress.window != 0) return;
  loop_.end_window();
  update_ = updates_of(done.progress);
  if (tuner_ && tuner_->watching()) guarded([this] { tell_unit(update_); });
  micro_batches_ = 0;
  work_ = wait_s_ = 0;
  taint_.clear();
}

void OnlineTuning::tell_unit(std::int64_t update) {
  tuner_->note_update(update);  // What ends before after_update() ends behind this one, too.
  const double now_s = clock_();
  const std::int64_t window = written_.train.gradient_accumulation_steps;
  if (micro_batches_ != window) taint(fmt::format("{} micro-batches, not {}", micro_batches_, window));
  const LiveUnit unit{update, now_s - boundary_s_, work_, wait_s_, taint_.empty(), taint_};
  boundary_s_ = now_s;
  fail_what_ended();
  if (turns_are_full()) {
    tuner_->stop("settings were switched as often as is recorded");
  } else {
    tuner_->after_update(unit);
  }
  follow();
}

// A strategy that could not be undone is not applied again.
void OnlineTuning::fail_what_ended() {
  for (const auto& [key, why] : loop_.strategies().ended()) {
    if (std::find(known_ended_.begin(), known_ended_.end(), key) != known_ended_.end()) continue;
    known_ended_.push_back(key);
    tuner_->failed(ErrorCode::unsupported, why, {key});
  }
}

// Of all processes of the run: a ledger holds no more.
bool OnlineTuning::turns_are_full() const {
  const std::size_t before = resumed_ ? resumed_->turns.size() : 0;
  return before + static_cast<std::size_t>(loop_.applied_count()) + kTurnsLeft > LiveLedger::kTurnsMax;
}

void OnlineTuning::follow() {
  const bool watches = tuner_->watching();
  loop_.keep_windows(watches);
  loop_.keep_next_call(watches && tuner_->keeps_call());
}

bool OnlineTuning::take_back(const Error& error) {
  if (!tuner_ || !tuner_->watching() || error.code() == ErrorCode::cancelled) return false;
  if (tuner_->in_force() == tuner_->ledger().ledger.best || !loop_.take_window_back()) return false;
  guarded([&] {
    tuner_->failed(error.code(), error.what());
    follow();
  });
  micro_batches_ = 0;
  work_ = 0;
  taint("a step failed");
  return true;
}

void OnlineTuning::end(const std::string& why) {
  if (tuner_ && tuner_->watching()) {
    guarded([&] {
      fail_what_ended();
      tuner_->stop(why);
      follow();
    });
  }
}

// ---- How it fails ----

// What is ours ends the tuning, and never the run; it is told as problem().
void OnlineTuning::guarded(const std::function<void()>& work) {
  try {
    work();
  } catch (...) {
    give_up(translate(std::current_exception()));
  }
}

// Where not even the recipe as written can be applied, nobody knows under what the run would go on: that is thrown.
void OnlineTuning::give_up(const Error& error) {
  if (gave_up_) return;
  problem_ = fmt::format("tuning failed: {}", error.what());
  resumed_ = ledger();
  tuner_.reset();
  loop_.keep_windows(false);
  loop_.keep_next_call(false);
  loop_.build_on({});
  gave_up_ = LiveTurn{update_ + 1, {}, problem_};
}

// ---- What was found ----

LiveLedger OnlineTuning::ledger() const {
  LiveLedger whole;
  if (tuner_) {
    LiveLedger now = tuner_->ledger();
    now.ledger.baseline = headrace::as_written(written_, offered_.candidates);
    whole = resumed_ ? joined_ledger(*resumed_, std::move(now)) : std::move(now);
  } else {
    whole = *resumed_;
    if (gave_up_ || !whole.ended) whole.end_reason = gave_up_ ? problem_ : "every change is looked at";
    whole.ended = true;
  }
  if (gave_up_) whole.turns.push_back(*gave_up_);
  return whole;
}

std::string OnlineTuning::note() const {
  std::string text;
  if (resumed_at_) {
    text = fmt::format(
        "The run was resumed after {} updates: what was kept by then held from there on, and changes "
        "that were open were tried anew.",
        *resumed_at_);
  }
  if (problem_.empty()) return text;
  return fmt::format("{}{}; from update {} on the run went on as it is written.", text.empty() ? "" : text + " ",
                     problem_, gave_up_->update);
}

}  // namespace headrace
