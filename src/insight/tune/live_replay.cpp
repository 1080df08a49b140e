#include <headrace/live_replay.h>

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr std::string_view kUndone = "undone";  // As LiveTuner::undo() calls its turn.

// Those of a run that goes on: undo() made the others.
std::size_t repeated_turns(const std::vector<LiveTurn>& turns) {
  return !turns.empty() && turns.back().why == kUndone ? turns.size() - 1 : turns.size();
}

// "optimizer.fused = true, train.precision = "bf16"".
std::string text_of(const Settings& settings) {
  if (settings.empty()) return "the loop as written";
  std::string text;
  for (const auto& [key, value] : settings) text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", key, value);
  return text;
}

}  // namespace

LiveReplay::LiveReplay(LiveLoop& loop, LiveLedger ledger, std::string source)
    : loop_(loop), ledger_(std::move(ledger)), source_(std::move(source)), count_(repeated_turns(ledger_.turns)) {}

void LiveReplay::begin(std::int64_t updates) {
  update_ = updates;
  std::size_t reached = 0;
  while (reached < count_ && ledger_.turns[reached].update <= updates + 1) ++reached;
  if (reached == 0) return;
  const LiveTurn& turn = ledger_.turns[reached - 1];
  apply(turn.settings, turn.update, turn.why);
  next_ = applied_ = reached;
}

void LiveReplay::after_update(std::int64_t update) {
  update_ = update;
  while (!is_over() && ledger_.turns[next_].update <= update + 1) {
    const LiveTurn& turn = ledger_.turns[next_];
    if (turn.update <= update) {
      fail(ErrorCode::invalid_argument,
           "tune: {}: turn {} ({}) holds from update {} on, and {} updates were made when it could be applied first: "
           "wanted the loop that the ledger is of",
           source_, next_ + 1, text_of(turn.settings), turn.update, update);
    }
    apply(turn.settings, turn.update, turn.why);
    ++next_;
    ++applied_;
  }
  for (const auto& [key, why] : ended_) {
    if (!in_force_.contains(key)) continue;
    fail(ErrorCode::unsupported,
         "tune: {}: update {}: {} stays in force in the first run, and has ended by itself here: {}", source_, update,
         key, why);
  }
  ended_.clear();
}

void LiveReplay::end_setting(const std::string& key, const std::string& why) {
  ended_.emplace(key, why);
}

void LiveReplay::stop() {
  if (is_over()) return;
  next_ = count_;
  apply(ledger_.ledger.best, update_ + 1, "stopped");
}

void LiveReplay::undo() {
  next_ = count_;
  apply({}, update_ + 1, std::string(kUndone));
}

std::vector<Settings> LiveReplay::settings() const {
  std::vector<Settings> found;
  for (std::size_t i = 0; i < count_; ++i) found.push_back(ledger_.turns[i].settings);
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

void LiveReplay::apply(const Settings& settings, std::int64_t update, const std::string& why) {
  if (settings == in_force_) return;
  try {
    loop_.apply(settings);
  } catch (const Error& error) {
    fail(error.code(), "tune: {}: what holds from update {} on ({}; {}) cannot be applied: {}", source_, update, why,
         text_of(settings), error.what());
  }
  in_force_ = settings;
}

}  // namespace headrace
