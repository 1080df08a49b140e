#include "insight/tune/live_drops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

namespace headrace {
namespace {

constexpr std::int64_t kPairsOfSecondLook = 12;  // What fewer spoke against is looked at again.
constexpr double kShareOfAnother = 0.5;          // Of what pairs showed.

}  // namespace

std::string drop_sentence(Outcome outcome, double gain_min, const std::string& found) {
  if (outcome == Outcome::slower) return fmt::format("Slower: {}.", found);
  return fmt::format("Gains less than {:.1f} %: {}.", gain_min * 100, found);
}

Reason drop_reason(Outcome outcome) {
  return outcome == Outcome::slower ? Reason::slower : Reason::no_gain;
}

void LiveDrops::add(std::size_t change) {
  const PairRecord& pairs = race_.record(change);
  const bool waits = !drops_.contains(change) && pairs.pairs() < kPairsOfSecondLook;
  drops_.insert_or_assign(change, Drop{pairs, race_.beside(change), waits ? State::waits : State::settled});
}

std::vector<std::size_t> LiveDrops::waiting() const {
  std::vector<std::size_t> changes;
  for (const auto& [change, drop] : drops_) {
    if (drop.state == State::waits) changes.push_back(change);
  }
  return changes;
}

void LiveDrops::look_again(std::size_t change) {
  if (const auto drop = drops_.find(change); drop != drops_.end()) drop->second.state = State::open_again;
}

bool LiveDrops::is_looked_at_again(std::size_t change) const {
  const auto drop = drops_.find(change);
  return drop != drops_.end() && drop->second.state == State::open_again;
}

void LiveDrops::take_back(std::size_t change) {
  drops_.at(change).state = State::waits;
}

void LiveDrops::forget(std::size_t change) {
  drops_.erase(change);
}

std::vector<std::size_t> LiveDrops::dropped() const {
  std::vector<std::size_t> changes;
  for (const auto& [change, drop] : drops_) {
    if (drop.state != State::open_again) changes.push_back(change);
  }
  return changes;
}

const PairRecord* LiveDrops::pairs(std::size_t change) const {
  const auto drop = drops_.find(change);
  return drop == drops_.end() || drop->second.state == State::open_again ? nullptr : &drop->second.pairs;
}

LiveDrops::Told LiveDrops::told(std::size_t change, bool search_goes_on) const {
  const Drop& drop = drops_.at(change);
  if (tells_gain(change, search_goes_on)) {
    const Outcome outcome = drop.pairs.bets().outcome();
    return {drop_reason(outcome), drop_sentence(outcome, gain_min_, drop.pairs.text() + ", in turns with others")};
  }
  const bool waits = drop.state == State::waits;
  std::string found = fmt::format("{} pairs in turns with others", drop.pairs.pairs());
  if (const auto other = disturber(change); other && !(waits && search_goes_on)) {
    found += fmt::format(", among them {}, whose effect was not known by then", changes_.candidate(*other).name);
  }
  if (waits) found += search_goes_on ? "; to be looked at again" : "; not looked at again";
  return {Reason::no_gain, drop_sentence(Outcome::no_gain, gain_min_, found)};
}

bool LiveDrops::tells_gain(std::size_t change, bool search_goes_on) const {
  const bool comes_again = search_goes_on && drops_.at(change).state == State::waits;
  return !comes_again && !disturber(change);
}

std::optional<std::size_t> LiveDrops::disturber(std::size_t change) const {
  const Drop& drop = drops_.at(change);
  const double least = std::max(kNoticed, kShareOfAnother * std::abs(drop.pairs.middle().value_or(0)));
  std::optional<std::size_t> found;
  std::pair<bool, double> most;  // Whether it was proved, and its effect.
  for (const std::size_t other : drop.beside) {
    const std::pair<bool, double> has{changes_.trials()[other].gain.has_value(), effect_of(other)};
    if (has.second < least || (found && has <= most)) continue;
    found = other;
    most = has;
  }
  return found;
}

double LiveDrops::effect_of(std::size_t change) const {
  const auto& proved = changes_.trials()[change].gain;
  return std::abs(proved ? std::log1p(proved->median) : race_.record(change).middle().value_or(0));
}

}  // namespace headrace
