#include "insight/tune/live_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace headrace {
namespace {

constexpr double kPrepareCheap_s = 1;

void set_all(Settings& settings, const Settings& changes) {
  for (const auto& [key, value] : changes) settings[key] = value;
}

bool names(const std::vector<std::string>& keys, const std::string& key) {
  return !key.empty() && std::find(keys.begin(), keys.end(), key) != keys.end();
}

}  // namespace

LiveChanges::LiveChanges(std::vector<Candidate> candidates, const std::vector<std::string>& only)
    : candidates_(std::move(candidates)) {
  if (!only.empty()) {
    std::erase_if(candidates_, [&](const Candidate& candidate) { return !names(only, candidate.name); });
  }
  for (const Candidate& candidate : candidates_) {
    Trial trial;
    trial.name = candidate.name;
    trial.changes = candidate.changes;
    trial.numerics.numeric_class = candidate.numerics;
    trials_.push_back(std::move(trial));
    if (!only_loads(trials_.size() - 1)) continue;
    trials_.back().numerics.measure = candidate.changes_batches ? "other draws" : "the same batches";
  }
  standing_.resize(candidates_.size(), Standing::gate);
}

std::optional<std::size_t> LiveChanges::first(Standing standing) const {
  const auto found = std::find(standing_.begin(), standing_.end(), standing);
  if (found == standing_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - standing_.begin());
}

std::size_t LiveChanges::number_of(Standing standing) const {
  return static_cast<std::size_t>(std::count(standing_.begin(), standing_.end(), standing));
}

bool LiveChanges::is_costly(std::size_t change) const {
  return candidates_[change].switches == Switches::rebuild || candidates_[change].prepare_s > kPrepareCheap_s;
}

bool LiveChanges::keeps_costly() const {
  return std::any_of(kept_.begin(), kept_.end(), [this](std::size_t kept) { return is_costly(kept); });
}

bool LiveChanges::only_loads(std::size_t change) const {
  const Settings& changes = candidates_[change].changes;
  const auto loads = [](const auto& setting) { return setting.first.starts_with("data."); };
  return !changes.empty() && std::all_of(changes.begin(), changes.end(), loads);
}

bool LiveChanges::carry_over(const Settings& one, const Settings& other) const {
  const auto value_of = [](const Settings& settings, const std::string& key) {
    const auto found = settings.find(key);
    return found == settings.end() ? nullptr : &found->second;
  };
  const auto differs = [&](const auto& setting) {
    const std::string *ours = value_of(one, setting.first), *theirs = value_of(other, setting.first);
    return ours == nullptr || theirs == nullptr ? ours != theirs : *ours != *theirs;
  };
  return std::any_of(candidates_.begin(), candidates_.end(), [&](const Candidate& candidate) {
    return candidate.carries_over && std::any_of(candidate.changes.begin(), candidate.changes.end(), differs);
  });
}

bool LiveChanges::sets_any(std::size_t change, const std::vector<std::string>& keys) const {
  const Settings& changes = candidates_[change].changes;
  return std::any_of(keys.begin(), keys.end(), [&](const std::string& key) { return changes.contains(key); });
}

bool LiveChanges::set_same_key(std::size_t one, std::size_t other) const {
  const Settings& changes = candidates_[other].changes;
  return std::any_of(candidates_[one].changes.begin(), candidates_[one].changes.end(),
                     [&](const auto& change) { return changes.contains(change.first); });
}

bool LiveChanges::is_idle_beside(std::size_t one, std::size_t other) const {
  return names(candidates_[one].excludes, candidates_[other].key);
}

bool LiveChanges::exclude(std::size_t one, std::size_t other) const {
  return set_same_key(one, other) || is_idle_beside(one, other) || is_idle_beside(other, one);
}

Settings LiveChanges::best_with(std::span<const std::size_t> changes) const {
  Settings settings;
  for (const std::size_t kept : kept_) {
    const bool is_idle =
        std::any_of(changes.begin(), changes.end(), [&](std::size_t change) { return is_idle_beside(kept, change); });
    if (!is_idle) set_all(settings, candidates_[kept].changes);
  }
  for (const std::size_t change : changes) set_all(settings, candidates_[change].changes);
  return settings;
}

Settings LiveChanges::best_without(std::size_t change) const {
  Settings settings;
  for (const std::size_t kept : kept_) {
    if (kept != change) set_all(settings, candidates_[kept].changes);
  }
  return settings;
}

std::vector<NumericPair> LiveChanges::numeric_pairs_of(std::size_t change) const {
  if (only_loads(change)) return {};
  std::vector<const Candidate*> kept;
  for (const std::size_t one : kept_) {
    if (!only_loads(one) && !is_idle_beside(one, change)) kept.push_back(&candidates_[one]);
  }
  return numeric_pairs(candidates_[change], kept);
}

std::optional<std::string> LiveChanges::why_idle(std::size_t change) const {
  for (const std::size_t kept : kept_) {
    if (!is_idle_beside(change, kept)) continue;
    return fmt::format("It does nothing beside {}, which is kept.", candidates_[kept].name);
  }
  const std::size_t alone[] = {change};
  if (best_with(alone) == best_) return "It changes nothing in the best configuration.";
  return std::nullopt;
}

void LiveChanges::settle(std::size_t change, Verdict verdict, Reason reason, std::string sentence) {
  trials_[change].verdict = verdict;
  trials_[change].reason = reason;
  trials_[change].sentence = std::move(sentence);
  standing_[change] = Standing::out;
}

std::vector<std::size_t> LiveChanges::keep(std::size_t change, std::string sentence) {
  std::vector<std::size_t> settled;
  const std::vector<std::size_t> before = kept_;
  for (const std::size_t kept : before) {
    const bool sets_same = set_same_key(kept, change);
    if (!sets_same && !is_idle_beside(kept, change)) continue;
    take_out(kept, Verdict::refused, Reason::no_gain,
             sets_same ? "Replaced by a later change of the same keys."
                       : fmt::format("Replaced by {}, beside which it does nothing.", candidates_[change].name));
    settled.push_back(kept);
  }
  settle(change, Verdict::kept, Reason::none, std::move(sentence));
  standing_[change] = Standing::kept;
  kept_.push_back(change);
  set_all(best_, candidates_[change].changes);
  for (std::size_t other = 0; other < count(); ++other) {
    if (standing_[other] == Standing::kept || standing_[other] == Standing::out) continue;
    auto why = why_idle(other);
    if (!why) continue;
    settle(other, Verdict::refused, Reason::no_gain, std::move(*why));
    settled.push_back(other);
  }
  return settled;
}

void LiveChanges::take_out(std::size_t change, Verdict verdict, Reason reason, std::string sentence) {
  best_ = best_without(change);
  std::erase(kept_, change);
  trials_[change].removed_again = true;
  settle(change, verdict, reason, std::move(sentence));
}

}  // namespace headrace
