#include "insight/tune/live_gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "insight/tune/live_proof.h"
#include "insight/tune/numeric_check.h"

namespace headrace {
namespace {

constexpr double kGradientTolerance = 1e-2;
constexpr double kTensorTolerance = 0.1;
constexpr double kOutputTolerance = 1e-5;
constexpr double kUpdateTolerance = 1e-6;

struct Figure {
  double value, tolerance;
  std::string measure;
};

NumericResult result_of(NumericClass numeric_class, bool passed, Figure figure) {
  NumericResult result;
  result.numeric_class = numeric_class;
  result.checked = true;
  result.passed = passed;
  result.value = figure.value;
  result.tolerance = figure.tolerance;
  result.measure = std::move(figure.measure);
  return result;
}

NumericResult judge_bits(const ReplayDistance& distance) {
  const bool passed = distance.bit_equal && distance.update_difference.value_or(0) == 0;
  return result_of(NumericClass::bit_equal, passed, {passed ? 0.0 : 1.0, 0, "replayed calls with other bits"});
}

// Behind what is measured of a forward and backward.
const char* draws_text(const ReplayDistance& distance) {
  return distance.other_draws ? ", of equal draws" : "";
}

NumericResult judge_rounding(const ReplayDistance& distance) {
  const char* draws = draws_text(distance);
  const std::array<Figure, 4> figures = {
      Figure{distance.relative_l2, kGradientTolerance, fmt::format("gradients, relative L2{}", draws)},
      Figure{distance.worst_tensor, kTensorTolerance,
             fmt::format("gradient of {}, relative L2{}", distance.worst_name, draws)},
      Figure{distance.output_difference, kOutputTolerance, fmt::format("outputs, relative L2{}", draws)},
      Figure{distance.update_difference.value_or(0), kUpdateTolerance, "update on the same gradients, relative L2"}};
  // A number that is not finite passes nothing, also where the distances do not show it.
  const auto excess_of = [](const Figure& figure) {
    return std::isfinite(figure.value) ? figure.value / figure.tolerance : std::numeric_limits<double>::infinity();
  };
  const auto less = [&](const Figure& a, const Figure& b) { return excess_of(a) < excess_of(b); };
  Figure worst = *std::max_element(figures.begin(), figures.end(), less);
  if (!distance.finite || !std::isfinite(worst.value)) worst.value = std::numeric_limits<double>::infinity();
  const bool passed = worst.value <= worst.tolerance;
  return result_of(NumericClass::rounding, passed, std::move(worst));
}

}  // namespace

NumericResult judge_replay(NumericClass numeric_class, const ReplayDistance& distance,
                           std::optional<double> distance_between_calls) {
  switch (numeric_class) {
    case NumericClass::bit_equal:
      return judge_bits(distance);
    case NumericClass::rounding:
      return judge_rounding(distance);
    case NumericClass::reduced_precision:
      break;
  }
  NumericResult result = judge_reduced_precision(distance.relative_l2, distance.cosine, distance.finite,
                                                 distance_between_calls.value_or(0));
  result.measure += draws_text(distance);
  return result;
}

void LiveGate::expect(std::size_t change, const std::vector<NumericPair>& pairs) {
  for (const NumericPair& pair : pairs) waiting_.push_back({change, pair});
}

void LiveGate::expect_first(std::size_t change, const std::vector<NumericPair>& pairs) {
  forget(change);
  for (auto pair = pairs.rbegin(); pair != pairs.rend(); ++pair) waiting_.push_front({change, *pair});
}

bool LiveGate::is_waiting(std::size_t change) const {
  return std::any_of(waiting_.begin(), waiting_.end(), [&](const Waiting& one) { return one.change == change; });
}

void LiveGate::forget(std::size_t change) {
  std::erase_if(waiting_, [&](const Waiting& one) { return one.change == change; });
}

std::optional<std::size_t> LiveGate::next() const {
  if (waiting_.empty()) return std::nullopt;
  return waiting_.front().change;
}

bool LiveGate::is_ready() {
  if (next_pair().numeric_class != NumericClass::reduced_precision) return true;
  return loop_.distance_between_calls().has_value();
}

LiveGate::Finding LiveGate::replay_next() {
  const NumericPair& pair = next_pair();
  const Replay replay = loop_.replay(pair.reference, pair.candidate, ReplayUse::compare);
  Finding finding{std::nullopt, replay.failure};
  if (replay.distance) finding.numerics = judge(pair, *replay.distance);
  return finding;
}

void LiveGate::pass_next() {
  passed_.push_back(std::move(waiting_.front().pair));
  waiting_.pop_front();
}

bool LiveGate::has_passed(const NumericPair& pair) const {
  return std::find(passed_.begin(), passed_.end(), pair) != passed_.end();
}

NumericResult LiveGate::judge(const NumericPair& pair, const ReplayDistance& distance) {
  NumericResult result = judge_replay(pair.numeric_class, distance, loop_.distance_between_calls());
  if (pair.numeric_class != NumericClass::bit_equal || result.passed) return result;
  // A loop that does not repeat itself cannot be matched; say so rather than accuse the change.
  if (!repeats_itself_) {
    const Replay own = loop_.replay(pair.reference, pair.reference, ReplayUse::compare);
    repeats_itself_ = own.distance && own.distance->bit_equal;
  }
  if (!*repeats_itself_) result.measure += "; the loop does not repeat its own bits either";
  return result;
}

bool can_replay_call(LiveLoop& loop) {
  return loop.replay({}, {}, ReplayUse::compare).distance.has_value();
}

ReplayTimes::ReplayTimes(LiveLoop& loop, NumericClass numeric_class, Settings changes, double gain_min,
                         std::uint64_t seed)
    : loop_(loop), numeric_class_(numeric_class), changes_(std::move(changes)), seed_(seed), record_(gain_min) {
  numerics_.numeric_class = numeric_class;
}

std::optional<ReplayFailure> ReplayTimes::replay_pair(std::int64_t number) {
  const bool leads = change_leads(seed_, number);
  const ReplayUse use = is_first_ ? ReplayUse::compare : ReplayUse::time;
  std::array<double, 2> seconds{};  // As written, under the change.
  for (const bool changed : {leads, !leads}) {
    const Replay replay = loop_.replay({}, changed ? changes_ : Settings{}, use);
    if (!replay.distance) return replay.failure;
    seconds[changed ? 1 : 0] = replay.distance->seconds;
    const auto between = loop_.distance_between_calls();
    if (!changed || numerics_.checked || (numeric_class_ == NumericClass::reduced_precision && !between)) continue;
    numerics_ = judge_replay(numeric_class_, *replay.distance, between);
  }
  if (std::exchange(is_first_, false)) return std::nullopt;
  const double log_ratio = std::log(seconds[0] / seconds[1]);
  if (!std::isfinite(log_ratio)) {
    return ReplayFailure{ErrorCode::internal,
                         fmt::format("replays took {} s as written and {} s with it", seconds[0], seconds[1])};
  }
  record_.add(log_ratio);
  return std::nullopt;
}

}  // namespace headrace
