#include "insight/tune/live_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace headrace {
namespace {

// Times what a unit is expected to take, behind its first visit; of long blocks, which lose as many times more, fewer.
constexpr double kSlowNewcomer = 2.5, kSlowNewcomerLong = 1.5;
constexpr std::int64_t kUnitsOfWaiting = 8;    // Until room is asked for again.
constexpr std::int64_t kUnitsOfWatching = 32;  // Until it is asked whether something is to be checked.
constexpr double kRecheckShareOfShifts = 0.1;  // Of the time between checks of what is kept.
constexpr std::int64_t kCallsMissingMax = 16;
constexpr double kCostForgotten = 0.99;  // Each time that there is no room for it: a burst may have been to blame.

}  // namespace

LiveSearch::LiveSearch(LiveLoop& loop, std::vector<Candidate> candidates, const LiveOptions& options,
                       std::uint64_t seed, LiveProgress progress, Clock clock, LoadReader read_load)
    : loop_(loop),
      options_(options),
      seed_(seed),
      progress_(std::move(progress)),
      clock_(std::move(clock)),
      read_load_(std::move(read_load)),
      stage_(options.frozen ? Stage::closed : Stage::baseline),
      changes_(options.frozen ? std::vector<Candidate>() : std::move(candidates), options.only),
      switch_(loop, changes_.count(), clock_),
      account_(options.lost_s, options.lost_share),
      blocks_(loop),
      load_before_(read_load_ && !options.frozen ? read_load_() : CpuLoad{}),
      gate_(loop),
      race_(changes_.count(), options.gain_min, seed,
            [this](std::size_t one, std::size_t other) { return changes_.exclude(one, other); }),
      drops_(changes_, race_, options.gain_min) {
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  found_.ledger.speedup = {unknown, unknown, unknown};
  found_.ledger.baseline_samples_per_second = found_.ledger.best_samples_per_second = unknown;
  if (!options.frozen) {
    account_.spend(options.spent_s);
    return;
  }
  found_.ended = true;
  found_.end_reason = "auto_tune is off";
}

bool LiveSearch::watching() const noexcept {
  if (stage_ != Stage::watch) return stage_ != Stage::closed;
  if (pair_) return true;  // What is kept comes back behind it.
  return !changes_.kept().empty() && std::isfinite(options_.recheck_s) && !switch_.is_full();
}

void LiveSearch::before_update() {
  if (!kept_call_.is_wanted || stage_ == Stage::closed) return;
  const double begin_s = clock_();
  if (stage_ == Stage::search && kept_call_.use == CallUse::check) {
    check_kept_call(begin_s);
  } else if (stage_ == Stage::search || stage_ == Stage::timing) {
    time_kept_call();
  }
  replays_s_ += clock_() - begin_s;
  tell();
}

void LiveSearch::after_update(const LiveUnit& unit) {
  if (!watching()) return;
  update_ = unit.update;
  ++found_.updates;
  if (is_counted(unit)) ++found_.counted_units;
  const bool wanted_call = std::exchange(kept_call_.is_wanted, false);
  const bool was_replayed = std::exchange(kept_call_.was_replayed, false);
  if (wanted_call) kept_call_.missing = was_replayed ? 0 : kept_call_.missing + 1;
  if (was_replayed) kept_call_.why.clear();
  bool can_begin;
  if (stage_ == Stage::baseline) {
    can_begin = measure_baseline(unit);
  } else {
    account(unit, wanted_call);
    can_begin = measure(unit);
  }
  if (can_begin) {
    if (wanted_call && !agree(kept_call_.missing < kCallsMissingMax)) settle_without_call();
    begin_next();
  }
  tell();
}

void LiveSearch::account(const LiveUnit& unit, bool kept_call) {
  const double replays_s = std::exchange(replays_s_, 0.0);
  const Settings& settings = switch_.in_force();
  const InForce in_force = settings.empty()              ? InForce::as_written
                           : settings == changes_.best() ? InForce::kept
                                                         : InForce::trial;
  const bool tells = !kept_call && switch_.units() >= wash_out_;
  account_.add(unit, in_force, switch_.take_seconds() + replays_s, tells);
  if (is_counted(unit)) switch_.count_unit();
}

