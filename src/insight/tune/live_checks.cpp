// Kept calls of a live search: when one is asked for, and what its replays tell.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "insight/tune/live_payback.h"
#include "insight/tune/live_search.h"

namespace headrace {
namespace {

constexpr double kGateShare = 0.5;      // Of what may be lost, while changes wait for their turns.
constexpr double kReplayUnitsMax = 4;   // A replay that takes longer has prepared something that is ready now.
constexpr double kPreparedSeconds = 1;  // Less is not weighed.
// Of the run, or where its length is not known: by then a change that is not allowed is timed, though nothing is kept.
constexpr double kTimingShare = 0.1, kTimingSeconds = 60;

bool has_all(const Settings& settings, const Settings& changes) {
  return std::all_of(changes.begin(), changes.end(), [&](const auto& change) {
    const auto found = settings.find(change.first);
    return found != settings.end() && found->second == change.second;
  });
}

}  // namespace

bool LiveSearch::want_call(double cost_s, CallUse use) {
  if (!has_room(cost_s)) return wait_for_room();
  hold("what is kept");
  kept_call_.is_wanted = true;
  kept_call_.use = use;
  return true;
}

bool LiveSearch::check_next() {
  if (has_room(gate_cost_s())) return want_call(0, CallUse::check);
  if (agree(account_.budget().grows() || account_.is_ahead())) return wait_for_room();
  const std::size_t change = *gate_.next();
  settle(change, Verdict::inconclusive, Reason::budget,
         fmt::format("Not {}: to prepare and check it takes {:.3g} s, which is more than may still be lost.",
                     switch_.was_on(change) ? "proved" : "tried", gate_cost_s()));
  return search_next();
}

// Before a change is in force beside all that is kept, alone with it for many units. Of one that takes long to prepare
// the first check is this one.
bool LiveSearch::check_beside_kept(std::size_t change) {
  if (!agree(can_pay(change))) {
    settle(change, Verdict::inconclusive, Reason::budget,
           fmt::format("Not tried: {}.", prepare_text(change, kGainHoped)));
    return search_next();
  }
  auto pairs = changes_.numeric_pairs_of(change);
  std::erase_if(pairs, [this](const NumericPair& pair) { return gate_.has_passed(pair); });
  if (pairs.empty()) {  // Another change sets the same.
    changes_.set_standing(change, turns_of(change));
    return search_next();
  }
  gate_.expect_first(change, pairs);
  if (!switch_.was_on(change)) tell_preparing(change);
  return check_next();
}

// The loop stands still while it is prepared.
void LiveSearch::tell_preparing(std::size_t change) {
  const std::string text = prepare_text(change, kGainHoped);
  if (text.empty()) return;
  to_tell_.emplace_back([this, sentence = fmt::format("{}: {}", changes_.candidate(change).name, text)] {
    if (progress_.preparing) progress_.preparing(sentence);
  });
}

// Behind the last check before it is first in force. What could not be replayed was perhaps never made.
void LiveSearch::tell_prepared(std::size_t change) {
  if (!changes_.is_costly(change) || gate_.is_waiting(change) || switch_.was_on(change)) return;
  to_tell_.emplace_back([this, change, seconds = prepared_s_.at(change)] {
    if (progress_.prepared) progress_.prepared(changes_.candidate(change), seconds);
  });
}

bool LiveSearch::is_checked(std::size_t change) const {
  const auto pairs = changes_.numeric_pairs_of(change);
  return std::all_of(pairs.begin(), pairs.end(), [this](const NumericPair& pair) { return gate_.has_passed(pair); });
}

// While others wait for their turns, a share of what may be lost is theirs.
double LiveSearch::reserve_s() const {
  const bool others_wait = changes_.number_of(Standing::race) + changes_.number_of(Standing::proof) > 0;
  return others_wait ? (1 - kGateShare) * account_.budget().allowed_s() : 0;
}

bool LiveSearch::gate_goes_first() {
  return has_room(gate_cost_s() + reserve_s());
}

// What `allow` would let the run gain is told while there is time to say so, behind the gate and between two proofs.
bool LiveSearch::timing_goes_first() {
  const auto change = next_to_time();
  if (proof_ || gate_.next() || !change || changes_.is_costly(*change)) return false;
  if (changes_.kept().empty() && !agree(is_over(kTimingShare, kTimingSeconds))) return false;
  return has_room(timing_cost_s(*change) + reserve_s());
}

// What takes long to prepare comes last.
std::optional<std::size_t> LiveSearch::next_to_time() const {
  for (std::size_t change = 0; change < changes_.count(); ++change) {
    if (changes_.standing(change) == Standing::timing && !changes_.is_costly(change)) return change;
  }
  return changes_.first(Standing::timing);
}

double LiveSearch::timing_cost_s(std::size_t change) const {
  return 2 * kept_call_.replay_s + (replay_times_.contains(change) ? 0 : prepare_s(change));
}

// With what its settings need for the first time, whichever of the changes in them needs it.
double LiveSearch::gate_cost_s() const {
  const std::size_t next = *gate_.next();
  double cost_s = kept_call_.replay_s + 2 * changes_.candidate(next).switch_s;
  for (std::size_t change = 0; change < changes_.count(); ++change) {
    const bool needs_it = change == next || changes_.is_costly(change);
    if (needs_it && has_all(gate_.next_pair().candidate, changes_.candidate(change).changes)) {
      cost_s += prepare_s(change);
    }
  }
  return cost_s;
}

// As many replays of the call at hand as there is room for: another call takes another one of the reference.
void LiveSearch::check_kept_call(double begin_s) {
  while (const auto change = gate_.next()) {
    if (!agree(gate_.is_ready())) return;
    if (!has_room(clock_() - begin_s + gate_cost_s())) return;
    const double replay_begin_s = clock_();
    const LiveGate::Finding finding = gate_.replay_next();
    const double took_s = clock_() - replay_begin_s;
    const bool was_replayed = agree(finding.numerics.has_value());
    if (!was_replayed && call_is_at_fault(finding.failure)) return;
    note_replay(*change, took_s);
    kept_call_.was_replayed = true;
    if (was_replayed && finding.numerics) {
      settle_gate(*change, *finding.numerics);
      tell_prepared(*change);
    } else {
      settle_failed(*change, finding.failure.code,
                    finding.numerics ? "another rank could not replay it" : finding.failure.sentence);
    }
  }
}

void LiveSearch::time_kept_call() {
  const std::size_t change = *next_to_time();
  const Candidate& candidate = changes_.candidate(change);
  auto& times =
      replay_times_.try_emplace(change, loop_, candidate.numerics, candidate.changes, options_.gain_min, seed_)
          .first->second;
  const auto failure = times.replay_pair(++pairs_);
  const bool was_replayed = agree(!failure);
  if (!was_replayed && call_is_at_fault(failure.value_or(ReplayFailure{}))) return;
  kept_call_.was_replayed = true;
  if (!was_replayed) {
    return settle_failed(change, failure ? failure->code : ErrorCode::internal,
                         failure ? failure->sentence : "another rank could not replay it");
  }
  if (!times.is_done()) return;
  changes_.trial(change).numerics = times.numerics();
  settle(change, Verdict::refused, Reason::not_allowed,
         fmt::format("Not tried, as only {} is allowed and it is {}; forward and backward of a kept call: {}.",
                     to_string(options_.allow), to_string(candidate.numerics), times.record().text()));
}

// Whether a replay failed because the call at hand cannot be made again: then it tells of no change, and another call
// may. Where something was replayed of it, or can be, the change is to blame.
bool LiveSearch::call_is_at_fault(const ReplayFailure& failure) {
  const bool is_at_fault =
      failure.code == ErrorCode::unsupported && !kept_call_.was_replayed && !can_replay_call(loop_);
  if (agree(!is_at_fault)) return false;
  if (is_at_fault) kept_call_.why = failure.sentence;
  return true;
}

void LiveSearch::note_replay(std::size_t change, double took_s) {
  if (changes_.is_costly(change)) prepared_s_[change] += std::max(0.0, took_s - kept_call_.replay_s);
  // The first one of a call is the one with a replay of the reference.
  if (!kept_call_.was_replayed) kept_call_.replay_s = std::min(took_s, kReplayUnitsMax * account_.unit_s());
}

// Of the next pair in the gate, which was replayed.
void LiveSearch::settle_gate(std::size_t change, const NumericResult& numerics) {
  const NumericPair& pair = gate_.next_pair();
  const Candidate& candidate = changes_.candidate(change);
  if (pair.numeric_class == candidate.numerics || !numerics.passed) changes_.trial(change).numerics = numerics;
  if (!agree(numerics.passed)) {
    const char* computes = pair.candidate == candidate.changes ? "Computes" : "Beside what is kept it computes";
    return settle(change, Verdict::refused, Reason::numerics,
                  fmt::format("{} something else: {}: {:.3g}, at most {:.3g}.", computes, numerics.measure,
                              numerics.value, numerics.tolerance));
  }
  gate_.pass_next();
  const Standing standing = changes_.standing(change);
  if (standing == Standing::gate || standing == Standing::costly) changes_.set_standing(change, turns_of(change));
}

// Units in which no call could be kept and replayed, as a loop in which no model's forward is seen.
void LiveSearch::settle_without_call() {
  kept_call_.missing = 0;
  const std::string why = kept_call_.why.empty() ? "no call of the model could be kept and replayed" : kept_call_.why;
  for (std::size_t change = 0; change < changes_.count(); ++change) {
    const Standing standing = changes_.standing(change);
    if (standing == Standing::gate || standing == Standing::costly) {
      settle(change, Verdict::inconclusive, Reason::error, fmt::format("Not tried: {}.", why));
    } else if (standing == Standing::timing) {
      settle(change, Verdict::inconclusive, Reason::not_allowed, fmt::format("Not tried: {}.", why));
    } else if (gate_.is_waiting(change)) {
      settle(change, Verdict::inconclusive, Reason::error,
             fmt::format("Not proved, as it could not be checked beside what is kept: {}.", why));
    }
  }
}

double LiveSearch::prepare_s(std::size_t change) const {
  const auto measured = prepared_s_.find(change);
  return measured == prepared_s_.end() ? changes_.candidate(change).prepare_s : measured->second;
}

std::optional<double> LiveSearch::rest_s() const {
  if (!updates_left_) return std::nullopt;
  return static_cast<double>(*updates_left_) * account_.kept_unit_s();
}

bool LiveSearch::can_pay(std::size_t change) const {
  if (!changes_.is_costly(change) || prepare_s(change) <= kPreparedSeconds) return true;
  const auto left_s = rest_s();
  return left_s && paid_back_after_s(prepare_s(change), kGainHoped) <= *left_s;
}

bool LiveSearch::is_prepared(const Settings& settings) const {
  return settings.empty() || !changes_.keeps_costly() || switch_.were_in_force(settings);
}

std::string LiveSearch::prepare_text(std::size_t change, double gain) const {
  if (prepare_s(change) <= kPreparedSeconds) return {};
  const std::string_view note = changes_.candidate(change).prepare_note;
  return payback_text(prepare_s(change), gain, rest_s(), prepared_s_.contains(change) ? std::string_view() : note);
}

}  // namespace headrace
