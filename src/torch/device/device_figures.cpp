#include <headrace/device_figures.h>

#include <algorithm>
#include <cstdint>

#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr double kBusy = 0.9;  // From here on nobody is told: as of a wait for data, in insight/diagnose.
// Of fewer the first ones, in which libraries set up what they keep, are most.
constexpr std::int64_t kPhasesLeast = 30;

}  // namespace

std::optional<double> DeviceTimes::busy_share() const {
  if (seconds <= 0) return std::nullopt;
  double busy = 0;
  for (const Phase& phase : phases) busy += phase.seconds;
  return std::min(busy / seconds, 1.0);
}

std::string DeviceTimes::advice() const {
  std::int64_t count = 0;
  for (const Phase& phase : phases) count += phase.count;
  const std::optional<double> share = busy_share();
  if (!share || *share >= kBusy || count < kPhasesLeast) return {};
  return fmt::format(
      "the device was at work in {:.0f} % of the time; in the rest it had no step to make: it waits for data, or for "
      "what the loop does between two steps. More data.num_workers or data.prefetch_batches, a pack, or less work "
      "between steps",
      *share * 100);
}

}  // namespace headrace