bool LiveSearch::measure(const LiveUnit& unit) {
  if (!pair_) return true;
  pair_->pair.add(unit, is_counted(unit) ? pair_->expected.expected(unit.work) : 0);
  const bool is_slow = newcomer_is_slow(unit);
  const bool is_trial = switch_.in_force() != changes_.best() && !switch_.in_force().empty();
  // What it has loaded will take its time under whatever comes next.
  const double units = pair_->blocks[0].shape.carries_over ? static_cast<double>(1 + wash_out_) : 1;
  const bool holds_room = !is_trial || account_.budget().has_room(units * account_.next_excess_s());
  if (!agree(!is_slow && holds_room && !pair_->pair.is_scattered())) {
    break_off(is_slow, holds_room);
    return true;
  }
  if (!agree(pair_->pair.is_whole())) return false;
  if (pair_->pair.at_hand() == LivePair::Block::first) return !begin_second_block();
  finish_pair();
  return true;
}

// In the pair in which a change enters the race, the block that it is on in: its first visit.
bool LiveSearch::newcomer_is_on() const {
  const Changes& on = switch_.on();
  return pair_ && pair_->drawn && newcomer_ && std::find(on.begin(), on.end(), *newcomer_) != on.end();
}

// Before its block is measured, or half of one in which single units tell nothing because batches come several at a
// time: one change that takes ten times as long would use up what all others may lose.
bool LiveSearch::newcomer_is_slow(const LiveUnit& unit) const {
  if (!is_counted(unit) || !newcomer_is_on()) return false;
  const LivePair& pair = pair_->pair;
  if (pair_->blocks[0].shape.carries_over || blocks_.waits_for_data()) {
    return pair.is_half_measured() && pair.ratio() > kSlowNewcomerLong;
  }
  return pair.is_washed_out(blocks_.first_visit()) && unit.seconds > kSlowNewcomer * account_.expected_s(unit.work);
}

void LiveSearch::break_off(bool is_slow, bool has_room) {
  const bool newcomer_waits = !agree(!is_slow), room_is_used_up = !agree(has_room);
  if (room_is_used_up) {  // It would have cost at most so much.
    pair_cost_s_ = std::max(pair_cost_s_, static_cast<double>(pair_->pair.units()) * account_.next_excess_s());
  }
  if (newcomer_waits && newcomer_) {
    race_.leave(*newcomer_);
    changes_.set_standing(*newcomer_, Standing::alone);
  }
  pair_.reset();
  line_of_last_.reset();
  race_.turn_all_off();
}

void LiveSearch::finish_pair() {
  const Measurement done = std::move(*pair_);
  pair_.reset();
  pair_cost_s_ = (pair_cost_s_ + std::max(0.0, account_.budget().behind_s() - done.behind_s)) / 2;
  const LiveBlocks::Block& shape = done.blocks[0].shape;
  // The loop waits for data: nothing measured in short blocks counts.
  if (!shape.carries_over && !shape.may_wait && blocks_.note(done.pair)) return measure_anew();
  if (done.drawn) {
    race_.add(*done.drawn, done.pair.log_ratio());
    judge_race();
  } else {
    proof_->pairs.add(done.pair, done.change_leads, done.goes_on);
    if (done.change_leads) line_of_last_ = done.expected;
    judge_proof();
  }
}

// What was measured no longer counts: neither of open changes nor of those that were decided by it.
void LiveSearch::measure_anew() {
  race_.forget();
  if (proof_) proof_->pairs = LiveProof(proof_->pairs.without(), proof_->pairs.with(), options_.gain_min);
  if (stage_ != Stage::search) return;
  for (std::size_t change = 0; change < changes_.count(); ++change) {
    if (was_decided_by_pairs(change)) reopen(change);
    if (changes_.standing(change) != Standing::out) drops_.forget(change);
  }
}

