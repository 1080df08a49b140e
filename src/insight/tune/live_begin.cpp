// How a live search begins: the units as written, and which changes are tried when.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "insight/tune/live_payback.h"
#include "insight/tune/live_search.h"
#include "insight/tune/quietness.h"
#include "insight/tune/tuner.h"

namespace headrace {
namespace {

constexpr std::size_t kChangesInPlay = 6;  // At a time, where the machine is not quiet.

// That the clearest of so many changes takes until it is kept: in a race and in its proof, two blocks for each of the
// pairs that bets need at least. One that has no others to race with takes its proof alone.
std::int64_t updates_min(std::size_t changes, const BlockUnits& block) {
  const std::int64_t pairs = changes > 1 ? kPairsToProve + kPairsToKeep : kPairsToKeep;
  return 2 * pairs * block.units();
}

}  // namespace

// The first units, which are as written.
bool LiveSearch::measure_baseline(const LiveUnit& unit) {
  account_.add(unit, InForce::as_written, 0, baseline_.add(unit));
  if (!agree(baseline_.is_enough())) return false;
  blocks_.plan(account_.unit_s(), baseline_.wait_share());
  begin_search();
  return true;
}

void LiveSearch::begin_search() {
  Quietness& machine = found_.ledger.quietness;
  machine = judge_quietness(baseline_.blocks(account_.times(), blocks_.units_a_block(), blocks_.waits_for_data()),
                            cpu_use_between(load_before_, read_load_ ? read_load_() : CpuLoad{}), options_.gain_min);
  const bool is_quiet = agree(machine.quiet.value_or(true)), cores_taken = !agree(!machine.cores_taken);
  updates_left_ = loop_.updates_left();
  account_.expect_rest(updates_left_);
  to_tell_.emplace_back([this] {  // Before all that is told of changes, with what is added below.
    if (progress_.judged) progress_.judged(found_.ledger.quietness);
  });
  const Changes open = settle_untried(cores_taken);
  const std::size_t held = is_quiet ? open.size() : std::min(kChangesInPlay, open.size());
  let_in_most_promising(open, held);
  machine.candidates_wanted = static_cast<std::int64_t>(changes_.count());
  machine.candidates_held = is_quiet ? machine.candidates_wanted : static_cast<std::int64_t>(held);
  if (held < open.size()) {
    machine.sentence += fmt::format(" Of {} changes the {} most promising are tried first.", open.size(), held);
  }
  if (cores_taken) machine.sentence += " The division of the cores is not tried.";
  const auto tried = changes_.count() - changes_.number_of(Standing::out);
  kept_call_.replay_s = 2 * account_.unit_s();
  stage_ = Stage::search;
  const std::int64_t needed = updates_min(held, blocks_.usual()), left = updates_left_.value_or(needed);
  if (!agree(left >= needed) && tried > 0) {
    found_.end_reason = fmt::format("{} updates are left, the clearest change takes {}", left, needed);
    stage_ = Stage::watch;
  }
  tell_begin(tried, updates_left_.has_value());
}

void LiveSearch::tell_begin(std::size_t tried, bool length_is_known) {
  const std::string sentence = fmt::format(
      "{} change{}; {:.3g} ms a step; at most {:.3g} s{} may be lost", tried, tried == 1 ? "" : "s",
      account_.unit_s() * 1e3, length_is_known ? account_.budget().allowed_s() : options_.lost_s,
      length_is_known ? std::string() : fmt::format(" plus {:.3g} % of the time so far", options_.lost_share * 100));
  to_tell_.emplace_back([this, sentence] {
    if (progress_.began) progress_.began(sentence);
  });
}

// Before anything is tried: the changes that never will be. Returns the others, in their order.
LiveSearch::Changes LiveSearch::settle_untried(bool cores_taken) {
  Changes open;
  for (std::size_t change = 0; change < changes_.count(); ++change) {
    if (changes_.standing(change) == Standing::out) continue;  // It failed before.
    const Candidate& candidate = changes_.candidate(change);
    const auto fixed = std::find_if(candidate.changes.begin(), candidate.changes.end(),
                                    [this](const auto& setting) { return is_fixed(setting.first, options_.fixed); });
    if (fixed != candidate.changes.end()) {
      settle(change, Verdict::refused, Reason::fixed, fmt::format("Not tried: {} is to stay.", fixed->first));
    } else if (auto why = changes_.why_idle(change)) {
      settle(change, Verdict::refused, Reason::no_gain, std::move(*why));
    } else if (candidate.numerics > options_.allow) {
      settle_forbidden(change);
    } else if (candidate.divides_cores && cores_taken) {
      settle(change, Verdict::inconclusive, Reason::not_quiet,
             "Not tried: others take the cores, and which division of them pays depends on that.");
    } else if (changes_.is_costly(change) && updates_left_ && !agree(can_pay(change))) {
      settle(change, Verdict::inconclusive, Reason::budget,
             fmt::format("Not tried: {}.", prepare_text(change, kGainHoped)));
    } else {
      open.push_back(change);
    }
  }
  return open;
}

// So many of them, in their order. The others wait for a place, in that of their promise.
void LiveSearch::let_in_most_promising(const Changes& open, std::size_t held) {
  Changes by_promise = open;
  std::stable_sort(by_promise.begin(), by_promise.end(), [this](std::size_t one, std::size_t other) {
    return changes_.candidate(one).promise_rank < changes_.candidate(other).promise_rank;
  });
  held_back_.assign(by_promise.begin() + static_cast<std::ptrdiff_t>(held), by_promise.end());
  for (const std::size_t change : held_back_) changes_.set_standing(change, Standing::held_back);
  for (const std::size_t change : open) {
    if (changes_.standing(change) != Standing::held_back) let_in(change);
  }
}

// Where the machine is not quiet, each change that is decided leaves its place to the next one, while the run is long
// enough to decide that.
void LiveSearch::let_in_held_back() {
  // One of them may have been settled by what was kept.
  std::erase_if(held_back_, [this](std::size_t change) { return changes_.standing(change) != Standing::held_back; });
  if (held_back_.empty() || !agree(!updates_left_ || *updates_left_ >= updates_min(2, blocks_.usual()))) return;
  while (!held_back_.empty() && in_play() < kChangesInPlay) {
    let_in(held_back_.front());
    held_back_.erase(held_back_.begin());
  }
}

std::size_t LiveSearch::in_play() const {
  std::size_t changes = 0;
  for (const Standing standing : {Standing::gate, Standing::costly, Standing::race, Standing::alone, Standing::proof}) {
    changes += changes_.number_of(standing);
  }
  return changes;
}

void LiveSearch::settle_forbidden(std::size_t change) {
  if (!changes_.only_loads(change)) return changes_.set_standing(change, Standing::timing);
  const Candidate& candidate = changes_.candidate(change);
  settle(change, Verdict::refused, Reason::not_allowed,
         fmt::format("Not tried, as only {} is allowed and it is {}{}; no kept call shows what it gains.",
                     to_string(options_.allow), to_string(candidate.numerics),
                     candidate.changes_batches ? " (other draws)" : ""));
}

// Of a change that is tried: what it waits for first.
void LiveSearch::let_in(std::size_t change) {
  if (changes_.is_costly(change)) return changes_.set_standing(change, Standing::costly);
  const auto pairs = changes_.numeric_pairs_of(change);
  if (pairs.empty()) return changes_.set_standing(change, turns_of(change));
  changes_.set_standing(change, Standing::gate);
  gate_.expect(change, pairs);
}

}  // namespace headrace
