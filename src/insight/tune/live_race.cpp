#include "insight/tune/live_race.h"

#include <headrace/random.h>

#include <algorithm>
#include <utility>

namespace headrace {
namespace {

void shuffle(std::vector<std::size_t>& values, SampleRandom& random) {
  for (std::size_t left = values.size(); left > 1; --left) {
    std::swap(values[left - 1], values[random.below(static_cast<std::uint32_t>(left))]);
  }
}

}  // namespace

LiveRace::LiveRace(std::size_t count, double gain_min, std::uint64_t seed, Excludes excludes)
    : gain_min_(gain_min),
      seed_(seed),
      excludes_(std::move(excludes)),
      entries_(count, Entry{PairRecord(gain_min)}),
      effects_(count) {}

void LiveRace::enter(std::size_t change) {
  changes_.push_back(change);
  entries_[change].counts = false;
  entries_[change].on = false;
  entries_[change].had_turn = false;
}

void LiveRace::leave(std::size_t change) {
  std::erase(changes_, change);
}

void LiveRace::take_turns_every(std::size_t change, std::int64_t pairs) {
  entries_[change].every = pairs;
}

void LiveRace::forget() {
  for (const std::size_t change : changes_) entries_[change].counts = false;
  effects_.doubt();
}

void LiveRace::clear(std::size_t change) {
  entries_[change].record = PairRecord(gain_min_);
  entries_[change].beside.clear();
}

void LiveRace::turn_all_off() {
  for (const std::size_t change : changes_) turn_off(change);
}

std::vector<std::size_t> LiveRace::due_changes() const {
  std::vector<std::size_t> due;
  for (const std::size_t change : changes_) {
    if (is_turn_of_every(entries_[change].every)) due.push_back(change);
  }
  return due.empty() ? changes_ : due;  // A pair that tells of nothing is of no use.
}

bool LiveRace::fits(std::size_t change, const std::vector<std::size_t>& others) const {
  return std::none_of(others.begin(), others.end(), [&](std::size_t other) { return excludes_(change, other); });
}

LiveRace::Pair LiveRace::draw(std::int64_t number) {
  SampleRandom random(seed_, number, /*index=*/0);
  std::vector<std::size_t> due = due_changes();
  ++drawn_;
  shuffle(due, random);
  std::stable_partition(due.begin(), due.end(), [this](std::size_t change) { return !entries_[change].had_turn; });

  Pair pair;
  std::vector<std::size_t> taken;
  for (const std::size_t change : changes_) {
    if (!entries_[change].on || std::find(due.begin(), due.end(), change) != due.end()) continue;
    taken.push_back(change);
    for (auto& on : pair.on) on.push_back(change);
  }
  for (const std::size_t change : due) {
    Entry& entry = entries_[change];
    entry.on = false;
    if (!fits(change, taken)) continue;
    taken.push_back(change);
    const bool leads = random.below(2) == 0;
    pair.turns.push_back({change, leads});
    pair.on[leads ? 0 : 1].push_back(change);
    entry.on = !leads;
    entry.had_turn = true;
  }
  for (auto& on : pair.on) std::sort(on.begin(), on.end());
  return pair;
}

void LiveRace::add(const Pair& pair, double log_ratio) {
  std::vector<JointEffects::Turn> turns;
  for (const Turn& turn : pair.turns) turns.push_back({turn.change, turn.leads ? -1.0 : 1.0});
  const double unexpected = log_ratio - effects_.expected(turns);
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const Turn& turn = pair.turns[i];
    Entry& entry = entries_[turn.change];
    if (!entry.counts) clear(turn.change);
    entry.counts = true;
    entry.record.add(turns[i].sign * unexpected + effects_.of(turn.change));  // All but its own is taken off.
    for (const Turn& other : pair.turns) {
      if (other.change != turn.change) entry.beside.insert(other.change);
    }
  }
  effects_.add(turns, log_ratio);
}

Outcome LiveRace::outcome(std::size_t change) const {
  if (!entries_[change].counts) return Outcome::open;
  const Bets& bets = entries_[change].record.bets();
  const bool is_clear = bets.outcome() == Outcome::open && bets.wealth_for() >= kWealthToProve && leads(change);
  return is_clear ? Outcome::pays : bets.outcome();
}

bool LiveRace::leads(std::size_t change) const {
  return std::all_of(changes_.begin(), changes_.end(),
                     [&](std::size_t other) { return other == change || effects_.of(other) < effects_.of(change); });
}

std::int64_t LiveRace::pairs(std::size_t change) const {
  return entries_[change].counts ? entries_[change].record.pairs() : 0;
}

}  // namespace headrace
