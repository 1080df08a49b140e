#include "insight/tune/live_account.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace headrace {
namespace {

constexpr double kStall = 10;  // Times the slowest unit.

// A clock that jumps back has taken nothing.
double seconds_of(const LiveUnit& unit) {
  return std::isfinite(unit.seconds) ? std::max(unit.seconds, 0.0) : 0.0;
}

double wait_of(const LiveUnit& unit) {
  return std::clamp(unit.wait_s, 0.0, unit.seconds);
}

// Of `seconds` that took `factor` times as long as they would have.
double excess_of(double seconds, double factor) {
  return seconds * (1 - 1 / factor);
}

}  // namespace

void LiveAccount::add(const LiveUnit& unit, InForce in_force, double tuner_s, bool tells) {
  budget_.add(seconds_of(unit), excess_s(unit, in_force, std::min(tuner_s, seconds_of(unit)), tells));
  if (!tells || !is_counted(unit) || in_force == InForce::trial) return;
  const double factor = in_force == InForce::kept ? kept_factor_ : 1, as_written_s = unit.seconds / factor;
  const double wait_s = wait_of(unit) / factor;
  times_.add(as_written_s, unit.work, wait_s);
  has_shifted_ |= level_.add(as_written_s - wait_s + times_.wait_s());
}

double LiveAccount::excess_s(const LiveUnit& unit, InForce in_force, double tuner_s, bool tells) {
  const double seconds = seconds_of(unit), loop_s = seconds - tuner_s;
  if (!is_counted(unit) || !times_.is_known()) {
    return tuner_s + (in_force == InForce::trial ? excess_of(loop_s, std::max(1.0, factor_)) : 0);
  }
  if (in_force != InForce::trial && tells) {
    return tuner_s + (in_force == InForce::kept ? excess_of(loop_s, kept_factor_) : 0);
  }
  const double expected_s = times_.expected(unit.work), behind_s = seconds - expected_s;
  const double computed = (loop_s - wait_of(unit)) / expected_s, stalled_s = std::exchange(stalled_s_, 0.0);
  const bool is_stall = !prepares_ && computed > kStall * slowest_;
  if (is_stall && stalled_s == 0) {
    const double as_before_s = tuner_s + (factor_ - 1) * expected_s;
    stalled_s_ = behind_s - as_before_s;
    return as_before_s;
  }
  slowest_ = std::max(slowest_, computed);
  if (in_force == InForce::trial) factor_ = even_s(unit) / expected_s;
  return behind_s + (is_stall ? stalled_s : 0);
}

// As if it had waited for data as long as the newest have: batches come several at a time. Those since the switch
// alone, and not all of them: what a queue holds may hide for a while that it is used up faster than it is filled.
double LiveAccount::even_s(const LiveUnit& unit) noexcept {
  const double wait_s = wait_of(unit);
  trial_waits_s_[trial_units_++ % kNewestWaits] = wait_s;
  const std::size_t count = std::min(trial_units_, kNewestWaits);
  const auto end = trial_waits_s_.begin() + static_cast<std::ptrdiff_t>(count);
  return unit.seconds - wait_s + std::accumulate(trial_waits_s_.begin(), end, 0.0) / static_cast<double>(count);
}

void LiveAccount::note_switch(bool prepares) noexcept {
  factor_ = 1;
  stalled_s_ = 0;
  prepares_ = prepares;
  trial_units_ = 0;
}

void LiveAccount::expect_rest(std::optional<std::int64_t> updates) {
  std::optional<double> rest_s;
  if (updates) rest_s = static_cast<double>(*updates) * times_.typical();
  budget_.expect_rest(rest_s);
}

double LiveAccount::next_excess_s() const {
  return std::max(0.0, (factor_ - 1) * times_.typical());
}

}  // namespace headrace
