// Repeats a run that was tuned while it was under way: what its ledger says was in force, at the same updates.
#pragma once

#include <headrace/live_loop.h>
#include <headrace/live_tuner.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace headrace {

// Nothing is measured, checked or drawn. A tuner's replays of kept calls leave parameters, buffers and generators as
// they are, so that its turns are all that has to be made again: a loop that is the first one's in everything else,
// data, seeds and machine included, has the bits of the first run.
//
// A turn holds from an update on. What the first run switched within an update is repeated from that update's beginning
// or end: stop() between two micro-batches, a setting that ended by itself in a call. A last turn that
// LiveTuner::undo() made is not repeated: undo() is the script's own call, which comes again where it stands.
//
// All calls come from the thread that makes the updates. An update without a turn costs nothing. The loop outlives the
// object; the destructor changes nothing.
class LiveReplay {
 public:
  // `source` names the ledger in errors: its file.
  LiveReplay(LiveLoop& loop, LiveLedger ledger, std::string source);
  LiveReplay(const LiveReplay&) = delete;
  LiveReplay& operator=(const LiveReplay&) = delete;

  // Once, in a run that has made so many updates (above 0: it is resumed there): applies what held for the next one.
  // Errors as those of after_update().
  void begin(std::int64_t updates = 0);
  // Behind every update, as LiveTuner::after_update(), and counted as there: applies the turns that hold from the next
  // one on, in their order. Errors name the ledger, the update and the settings; what held before holds still:
  //   LiveLoop::apply()'s code where a turn cannot be applied; any other exception of the loop passes unchanged
  //   invalid_argument where a turn was passed over, because this run counts its updates in another way
  //   unsupported where a setting that has ended by itself would be in force on
  void after_update(std::int64_t update);
  // Before after_update() of the update in which it happened: the setting of this key ended by itself, as one may have
  // done in the first run, whose turns then take it out.
  void end_setting(const std::string& key, const std::string& why);
  // Every turn is applied, or stop() or undo() was called: what is in force stays.
  bool is_over() const noexcept { return next_ == count_; }
  // No further turn is applied. Where there were some, all that the ledger has as kept is in force now, and nothing
  // else. Errors as those of after_update().
  void stop();
  void undo();  // No further turn is applied, and the loop is as written.

  const Settings& in_force() const noexcept { return in_force_; }
  const LiveLedger& ledger() const noexcept { return ledger_; }
  const std::string& source() const noexcept { return source_; }
  std::size_t turns() const noexcept { return count_; }  // That there are to apply.
  std::size_t turns_applied() const noexcept { return applied_; }
  std::vector<Settings> settings() const;  // Each that a turn makes hold, once.

 private:
  void apply(const Settings& settings, std::int64_t update, const std::string& why);

  LiveLoop& loop_;
  const LiveLedger ledger_;
  const std::string source_;
  std::size_t count_ = 0, next_ = 0, applied_ = 0;  // Turns.
  std::int64_t update_ = 0;                         // The newest.
  Settings in_force_;
  std::map<std::string, std::string> ended_;  // Why, by key.
};

}  // namespace headrace