// And not kept at any time.
bool LiveSearch::was_decided_by_pairs(std::size_t change) const {
  const Trial& trial = changes_.trials()[change];
  const bool has_pairs = trial.pairs > 0 || race_.record(change).pairs() > 0;
  const bool is_such =
      trial.reason == Reason::slower || trial.reason == Reason::no_gain || trial.reason == Reason::budget;
  return has_pairs && is_such && !trial.removed_again;
}

void LiveSearch::begin_next() {
  if (resting_ > 0) {
    --resting_;
    return hold("what is kept");
  }
  if (stage_ == Stage::search && search_next()) return;
  if (stage_ == Stage::comparison) return compare_next();
  if (stage_ == Stage::timing && time_next()) return;
  if (!found_.ended) end_search();
  watch_next();
}

bool LiveSearch::search_next() {
  if (!expect_rest() || switch_.is_full()) {
    found_.end_reason = switch_.is_full() ? "settings were switched as often as is recorded" : "the run ends";
    stage_ = Stage::watch;
    return false;
  }
  if (!agree(!account_.take_shift())) measure_anew();
  let_in_held_back();
  if (gate_.next() && gate_goes_first()) return want_call(0, CallUse::check);
  if (timing_goes_first()) return want_call(0, CallUse::time);
  // A change that is the only one left has no others to take turns with: its pairs are those of a proof. Where another
  // is to be proved it waits for that, as it may stay open for long.
  const bool is_last = changes_.number_of(Standing::race) == 1 && changes_.number_of(Standing::proof) == 0;
  if (!proof_ && !gate_.next() && is_last) {
    const std::size_t last = *changes_.first(Standing::race);
    race_.leave(last);
    changes_.set_standing(last, Standing::proof);
  }
  auto alone = changes_.first(Standing::proof);
  const bool races = changes_.number_of(Standing::race) > 0;
  if (!proof_ && !alone && !races) {
    alone = changes_.first(Standing::alone);
    if (gate_.next() && (!alone || has_room(gate_cost_s()))) return check_next();
  }
  if (!proof_ && alone) {
    if (!is_checked(*alone)) return check_beside_kept(*alone);
    const std::size_t on[] = {*alone};
    begin_proof(ProofKind::proof, *alone, changes_.best(), changes_.best_with(on));
  }
  if (!proof_ && !races) {
    if (look_again(std::nullopt)) return search_next();
    if (const auto costly = changes_.first(Standing::costly)) return check_beside_kept(*costly);
    found_.end_reason = "every change is looked at";
    stage_ = Stage::comparison;
    return false;
  }
  if (!has_room(pair_cost_s_)) return (!proof_ && put_off_long_turns()) || wait_for_room();
  if (proof_) {
    begin_proof_pair();
  } else {
    begin_race_pair();
  }
  return true;
}

// Kept changes together against the loop as written: what the run has gained.
void LiveSearch::compare_next() {
  const bool goes_on = !changes_.kept().empty() && expect_rest() && !switch_.is_full();
  if (!goes_on || found_.ledger.speedup_pairs > 0) {
    proof_.reset();
    stage_ = Stage::timing;
    return begin_next();
  }
  if (!has_room(pair_cost_s_)) return rest(kUnitsOfWaiting);  // Which what is kept makes.
  if (!proof_) begin_proof(ProofKind::comparison, 0, {}, changes_.best());
  begin_proof_pair();
}

bool LiveSearch::time_next() {
  const bool goes_on = expect_rest();
  const auto change = next_to_time();
  // Nobody waits for what takes long to prepare only to say what it would gain.
  if (!goes_on || !change || (changes_.is_costly(*change) && !has_room(timing_cost_s(*change)))) {
    stage_ = Stage::watch;
    return false;
  }
  return want_call(timing_cost_s(*change), CallUse::time);
}

