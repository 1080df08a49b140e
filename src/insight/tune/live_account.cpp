#include "insight/tune/live_account.h"

#include <algorithm>
#include <cmath>

namespace headrace {
namespace {

// A clock that jumps back has taken nothing.
double seconds_of(const LiveUnit& unit) {
  return std::isfinite(unit.seconds) ? std::max(unit.seconds, 0.0) : 0.0;
}

// Of `seconds` that took `factor` times as long as they would have.
double excess_of(double seconds, double factor) {
  return seconds * (1 - 1 / factor);
}

}  // namespace

void LiveAccount::add(const LiveUnit& unit, InForce in_force, double tuner_s, bool tells) {
  budget_.add(seconds_of(unit), excess_s(unit, in_force, std::min(tuner_s, seconds_of(unit)), tells));
  if (!tells || !is_counted(unit) || in_force == InForce::trial) return;
  const double as_written_s = in_force == InForce::kept ? unit.seconds / kept_factor_ : unit.seconds;
  times_.add(as_written_s, unit.work);
  has_shifted_ |= level_.add(as_written_s);
}

double LiveAccount::excess_s(const LiveUnit& unit, InForce in_force, double tuner_s, bool tells) {
  const double seconds = seconds_of(unit), loop_s = seconds - tuner_s;
  if (!is_counted(unit) || !times_.is_known()) {
    return tuner_s + (in_force == InForce::trial ? excess_of(loop_s, std::max(1.0, factor_)) : 0);
  }
  const double expected_s = times_.expected(unit.work);
  if (in_force == InForce::trial) factor_ = seconds / expected_s;
  if (in_force == InForce::trial || !tells) return seconds - expected_s;
  return tuner_s + (in_force == InForce::kept ? excess_of(loop_s, kept_factor_) : 0);
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
