// A recipe's training that tunes itself while it is under way: tune.online.
#pragma once

#include <headrace/live_tuner.h>
#include <headrace/report.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "app/knobs/knob.h"
#include "engine/assembly/online_run.h"

namespace headrace {

// Tells the live tuner of each update and does what it says, by the recipe's tune.allow, gain_min, fixed and only. What
// of it fails ends the tuning and is its problem(); the run goes on as it is written. A step that throws under a change
// on trial is made again without it, from its window's beginning, with the bits of one that nothing was tried in.
class OnlineTuning final : public OnlineRun {
 public:
  // `saved`: the ledger of the checkpoint at which the trainer stands. What was kept there holds at once, and changes
  // that were open are tried anew. With a clock (monotonic seconds) of the caller's own the machine's load is
  // unavailable. Error{invalid_argument}: tune.only names no change; what was kept cannot be applied.
  OnlineTuning(Training& training, const Machine& machine, LiveProgress progress,
               std::optional<LiveLedger> saved = std::nullopt, LiveTuner::Clock clock = {});

  void taint(const std::string& why) override;
  std::string checkpoint_text() const override { return json_text(ledger()); }
  void end(const std::string& why) override;  // The search; what is kept stays in force.

  LiveLedger ledger() const;  // Over all processes of the run, as it stands.
  // All that apply to the recipe, those that are decided already among them; and the others.
  const Offer& offered() const noexcept { return offered_; }
  std::size_t tried() const noexcept { return tried_; }  // Of them, by this process.
  // Why nothing more is tried; empty: nothing is wrong.
  const std::string& problem() const noexcept { return problem_; }
  // For a person: what went wrong, and that the run was resumed; empty: nothing of it.
  std::string note() const;

 private:
  BatchStream stream(Epoch& epoch) override;
  void after_step(const StepDone& done) override;
  bool take_back(const Error& error) override;

  void begin(const Machine& machine, LiveProgress progress, LiveTuner::Clock clock);
  std::vector<Candidate> open_candidates() const;
  void tell_unit(std::int64_t update);
  void fail_what_ended();
  bool turns_are_full() const;
  void guarded(const std::function<void()>& work);
  void follow();  // What the tuner wants of the window that begins.
  void give_up(const Error& error);

  const Recipe written_;
  LiveTuner::Clock clock_;
  Offer offered_;
  std::size_t tried_ = 0;
  std::optional<LiveLedger> resumed_;  // What others hold no more: of earlier processes, or of a tuning that failed.
  std::optional<std::int64_t> resumed_at_;  // Updates that were made then; nullopt: the run began with this process.
  std::optional<LiveTuner> tuner_;          // nullopt: nothing is open.
  std::optional<LiveTurn> gave_up_;         // The turn behind all others, where the tuning failed.
  std::string problem_;
  std::vector<std::string> known_ended_;  // Keys of strategies that the tuner knows to have ended.

  // Of the unit at hand.
  double boundary_s_ = 0, wait_s_ = 0, work_ = 0;
  std::int64_t micro_batches_ = 0, update_ = 0;  // The newest update.
  std::string taint_;                            // Why it does not count; empty: it does.
};

}  // namespace headrace