void LiveSearch::watch_next() {
  if (!watching() || !expect_rest()) return hold("what is kept");
  // Of another work or another machine: what is kept may no longer pay. Where it is another all the time, not at once.
  has_shifted_ |= !agree(!account_.take_shift());
  if (to_recheck_.empty() && !proof_) {
    const double wanted_s = options_.recheck_s * (has_shifted_ ? kRecheckShareOfShifts : 1);
    if (!agree(account_.budget().elapsed_s() - checked_at_s_ >= wanted_s)) return rest(kUnitsOfWatching);
    checked_at_s_ = account_.budget().elapsed_s();
    has_shifted_ = false;
    to_recheck_ = changes_.kept();
  }
  if (!proof_) {
    const std::size_t change = to_recheck_.front();
    to_recheck_.erase(to_recheck_.begin());
    if (changes_.standing(change) == Standing::kept && is_prepared(changes_.best_without(change))) {
      begin_proof(ProofKind::recheck, change, changes_.best_without(change), changes_.best());
    }
  }
  if (!proof_ || !has_room(pair_cost_s_)) return rest(kUnitsOfWaiting);
  begin_proof_pair();
}

// Whether the run holds another pair, as far as anybody knows.
bool LiveSearch::expect_rest() {
  updates_left_ = loop_.updates_left();
  account_.expect_rest(updates_left_);
  return agree(!updates_left_ || *updates_left_ >= 2 * blocks_.usual().units());
}

bool LiveSearch::is_over(double share, double seconds) const {
  const double elapsed_s = account_.budget().elapsed_s();
  const auto left_s = rest_s();
  return elapsed_s >= (left_s ? share * (elapsed_s + *left_s) : seconds);
}

// Holds what is kept until there is room. False: there will be none.
bool LiveSearch::wait_for_room() {
  pair_cost_s_ *= kCostForgotten;
  race_.turn_all_off();
  if (agree(account_.budget().grows() || account_.is_ahead())) {
    rest(kUnitsOfWaiting);
    return true;
  }
  if (stage_ == Stage::search && proof_ && changes_.standing(proof_->change) == Standing::alone) {
    const std::size_t change = proof_->change;
    settle(change, Verdict::inconclusive, Reason::budget, open_sentence(change));
    pair_cost_s_ = 0;
    return search_next();
  }
  found_.end_reason = fmt::format("of the {:.3g} s that may be lost, {:.3g} s are", account_.budget().allowed_s(),
                                  account_.budget().behind_s());
  proof_.reset();
  stage_ = stage_ == Stage::search ? Stage::comparison : Stage::watch;
  return false;
}

// Changes that make pairs long wait until the others are done, which may lose something, too; what they have loaded is
// used up first. Whether there was one.
bool LiveSearch::put_off_long_turns() {
  if (blocks_.waits_for_data()) return false;  // All pairs are long.
  bool found = false;
  const Changes racing = race_.changes();
  for (const std::size_t change : racing) {
    if (!changes_.candidate(change).carries_over) continue;
    race_.leave(change);
    changes_.set_standing(change, Standing::alone);
    found = true;
  }
  if (!found) return false;
  pair_cost_s_ = 0;
  race_.turn_all_off();
  hold("what is kept");
  rest(left_to_wash_out() + 1);
  return true;
}

void LiveSearch::rest(std::int64_t units) {
  hold("what is kept");
  resting_ = units - 1;
}

// A second time, once, at changes that few pairs spoke against: a first visit or another change may have been to blame.
// While others are open, at those alone that `known` may have disturbed, whose effect was not known by then. Whether
// there is one.
bool LiveSearch::look_again(std::optional<std::size_t> known) {
  bool found = false;
  for (const std::size_t change : drops_.waiting()) {
    if (known && agree(drops_.disturber(change) != known)) continue;
    found |= reopen(change);
  }
  return found;
}

bool LiveSearch::reopen(std::size_t change) {
  if (changes_.standing(change) != Standing::out || changes_.why_idle(change)) return false;
  drops_.look_again(change);
  race_.clear(change);
  alone_needed_.erase(change);
  changes_.set_standing(change, turns_of(change));
  return true;
}

Standing LiveSearch::turns_of(std::size_t change) const {
  const bool prepares_anew = changes_.is_costly(change) || changes_.keeps_costly();
  return prepares_anew ? Standing::alone : Standing::race;
}

}  // namespace headrace
