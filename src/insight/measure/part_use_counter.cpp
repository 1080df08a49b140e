#include "insight/measure/part_use_counter.h"

#include "core/base/clock.h"

namespace headrace {
namespace {

constexpr double kSecondsPerNanosecond = 1e-9;

void add(PartUse& sum, const PartUse& more) {
  sum.wall_s += more.wall_s;
  sum.cpu_s += more.cpu_s;
  sum.run_delay_s += more.run_delay_s;
  sum.minor_faults += more.minor_faults;
  sum.major_faults += more.major_faults;
}

PartUse scaled(const PartUse& use, double factor) {
  const auto times = [factor](std::int64_t count) {
    return static_cast<std::int64_t>(static_cast<double>(count) * factor + 0.5);
  };
  return {use.wall_s * factor, use.cpu_s * factor, use.run_delay_s * factor, times(use.minor_faults),
          times(use.major_faults)};
}

}  // namespace

void PartUseCounter::begin(Part part) {
  if (!counting_) return;
  close();
  open_ = part;
}

void PartUseCounter::pause() {
  if (counting_) close();
}

// Leaves the moment at which whatever comes next begins.
void PartUseCounter::close() {
  const std::int64_t now_ns = monotonic_ns();
  const ThreadUsage now = reader_.read();
  if (open_) {
    const ThreadUsage used = now - opened_;
    add(step_[static_cast<std::size_t>(*open_)],
        {static_cast<double>(now_ns - opened_ns_) * kSecondsPerNanosecond,
         static_cast<double>(used.cpu_ns) * kSecondsPerNanosecond,
         static_cast<double>(used.run_delay_ns) * kSecondsPerNanosecond, used.minor_faults, used.major_faults});
    open_.reset();
  }
  opened_ns_ = now_ns;
  opened_ = now;
  cost_ns_ += monotonic_ns() - now_ns;
}

void PartUseCounter::end_step(bool counts) {
  if (counting_) close();
  settle(counts);
}

void PartUseCounter::end_last_step(bool counts) {
  open_.reset();
  settle(counts);
}

void PartUseCounter::settle(bool counts) {
  const std::int64_t now_ns = monotonic_ns();
  if (counting_) {
    if (counts) {
      for (std::size_t part = 0; part < kParts; ++part) add(sum_[part], step_[part]);
      ++counted_;
    }
    next_ns_ = now_ns + static_cast<std::int64_t>(static_cast<double>(cost_ns_) / kCostMax);
    step_ = {};
    cost_ns_ = 0;
  }
  counting_ = counted_ < kFirst || now_ns >= next_ns_;
}

std::optional<PartUses> PartUseCounter::uses(std::int64_t steps) const {
  if (counted_ == 0) return std::nullopt;
  const double factor = static_cast<double>(steps) / static_cast<double>(counted_);
  const auto of = [&](Part part) { return scaled(sum_[static_cast<std::size_t>(part)], factor); };
  return PartUses{of(Part::data_wait), of(Part::transfer),  of(Part::forward),
                  of(Part::backward),  of(Part::optimizer), of(Part::other)};
}

}  // namespace headrace
