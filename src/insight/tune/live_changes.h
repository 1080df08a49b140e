// The changes of a live search: what each is waiting for, what is kept, and the settings that follow from it.
#pragma once

#include <headrace/live_tuner.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "insight/tune/numeric_pairs.h"

namespace headrace {

// What a change waits for.
enum class Standing {
  gate,       // Its replay.
  costly,     // All others: to prepare it takes long, and its replay does that.
  held_back,  // A place among those that are tried, which are few where the machine is not quiet.
  race,       // Its turns among others.
  alone,      // Pairs of its own, as it cannot take turns among others.
  proof,      // Them too: it has shown a gain among others.
  kept,       // Nothing: in force.
  timing,     // Nothing but to be timed on kept calls, as it is not allowed.
  out,
};

// Changes are numbers below count(), in the order in which they were given.
class LiveChanges {
 public:
  LiveChanges(std::vector<Candidate> candidates, const std::vector<std::string>& only);

  std::size_t count() const noexcept { return candidates_.size(); }
  const Candidate& candidate(std::size_t change) const { return candidates_[change]; }
  Trial& trial(std::size_t change) { return trials_[change]; }
  const std::vector<Trial>& trials() const noexcept { return trials_; }
  Standing standing(std::size_t change) const { return standing_[change]; }
  void set_standing(std::size_t change, Standing standing) { standing_[change] = standing; }
  std::optional<std::size_t> first(Standing standing) const;
  std::size_t number_of(Standing standing) const;

  // Whether what it needs takes long to make, and that anew beside each other change: it takes no turns among others.
  bool is_costly(std::size_t change) const;
  bool keeps_costly() const;  // Whether one that is kept does.
  // Whether it sets how data is loaded and nothing else. A replay, which takes no batch, shows nothing of it.
  bool only_loads(std::size_t change) const;
  // Whether what is prepared under one is used up under the other: they differ in a key of a change that carries over.
  bool carry_over(const Settings& one, const Settings& other) const;
  bool sets_any(std::size_t change, const std::vector<std::string>& keys) const;
  // Whether two may not be on at once: they set the same key, or one does nothing beside the other.
  bool exclude(std::size_t one, std::size_t other) const;

  const Settings& best() const noexcept { return best_; }  // All that is kept.
  const std::vector<std::size_t>& kept() const noexcept { return kept_; }
  // All that is kept, but for what does nothing beside one of the changes; and the changes.
  Settings best_with(std::span<const std::size_t> changes) const;
  Settings best_without(std::size_t change) const;
  // What is compared before the change is in force beside all that is kept; nothing, of a change that only loads.
  std::vector<NumericPair> numeric_pairs_of(std::size_t change) const;

  // Why the change would do nothing in the best configuration; nullopt: it may.
  std::optional<std::string> why_idle(std::size_t change) const;

  void settle(std::size_t change, Verdict verdict, Reason reason, std::string sentence);  // Out.
  // Returns what is settled with it: what it replaces, and what does nothing beside it.
  std::vector<std::size_t> keep(std::size_t change, std::string sentence);
  void take_out(std::size_t change, Verdict verdict, Reason reason, std::string sentence);  // Was kept.

 private:
  bool set_same_key(std::size_t one, std::size_t other) const;
  bool is_idle_beside(std::size_t one, std::size_t other) const;

  std::vector<Candidate> candidates_;
  std::vector<Trial> trials_;
  std::vector<Standing> standing_;
  std::vector<std::size_t> kept_;
  Settings best_;
};

}  // namespace headrace
