// What a live search finds out by pairs of blocks, and who is told.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "insight/tune/live_payback.h"
#include "insight/tune/live_search.h"
#include "insight/tune/tuner.h"

namespace headrace {
namespace {

// Pairs until an open change is left off: about 5 % is found in the first, with little noise. Such changes cost next to
// nothing, so that the search goes on to the second where nothing waits for its end and it has not lasted for a share
// of the run yet.
constexpr std::int64_t kOpenPairs = 300, kOpenPairsMax = 1200;
constexpr double kSearchShare = 0.3, kSearchSeconds = 300;  // Where the run's length is not known.
constexpr std::int64_t kComparisonPairs = 10;
constexpr std::int64_t kRecheckPairs = 10;
// A check that speaks for the change is over. What no longer gains gain_min gets there in one check of five at most,
// and then the next one finds it. What gains most costs most to check, and takes 4 pairs.
constexpr double kWealthToPass = 5;
constexpr std::int64_t kPairsForetold = 4;  // Of fewer it cannot be told how they scatter.

bool is_drop(Outcome outcome) {
  return outcome == Outcome::no_gain || outcome == Outcome::slower;
}

// Further ones that decide it at the pace so far; nullopt: nobody can tell.
std::optional<std::int64_t> pairs_needed_by(const PairRecord& record) {
  return record.pairs() < kPairsForetold ? std::nullopt : record.bets().pairs_needed();
}

}  // namespace

LiveSearch::Failure LiveSearch::failure_of(ErrorCode code, const std::string& message) {
  if (code == ErrorCode::out_of_memory) {
    return {Verdict::refused, Reason::memory, fmt::format("Does not fit: {}.", message)};
  }
  return {Verdict::failed, Reason::error, fmt::format("Failed: {}.", message)};
}

void LiveSearch::settle_failed(std::size_t change, ErrorCode code, const std::string& message) {
  Failure failure = failure_of(code, message);
  settle(change, failure.verdict, failure.reason, std::move(failure.sentence));
}

// Settings could not be applied: the changes in them that were never in force before are to blame, else all.
void LiveSearch::blame(const Changes& on, const LiveSwitch::Refusal& refusal) {
  Changes blamed;
  for (const std::size_t change : on) {
    if (!switch_.was_on(change)) blamed.push_back(change);
  }
  for (const std::size_t change : blamed.empty() ? on : blamed) settle_failed(change, refusal.code, refusal.message);
  pair_.reset();
  race_.turn_all_off();
  race_.forget();
  if (!on.empty() || !proof_) return;
  // Not even the loop with less than is kept: no change is to blame, and nothing is compared.
  if (proof_->kind == ProofKind::comparison) stage_ = Stage::timing;
  proof_.reset();
}

void LiveSearch::judge_race() {
  bool is_decided = false;  // Of something that counts for the others.
  const Changes racing = race_.changes();
  std::vector<Outcome> outcomes;  // Before one of them leaves: they depend on who leads.
  for (const std::size_t change : racing) outcomes.push_back(race_.outcome(change));
  for (std::size_t i = 0; i < racing.size(); ++i) {
    const std::size_t change = racing[i];
    const Outcome outcome = outcomes[i];
    if (agree(outcome == Outcome::pays)) {
      race_.leave(change);
      changes_.set_standing(change, Standing::proof);
      is_decided = true;
    } else if (agree(is_drop(outcome))) {
      is_decided |= !agree(std::abs(race_.record(change).middle().value_or(0)) < kNoticed);
      drop(change);
    } else if (is_left_off(race_.pairs(change))) {
      settle(change, Verdict::inconclusive, Reason::budget, open_sentence(change));
    }
  }
  if (!is_decided) return;
  race_.forget();  // What it did together with others is in what was measured of them.
  pair_cost_s_ = 0;
}

// A change that so many pairs have not decided.
bool LiveSearch::is_left_off(std::int64_t pairs) {
  if (pairs < kOpenPairs) return false;
  const std::size_t is_alone = proof_ && changes_.standing(proof_->change) == Standing::alone ? 1 : 0;
  const bool others_wait = gate_.next() || changes_.number_of(Standing::alone) > is_alone ||
                           changes_.number_of(Standing::costly) + changes_.number_of(Standing::held_back) > 0;
  if (others_wait || switch_.is_half_full() || pairs >= kOpenPairsMax) return true;
  return !agree(!is_over(kSearchShare, kSearchSeconds));
}

void LiveSearch::drop(std::size_t change) {
  drops_.add(change);
  LiveDrops::Told told = drops_.told(change, /*search_goes_on=*/true);
  settle(change, Verdict::refused, told.reason, std::move(told.sentence));
}

void LiveSearch::judge_proof() {
  const PairRecord& record = proof_->pairs.record();
  const Outcome outcome = record.bets().outcome();
  switch (proof_->kind) {
    case ProofKind::comparison:
      if (record.pairs() >= kComparisonPairs) note_comparison(*std::exchange(proof_, std::nullopt));
      return;
    case ProofKind::recheck:
      if (!agree(!is_drop(outcome))) {
        // Of what pays one check in twenty says so by chance, and a run has many.
        const Proof done = *std::exchange(proof_, std::nullopt);
        if (done.repeats) return settle_recheck(done);
        begin_proof(ProofKind::recheck, done.change, done.pairs.without(), done.pairs.with());
        proof_->repeats = true;
      } else if (record.pairs() >= kRecheckPairs || agree(record.bets().wealth_for() >= kWealthToPass)) {
        proof_.reset();
      }
      return;
    case ProofKind::proof:
      break;
  }
  const bool pays = agree(outcome == Outcome::pays), drops = agree(is_drop(outcome));
  if (!pays && !drops && !is_left_off(record.pairs())) return;
  const bool is_clean = agree(!proof_->pairs.carry_over());
  const Proof done = *std::exchange(proof_, std::nullopt);
  pair_cost_s_ = 0;
  settle_proof(done, pays || drops ? outcome : Outcome::open, is_clean);
}

void LiveSearch::settle_proof(const Proof& proof, Outcome outcome, bool is_clean) {
  note_pairs(proof);
  const std::string found = proof.pairs.record().text(), costs = prepare_note(proof);
  if (!is_clean) {
    settle(proof.change, Verdict::inconclusive, Reason::carries_over,
           fmt::format("Not judged while the run goes on: what one setting prepared is used up under the other; units "
                       "right behind it differ by {:+.1f} % from those that follow, more than a quarter of what it "
                       "shows: {}. headrace.tune judges it.",
                       std::expm1(proof.pairs.carry_over().value_or(0)) * 100, found));
  } else if (outcome == Outcome::pays) {
    keep(proof);
  } else if (is_drop(outcome)) {
    settle(proof.change, Verdict::refused, drop_reason(outcome),
           drop_sentence(outcome, options_.gain_min, found + ", alone" + costs));
  } else {
    settle(proof.change, Verdict::inconclusive, Reason::budget, fmt::format("Not decided, alone: {}{}.", found, costs));
  }
  if (is_clean && outcome != Outcome::open) look_again(proof.change);
}

void LiveSearch::note_pairs(const Proof& proof) {
  Trial& trial = changes_.trial(proof.change);
  trial.pairs = proof.pairs.record().pairs();
  trial.gain = proof.pairs.record().gain();
  trial.baseline_s = proof.pairs.without_s();
  trial.candidate_s = proof.pairs.with_s();
  alone_needed_[proof.change] = pairs_needed_by(proof.pairs.record());
}

// Behind what was found; empty: nothing took long to prepare.
std::string LiveSearch::prepare_note(const Proof& proof) const {
  if (!changes_.is_costly(proof.change)) return {};
  const auto gain = proof.pairs.record().gain();
  const std::string text = prepare_text(proof.change, gain ? gain->median : 0);
  return text.empty() ? text : "; " + text;
}

void LiveSearch::keep(const Proof& proof) {
  const std::string costs = prepare_note(proof);  // In what is left of the run as it was without it.
  account_.scale_kept(std::exp(-proof.pairs.record().middle().value_or(0)));
  const char* draws = changes_.candidate(proof.change).changes_batches ? "; its batches are other draws" : "";
  const Changes settled = changes_.keep(proof.change, fmt::format("Pays: {}, alone against the best before it{}{}.",
                                                                  proof.pairs.record().text(), draws, costs));
  blocks_.set_waiting(proof.pairs.wait_share());
  race_.forget();
  for (const std::size_t change : settled) {
    race_.leave(change);
    gate_.forget(change);
    tell_decided(change);
  }
  tell_decided(proof.change);
}

void LiveSearch::settle_recheck(const Proof& proof) {
  if (changes_.standing(proof.change) != Standing::kept) return;
  take_out(proof.change,
           {Verdict::refused, Reason::no_gain,
            fmt::format("Taken out again, it no longer pays: {}.", proof.pairs.record().text())},
           std::exp(proof.pairs.record().middle().value_or(0)));
}

// Without it, what is kept takes `factor` times as long.
void LiveSearch::take_out(std::size_t change, Failure why, double factor) {
  account_.scale_kept(factor);
  changes_.take_out(change, why.verdict, why.reason, std::move(why.sentence));
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  Ledger& ledger = found_.ledger;  // What is left was not compared with the loop as written.
  ledger.speedup = {unknown, unknown, unknown};
  ledger.speedup_pairs = 0;
  ledger.baseline_s.clear();
  ledger.best_s.clear();
  tell_decided(change);
}

void LiveSearch::note_comparison(const Proof& proof) {
  const auto gain = proof.pairs.record().gain();
  Ledger& ledger = found_.ledger;
  ledger.speedup = {1 + gain->median, 1 + gain->low, 1 + gain->high};
  ledger.speedup_pairs = proof.pairs.record().pairs();
  ledger.baseline_s = proof.pairs.without_s();
  ledger.best_s = proof.pairs.with_s();
}

void LiveSearch::settle(std::size_t change, Verdict verdict, Reason reason, std::string sentence) {
  race_.leave(change);
  gate_.forget(change);
  if (proof_ && proof_->kind == ProofKind::proof && proof_->change == change) {
    if (verdict == Verdict::inconclusive) note_pairs(*proof_);
    proof_.reset();
  }
  changes_.settle(change, verdict, reason, std::move(sentence));
  tell_decided(change);
}

std::string LiveSearch::open_sentence(std::size_t change) const {
  if (proof_ && proof_->kind == ProofKind::proof && proof_->change == change && proof_->pairs.record().pairs() > 0) {
    return fmt::format("Not decided, alone: {}.", proof_->pairs.record().text());
  }
  switch (changes_.standing(change)) {
    case Standing::gate:
      return "Not checked yet, and so not tried.";
    case Standing::costly: {
      const std::string text = prepare_text(change, kGainHoped);
      return fmt::format("Not tried, as all others come first{}{}.", text.empty() ? "" : ": ", text);
    }
    case Standing::alone:
      return "Not decided: it takes turns with no others, because it took much longer at first, takes long to prepare "
             "or costs too much while others wait, and no pairs of its own were measured.";
    case Standing::held_back:
      return "Not tried: the machine is not quiet, and more promising changes came first.";
    case Standing::timing:
      return fmt::format("Not tried, as only {} is allowed, and not timed.", to_string(options_.allow));
    default:
      return fmt::format("Not decided, in turns with others: {}.", race_.record(change).text());
  }
}

void LiveSearch::settle_open(Reason reason) {
  for (std::size_t change = 0; change < changes_.count(); ++change) {
    const Standing standing = changes_.standing(change);
    if (standing == Standing::out || standing == Standing::kept) continue;
    if (drops_.is_looked_at_again(change) && !was_measured_again(change)) {
      drops_.take_back(change);
      continue;
    }
    const bool is_allowed = standing != Standing::timing;
    const Reason why = !is_allowed ? Reason::not_allowed : standing == Standing::held_back ? Reason::not_quiet : reason;
    settle(change, is_allowed ? Verdict::inconclusive : Verdict::refused, why, open_sentence(change));
  }
  settle_drops();
  proof_.reset();
}

// Since it was opened for a second look.
bool LiveSearch::was_measured_again(std::size_t change) const {
  const bool has_proof = proof_ && proof_->kind == ProofKind::proof && proof_->change == change;
  return race_.record(change).pairs() > 0 || (has_proof && proof_->pairs.record().pairs() > 0);
}

// What is known of the others by now may be more than when they were dropped, and nothing is looked at again. Nobody is
// told: no verdict becomes another one.
void LiveSearch::settle_drops() {
  for (const std::size_t change : drops_.dropped()) {
    race_.leave(change);
    gate_.forget(change);
    LiveDrops::Told told = drops_.told(change, /*search_goes_on=*/false);
    changes_.settle(change, Verdict::refused, told.reason, std::move(told.sentence));
  }
}

void LiveSearch::end_search() {
  settle_open(Reason::budget);
  stage_ = Stage::watch;
  found_.ended = true;
  checked_at_s_ = account_.budget().elapsed_s();
  hold("the search is over");
  const std::string sentence =
      fmt::format("{}; {} of {} changes kept", found_.end_reason, changes_.kept().size(), changes_.count());
  to_tell_.emplace_back([this, sentence] {
    if (progress_.ended) progress_.ended(sentence);
  });
}

void LiveSearch::failed(ErrorCode code, const std::string& sentence, const std::vector<std::string>& keys) {
  if (stage_ == Stage::closed) return;
  if (!keys.empty()) return failed_under(code, sentence, keys);
  const Changes on = switch_.on();
  if (on.empty()) return stop("the loop failed with nothing on trial: " + sentence);
  // The others beside a newcomer were on before, and nothing failed.
  for (const std::size_t change : newcomer_is_on() ? Changes{*newcomer_} : on) settle_failed(change, code, sentence);
  undo_trial();
}

// Whatever the changes that set one of these keys wait for, or whether they are kept: they are out.
void LiveSearch::failed_under(ErrorCode code, const std::string& sentence, const std::vector<std::string>& keys) {
  bool is_at_hand = false;
  for (std::size_t change = 0; change < changes_.count(); ++change) {
    const Standing standing = changes_.standing(change);
    if (standing == Standing::out || standing == Standing::timing || !changes_.sets_any(change, keys)) continue;
    is_at_hand |= standing == Standing::kept || is_on_trial(change);
    if (standing != Standing::kept) {
      settle_failed(change, code, sentence);
      continue;
    }
    const auto gain = changes_.trial(change).gain;
    take_out(change, failure_of(code, sentence), gain ? 1 + gain->median : 1);
    proof_.reset();  // It was of settings with that change.
  }
  if (is_at_hand) return undo_trial();
  tell();
}

// Whether it is on, or is in one of the blocks of the pair at hand.
bool LiveSearch::is_on_trial(std::size_t change) const {
  const auto holds = [change](const Changes& on) { return std::find(on.begin(), on.end(), change) != on.end(); };
  return holds(switch_.on()) || (pair_ && (holds(pair_->blocks[0].on) || holds(pair_->blocks[1].on)));
}

// What is kept is in force again, at once. What was measured together with a change that failed counts for nothing.
void LiveSearch::undo_trial() {
  pair_.reset();
  kept_call_.is_wanted = false;
  race_.turn_all_off();
  race_.forget();
  switch_.alone_to(changes_.best(), update_ + 1, "a change failed");
  account_.note_switch(prepares({}));
  tell();
}

void LiveSearch::stop(const std::string& why) {
  if (stage_ != Stage::closed) close(changes_.best(), why);
}

void LiveSearch::undo() {
  if (stage_ != Stage::closed) return close({}, "undone");
  switch_.alone_to({}, update_ + 1, "undone");
}

void LiveSearch::close(const Settings& settings, const std::string& why) {
  const bool was_over = std::exchange(found_.ended, true);
  stage_ = Stage::closed;
  pair_.reset();
  kept_call_.is_wanted = false;
  if (!was_over) {
    found_.end_reason = why;
    settle_open(Reason::none);
    to_tell_.emplace_back([this, why] {
      if (progress_.ended) progress_.ended(why);
    });
  }
  switch_.alone_to(settings, update_ + 1, why);
  tell();
}

LiveLedger LiveSearch::ledger() const {
  LiveLedger ledger = found_;
  const LiveBudget& budget = account_.budget();
  ledger.ledger.trials = changes_.trials();
  ledger.ledger.best = changes_.best();
  if (changes_.kept().empty()) ledger.ledger.speedup = {1, 1, 1};
  ledger.turns = switch_.turns();
  for (std::size_t change = 0; change < changes_.count(); ++change) ledger.estimates.push_back(estimate_of(change));
  ledger.lost_s = budget.behind_s();
  ledger.lost_most_s = budget.most_behind_s();
  ledger.lost_allowed_s = budget.allowed_s();
  ledger.ledger.budget_s = ledger.lost_allowed_s;
  ledger.ledger.spent_s = ledger.lost_most_s;
  return ledger;
}

LiveLedger::Estimate LiveSearch::estimate_of(std::size_t change) const {
  LiveLedger::Estimate estimate;
  const auto times = replay_times_.find(change);
  estimate.timed_only = changes_.candidate(change).numerics > options_.allow;
  const PairRecord* dropped = drops_.pairs(change);
  const PairRecord& record = times != replay_times_.end() ? times->second.record()
                             : dropped != nullptr         ? *dropped
                                                          : race_.record(change);
  const Trial& trial = changes_.trials()[change];
  const bool is_open =
      trial.verdict == Verdict::inconclusive && trial.reason != Reason::carries_over && !estimate.timed_only;
  if (is_open) estimate.pairs_needed = pairs_needed(change);
  if (record.pairs() == 0) return estimate;
  if (dropped == nullptr || drops_.tells_gain(change, !found_.ended)) estimate.gain = record.gain();
  estimate.pairs = record.pairs();
  estimate.wealth_for = record.bets().wealth_for();
  estimate.wealth_against = record.bets().wealth_against();
  return estimate;
}

// Of a change that is or was measured alone, by those pairs. Of another one until it is dropped, or until it is proved,
// too; where what was measured no longer counts, as many as that took come again.
std::optional<std::int64_t> LiveSearch::pairs_needed(std::size_t change) const {
  if (proof_ && proof_->kind == ProofKind::proof && proof_->change == change) {
    return pairs_needed_by(proof_->pairs.record());
  }
  if (const auto alone = alone_needed_.find(change); alone != alone_needed_.end()) return alone->second;
  const PairRecord& record = race_.record(change);
  const auto needed = pairs_needed_by(record);
  if (!needed) return std::nullopt;
  const std::int64_t pairs = record.pairs(), in_race = race_.pairs(change) == 0 ? pairs + *needed : *needed;
  const bool looks_good = record.bets().wealth_for() > record.bets().wealth_against();
  return looks_good ? in_race + pairs_of_proof(pairs + *needed) : in_race;
}

void LiveSearch::tell_decided(std::size_t change) {
  to_tell_.emplace_back([this, trial = changes_.trial(change)] {
    if (progress_.decided) progress_.decided(trial);
  });
}

void LiveSearch::tell() {
  while (!to_tell_.empty()) {
    const auto next = std::move(to_tell_.front());
    to_tell_.pop_front();
    next();
  }
}

}  // namespace headrace
