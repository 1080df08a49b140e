#include "engine/assembly/online_ledger.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

namespace headrace {
namespace {

// What another look could not change: not the budget, a machine that was not quiet, or what the caller forbids.
bool is_decided(const Trial& trial) {
  if (trial.verdict == Verdict::inconclusive) return false;
  return trial.reason != Reason::fixed && trial.reason != Reason::not_allowed;
}

void take_speedup(Ledger& into, const Ledger& from) {
  into.speedup = from.speedup;
  into.speedup_pairs = from.speedup_pairs;
  into.baseline_s = from.baseline_s;
  into.best_s = from.best_s;
}

void forget_speedup(Ledger& ledger) {
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  ledger.speedup = {unknown, unknown, unknown};
  ledger.speedup_pairs = 0;
  ledger.baseline_s.clear();
  ledger.best_s.clear();
}

template <class Value>
void append(std::vector<Value>& values, std::vector<Value> more) {
  values.insert(values.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace

Settings with_changes(Settings settings, const Settings& changes) {
  for (const auto& [key, value] : changes) settings[key] = value;
  return settings;
}

LiveLedger resumed_ledger(LiveLedger saved, std::int64_t updates) {
  LiveLedger resumed = std::move(saved);
  std::erase_if(resumed.turns, [&](const LiveTurn& turn) { return turn.update > updates; });
  const Settings& kept = resumed.ledger.best;
  const bool holds = resumed.turns.empty() ? kept.empty() : resumed.turns.back().settings == kept;
  if (!holds) resumed.turns.push_back({updates + 1, kept, "resumed"});
  std::vector<Trial> trials;
  std::vector<LiveLedger::Estimate> estimates;
  for (std::size_t i = 0; i < resumed.ledger.trials.size(); ++i) {
    if (!is_decided(resumed.ledger.trials[i])) continue;
    trials.push_back(std::move(resumed.ledger.trials[i]));
    estimates.push_back(resumed.estimates[i]);
  }
  resumed.ledger.trials = std::move(trials);
  resumed.estimates = std::move(estimates);
  resumed.ended = false;
  resumed.end_reason.clear();
  return resumed;
}

double behind_s(const LiveLedger& resumed) {
  return std::max(0.0, resumed.lost_s);
}

LiveLedger joined_ledger(LiveLedger resumed, LiveLedger now) {
  LiveLedger whole = std::move(resumed);
  const double before_s = whole.lost_s, allowed_before_s = behind_s(whole);
  const Settings kept_before = whole.ledger.best;
  for (LiveTurn& turn : now.turns) {
    whole.turns.push_back({turn.update, with_changes(kept_before, turn.settings), std::move(turn.why)});
  }
  append(whole.ledger.trials, std::move(now.ledger.trials));
  append(whole.estimates, std::move(now.estimates));
  whole.ledger.baseline.insert(now.ledger.baseline.begin(), now.ledger.baseline.end());
  if (kept_before.empty()) {
    take_speedup(whole.ledger, now.ledger);
  } else if (!now.ledger.best.empty()) {
    forget_speedup(whole.ledger);
  }
  whole.ledger.best = with_changes(kept_before, now.ledger.best);
  if (now.ledger.quietness.blocks > 0) whole.ledger.quietness = std::move(now.ledger.quietness);
  whole.updates += now.updates;
  whole.counted_units += now.counted_units;
  whole.lost_s = before_s + now.lost_s;
  whole.lost_most_s = std::max(whole.lost_most_s, before_s + now.lost_most_s);
  whole.lost_allowed_s = allowed_before_s + now.lost_allowed_s;
  whole.ledger.spent_s = whole.lost_most_s;
  whole.ledger.budget_s = whole.lost_allowed_s;
  whole.ended = now.ended;
  whole.end_reason = std::move(now.end_reason);
  return whole;
}

}  // namespace headrace
