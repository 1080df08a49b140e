// Pairs of a live search: what takes its turn in which, how long the blocks are, and what is in force in them.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "insight/tune/live_search.h"

namespace headrace {
namespace {

constexpr std::int64_t kPairsBetweenRests = 8;
constexpr double kExpensiveSwitch = 0.02;  // Of the blocks between two turns.
constexpr std::int64_t kEveryMax = 16;

}  // namespace

void LiveSearch::begin_proof(ProofKind kind, std::size_t change, Settings without, Settings with) {
  proof_.emplace(Proof{kind, change, LiveProof(std::move(without), std::move(with), options_.gain_min)});
}

void LiveSearch::begin_proof_pair() {
  const bool is_of_one = proof_->kind == ProofKind::proof;
  const bool leads = change_leads(seed_, pairs_ + 1);
  const bool was_on = switch_.in_force() == proof_->pairs.with();
  // The first pair is long: what a queue still holds would hide that the change makes the loop wait for data.
  const bool may_wait = !agree(!proof_->pairs.may_wait());
  LiveBlocks::Block shape{.may_wait = may_wait, .proves = true};
  Changes on;
  if (is_of_one) {
    shape.switch_s = switch_s(proof_->change);
    on.push_back(proof_->change);
  }
  Block unchanged{proof_->pairs.without(), {}, shape};
  // Of what no queue carries over, pairs tell by themselves in time: units for that alone would double the first ones.
  // Of somebody's own strategy nothing is known.
  const Candidate& candidate = changes_.candidate(proof_->change);
  const bool may_carry_over =
      is_of_one && (candidate.carries_over || blocks_.waits_for_data() || candidate.key.starts_with("custom."));
  unchanged.shape.settles = may_carry_over && proof_->pairs.looks_for_carry_over() && (leads || was_on);
  const Block changed{proof_->pairs.with(), std::move(on), shape};
  begin({LivePair(BlockUnits{}), leads ? std::array{changed, unchanged} : std::array{unchanged, changed}, std::nullopt,
         leads},
        proof_->kind == ProofKind::proof        ? "proof"
        : proof_->kind == ProofKind::comparison ? "comparison with the loop as written"
                                                : "check of what is kept");
}

void LiveSearch::begin_race_pair() {
  if (race_pairs_++ >= kPairsBetweenRests) {
    race_pairs_ = 0;
    race_.turn_all_off();
    hold("what is kept");
    return rest(wash_out_ + 2 * blocks_.usual().measured);  // What it takes as written now.
  }
  plan_turns();
  Measurement measurement{LivePair(BlockUnits{}), {}, race_.draw(pairs_ + 1)};
  for (std::size_t i = 0; i < 2; ++i) {
    const Changes& on = measurement.drawn->on[i];
    measurement.blocks[i] = {changes_.best_with(on), on};
  }
  begin(std::move(measurement), "race");
}

// Of newcomers one a pair enters, so that whatever a first visit costs is this change's; and in a pair in which it has
// its turn.
void LiveSearch::plan_turns() {
  std::map<std::size_t, std::int64_t> every;  // Pairs, of each change that stands in the race.
  for (std::size_t change = 0; change < changes_.count(); ++change) {
    if (changes_.standing(change) == Standing::race) every[change] = turns_every(change);
  }
  std::int64_t least = every.begin()->second;
  for (const auto& [change, pairs] : every) least = std::min(least, pairs);
  newcomer_.reset();
  for (const auto& [change, pairs] : every) {
    const std::int64_t turns = pairs / least;
    const auto& racing = race_.changes();
    bool races = std::find(racing.begin(), racing.end(), change) != racing.end();
    if (!races && !newcomer_ && race_.is_turn_of_every(turns)) {
      race_.enter(change);
      newcomer_ = change;
      races = true;
    }
    if (!races) continue;
    race_.take_turns_every(change, turns);
    // In short blocks of others it would be unknown what its queue does to them.
    if (changes_.candidate(change).carries_over) race_.turn_off(change);
  }
}

// Powers of 2. An expensive switch is to be a small part of the blocks between two turns; and where other blocks are
// short, a change that has to wash out a queue makes some pairs long, so that it takes few turns until it is alone.
std::int64_t LiveSearch::turns_every(std::size_t change) {
  const double block_s = static_cast<double>(blocks_.usual().measured) * account_.unit_s();
  std::int64_t every = 1;
  while (!agree(switch_s(change) <= kExpensiveSwitch * block_s * static_cast<double>(every) || every >= kEveryMax)) {
    every *= 2;
  }
  return changes_.candidate(change).carries_over ? std::max(every, blocks_.pairs_to_a_long_one()) : every;
}

void LiveSearch::begin(Measurement measurement, std::string_view name) {
  ++pairs_;
  measurement.behind_s = account_.budget().behind_s();
  measurement.expected = account_.times().line();
  const auto line_of_last = std::exchange(line_of_last_, std::nullopt);
  auto& blocks = measurement.blocks;
  const bool carries_over = changes_.carry_over(blocks[0].settings, blocks[1].settings);
  for (Block& block : blocks) block.shape.carries_over = carries_over;
  const auto units = begin_block(blocks[0], fmt::format("pair {}, {}, first block", pairs_, name));
  if (!units) return hold("what is kept");
  if (line_of_last && !measurement.drawn && !blocks[0].shape.switches) {
    measurement.goes_on = true;
    measurement.expected = *line_of_last;
  }
  measurement.pair = LivePair(*units);
  pair_ = std::move(measurement);
}

bool LiveSearch::begin_second_block() {
  Measurement next = std::move(*pair_);
  pair_.reset();  // A switch may throw.
  next.blocks[1].shape.measured_min = next.pair.planned();
  const auto units = begin_block(next.blocks[1], fmt::format("pair {}, second block", pairs_));
  if (!units) return false;
  next.pair.begin_second(*units);
  pair_ = std::move(next);
  return true;
}

// Its units, planned under its settings; nullopt: these could not be applied. A block before it may have been broken
// off with something left in the queue.
std::optional<BlockUnits> LiveSearch::begin_block(Block& block, std::string_view why) {
  const std::int64_t left = left_to_wash_out();
  block.shape.switches = block.settings != switch_.in_force();
  block.shape.switches_queue = changes_.carry_over(switch_.in_force(), block.settings);
  block.shape.has_new_change = is_new(block.on);
  if (!switch_to(block, why)) return std::nullopt;
  BlockUnits units = blocks_.units(block.shape);
  units.wash_out = std::max(units.wash_out, left);
  if (block.shape.switches) wash_out_ = units.wash_out;
  return units;
}

std::int64_t LiveSearch::left_to_wash_out() const noexcept {
  return std::max<std::int64_t>(0, wash_out_ - switch_.units());
}

bool LiveSearch::is_new(const Changes& on) const {
  return std::any_of(on.begin(), on.end(), [this](std::size_t change) { return !switch_.was_on(change); });
}

double LiveSearch::switch_s(std::size_t change) const {
  return switch_.switch_s(change).value_or(changes_.candidate(change).switch_s);
}

// At first, or anew beside each other change.
bool LiveSearch::prepares(const Changes& on) const {
  return is_new(on) || changes_.keeps_costly() ||
         std::any_of(on.begin(), on.end(), [this](std::size_t change) { return changes_.is_costly(change); });
}

bool LiveSearch::switch_to(const Block& block, std::string_view why) {
  const bool may_prepare = prepares(block.on);  // Before they were on.
  const auto refusal = switch_.to(block.settings, block.on, update_ + 1, why);
  account_.note_switch(may_prepare);
  if (!refusal) return true;
  blame(block.on, *refusal);
  return false;
}

// Without it nothing can go on: what cannot be put back is for the caller.
void LiveSearch::hold(std::string_view why) {
  line_of_last_.reset();
  const bool switches = switch_.in_force() != changes_.best();
  if (!switches && switch_.on().empty()) return;
  const bool switches_queue = changes_.carry_over(switch_.in_force(), changes_.best());
  const std::int64_t left = left_to_wash_out();
  const auto refusal = switch_.to(changes_.best(), {}, update_ + 1, why);
  account_.note_switch(prepares({}));
  if (!refusal) {
    if (switches) wash_out_ = std::max(left, blocks_.units({.switches_queue = switches_queue}).wash_out);
    return;
  }
  stage_ = Stage::closed;
  found_.ended = true;
  found_.end_reason = "the settings that are kept cannot be applied again: " + refusal->message;
  throw Error(refusal->code, refusal->message);
}

}  // namespace headrace
