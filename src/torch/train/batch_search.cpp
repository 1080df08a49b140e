#include "torch/train/detail/batch_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

namespace headrace {
namespace {

constexpr std::size_t kProbes = 3;
constexpr double kWorthLess = 1.05;    // A smaller size is taken where it is faster by more than this.
constexpr double kStepJitter = 0.15;   // By which rises of equal steps may differ from whole numbers of them.
constexpr double kMachineShare = 0.9;  // Of what the machine has left.

// The multiple of the largest power of two in [low, high].
std::int64_t roundest(std::int64_t low, std::int64_t high) {
  std::int64_t power = 1;
  while (high / (power * 2) * (power * 2) >= low) power *= 2;
  return high / power * power;
}

double rate_of(const BatchProbe& probe) {
  return static_cast<double>(probe.batch_size) / probe.step_s;
}

class Search {
 public:
  Search(const SearchBounds& bounds, const std::function<BatchProbe(std::int64_t)>& measure)
      : bounds_(bounds), measure_(measure) {}

  SearchResult run() {
    if (!find_first()) return std::move(result_);
    for (std::optional<std::int64_t> next = next_size(); next && may_probe(); next = next_size()) try_size(*next);
    choose();
    return std::move(result_);
  }

 private:
  bool fits(const BatchProbe& probe) const { return !probe.ran_out && probe.peak_bytes <= bounds_.limit; }
  bool may_probe() const { return result_.probes.size() < kProbes + lost_ + (is_broken_ ? 1 : 0); }
  bool meets(const BatchProbe& probe) const { return bounds_.target > 0 && rate_of(probe) >= bounds_.target; }

  // nullptr: there is none. Until the next try_size().
  const BatchProbe* largest_fitting() const {
    const BatchProbe* found = nullptr;
    for (const BatchProbe& probe : result_.probes) {
      if (fits(probe) && (found == nullptr || probe.batch_size > found->batch_size)) found = &probe;
    }
    return found;
  }
  // Of the probes from this one on.
  const BatchProbe* smallest_beyond(std::size_t begin = 0) const {
    const BatchProbe* found = nullptr;
    for (std::size_t i = begin; i < result_.probes.size(); ++i) {
      const BatchProbe& probe = result_.probes[i];
      if (!fits(probe) && (found == nullptr || probe.batch_size < found->batch_size)) found = &probe;
    }
    return found;
  }
  // One beyond that a line had within the limit.
  const BatchProbe* behind_step() const { return smallest_beyond(lost_); }

  bool try_size(std::int64_t size) {
    result_.probes.push_back(measure_(size));
    return fits(result_.probes.back());
  }

  bool find_first() {
    std::int64_t size = bounds_.initial;
    while (!try_size(size)) {
      if (size == 1) return false;
      size = std::max<std::int64_t>(1, size / (result_.probes.back().ran_out ? 4 : 2));
    }
    lost_ = result_.probes.size() - 1;
    return true;
  }

  std::optional<std::int64_t> next_size() {
    const BatchProbe& lower = *largest_fitting();
    if (meets(lower)) return size_for_target();
    const BatchProbe* beyond = smallest_beyond();
    const std::int64_t cap = beyond != nullptr ? beyond->batch_size - 1 : bounds_.max;
    if (const BatchProbe* behind = behind_step()) {
      is_broken_ = true;
      if (lower.batch_size >= cap) return std::nullopt;
      if (const auto full = size_of_full_step(lower, *behind)) {
        rises_in_steps_ = true;
        return *full;
      }
      return before_step(lower, *behind, std::min(size_on_line(lower), cap));
    }
    if (other_than(lower) == nullptr) return second_size(lower, cap);
    const std::int64_t on_line = std::min(size_on_line(lower), cap);
    if (on_line <= lower.batch_size) return std::nullopt;
    // After the third, whose size the line gave, there is more only where the line is broken.
    if (result_.probes.size() >= kProbes + lost_ && 20 * (on_line - lower.batch_size) > lower.batch_size) {
      is_broken_ = true;
    }
    return on_line;
  }

  // Even if nothing but what was held had been there before the samples, this one fits.
  std::optional<std::int64_t> second_size(const BatchProbe& first, std::int64_t cap) const {
    const double used = static_cast<double>(std::max<std::int64_t>(first.gradient_peak_bytes - bounds_.held, 1));
    const double left = static_cast<double>(bounds_.limit - bounds_.held);
    const double safe = std::floor(static_cast<double>(first.batch_size) * left / used);
    const std::int64_t size = safe < static_cast<double>(cap) ? static_cast<std::int64_t>(safe) : cap;
    if (4 * size >= 5 * first.batch_size) return size;
    if (cap <= first.batch_size) return std::nullopt;        // There is nothing to extrapolate to.
    return first.batch_size > 1 ? first.batch_size / 2 : 2;  // Far enough from the first for a slope.
  }

  // What a line through `lower` is drawn with: the next smaller one, else one beyond that was measured.
  const BatchProbe* other_than(const BatchProbe& lower) const {
    const BatchProbe* smaller = nullptr;
    const BatchProbe* larger = nullptr;
    for (const BatchProbe& probe : result_.probes) {
      if (probe.ran_out) continue;
      if (probe.batch_size < lower.batch_size && (!smaller || probe.batch_size > smaller->batch_size)) smaller = &probe;
      if (probe.batch_size > lower.batch_size && (!larger || probe.batch_size < larger->batch_size)) larger = &probe;
    }
    return smaller != nullptr ? smaller : larger;
  }

  static double per_sample(const BatchProbe& a, const BatchProbe& b, std::int64_t BatchProbe::*bytes) {
    return static_cast<double>(a.*bytes - b.*bytes) / static_cast<double>(a.batch_size - b.batch_size);
  }

  // As if nothing but what is held were there before the samples.
  double per_sample_at_most(const BatchProbe& probe) const {
    return static_cast<double>(probe.gradient_peak_bytes - bounds_.held) / static_cast<double>(probe.batch_size);
  }

  // For the line that is told, one far enough from `lower` that bytes which jitter, or grow by pairs, tilt it little.
  const BatchProbe* far_from(const BatchProbe& lower) const {
    const BatchProbe* far = nullptr;
    for (const BatchProbe& probe : result_.probes) {
      const bool is_far = fits(probe) && 5 * probe.batch_size <= 4 * lower.batch_size;
      if (is_far && (far == nullptr || probe.batch_size > far->batch_size)) far = &probe;
    }
    return far == nullptr || is_broken_ ? other_than(lower) : far;
  }

  // Bytes a sample, by the line through `lower` and `other`, if there is one. A line across a step would be too steep.
  double slope_at(const BatchProbe& lower, const BatchProbe* other) const {
    if (other == nullptr) return std::max(1.0, per_sample_at_most(lower));
    const double through = std::max(per_sample(lower, *other, &BatchProbe::gradient_peak_bytes),
                                    per_sample(lower, *other, &BatchProbe::kept_bytes));
    return std::max(1.0, fits(*other) ? through : std::min(through, per_sample_at_most(lower)));
  }

  std::int64_t size_on_line(const BatchProbe& lower) const {
    const BatchProbe* other = other_than(lower);
    double more = static_cast<double>(bounds_.limit - lower.gradient_peak_bytes) / slope_at(lower, other);
    if (other != nullptr && fits(*other)) {
      // Peaks that hardly grow are those of gradients; what the forward keeps will pass them.
      const double kept = per_sample(lower, *other, &BatchProbe::kept_bytes);
      if (kept > 0 && 2 * per_sample(lower, *other, &BatchProbe::gradient_peak_bytes) < kept) {
        more = static_cast<double>(bounds_.limit - lower.kept_bytes) / kept;
      }
    }
    const double size = static_cast<double>(lower.batch_size) + std::floor(more);
    return size < static_cast<double>(bounds_.max) ? static_cast<std::int64_t>(size) : bounds_.max;
  }

  // What a line through a size that is behind a step has within the limit: through the next one there, else as flat as
  // any that is known, since the flatter the smaller the size.
  std::int64_t size_below(const BatchProbe& behind, const BatchProbe& lower) const {
    const BatchProbe* next = nullptr;
    for (std::size_t i = lost_; i < result_.probes.size(); ++i) {
      const BatchProbe& probe = result_.probes[i];
      const bool is_behind = !fits(probe) && !probe.ran_out && probe.batch_size > behind.batch_size;
      if (is_behind && (next == nullptr || probe.batch_size < next->batch_size)) next = &probe;
    }
    double slope = per_sample_at_most(lower);
    if (next != nullptr) {
      slope = per_sample(*next, behind, &BatchProbe::gradient_peak_bytes);
    } else if (const BatchProbe* other = other_than(lower)) {
      slope = std::min({slope, per_sample(lower, *other, &BatchProbe::gradient_peak_bytes),
                        per_sample(lower, *other, &BatchProbe::kept_bytes)});
    }
    const double fewer =
        std::ceil(static_cast<double>(behind.gradient_peak_bytes - bounds_.limit) / std::max(slope, 1.0));
    return behind.batch_size - std::max<std::int64_t>(1, static_cast<std::int64_t>(fewer));
  }

  // Where bytes rise in equal steps, as those of samples padded to a multiple of some number: the largest size that
  // fits whatever that number is. Of `a` + `b` times the steps begun, the smallest difference of two probes is taken
  // for `b`; the steps that each size has begun then bound the number. nullopt: they do not rise so.
  std::optional<std::int64_t> size_of_full_step(const BatchProbe& lower, const BatchProbe& behind) const {
    std::vector<std::pair<double, double>> points;  // Size and bytes, by size.
    for (const BatchProbe& probe : result_.probes) {
      if (probe.ran_out) continue;
      points.emplace_back(static_cast<double>(probe.batch_size), static_cast<double>(probe.gradient_peak_bytes));
    }
    std::sort(points.begin(), points.end());
    double step = 0;
    for (std::size_t i = 1; i < points.size(); ++i) {
      const double rise = points[i].second - points[i - 1].second;
      if (rise > 0 && (step == 0 || rise < step)) step = rise;
    }
    if (points.size() < 3 || step == 0) return std::nullopt;
    for (const double first : {1.0, 2.0, 3.0, 4.0}) {  // Steps begun at the smallest size.
      double least = 0, below = std::numeric_limits<double>::infinity();
      bool is_stepped = true;
      for (const auto& [size, bytes] : points) {
        const double rises = (bytes - points.front().second) / step, begun = first + std::round(rises);
        is_stepped = is_stepped && std::abs(rises - std::round(rises)) < kStepJitter;
        least = std::max(least, size / begun);
        if (begun > 1) below = std::min(below, size / (begun - 1));
      }
      if (!is_stepped || least >= below) continue;
      const double fitting = std::floor(static_cast<double>(bounds_.limit - lower.gradient_peak_bytes) / step);
      const double rises = std::round((static_cast<double>(lower.gradient_peak_bytes) - points.front().second) / step);
      // Such a number is most often a multiple of a power of two.
      const auto low = static_cast<std::int64_t>(std::ceil(least));
      const auto number =
          std::isfinite(below) ? roundest(low, std::max(low, static_cast<std::int64_t>(std::ceil(below)) - 1)) : low;
      const std::int64_t size = static_cast<std::int64_t>(first + rises + fitting) * number;
      if (size > lower.batch_size && size < behind.batch_size) return size;
    }
    return std::nullopt;
  }

  // The roundest number at first; where the step lies before that too, what fits behind the step as well.
  std::int64_t before_step(const BatchProbe& lower, const BatchProbe& behind, std::int64_t on_line) const {
    std::int64_t low = lower.batch_size + 1;
    if (!behind.ran_out) low = std::max(low, size_below(behind, lower));
    const std::int64_t high = std::max(low, on_line);
    const auto count = std::count_if(result_.probes.begin() + static_cast<std::ptrdiff_t>(lost_), result_.probes.end(),
                                     [this](const BatchProbe& probe) { return !fits(probe); });
    const bool is_sure = !behind.ran_out && count > 1;
    return is_sure || 20 * (behind.batch_size - low) <= behind.batch_size ? low : roundest(low, high);
  }

  // Seconds of a step are c + d n. The smallest n that meets the target lies between one that misses and one that meets
  // it.
  std::optional<std::int64_t> size_for_target() const {
    const BatchProbe* meeting = nullptr;
    const BatchProbe* missing = nullptr;
    for (const BatchProbe& probe : result_.probes) {
      if (fits(probe) && meets(probe) && (!meeting || probe.batch_size < meeting->batch_size)) meeting = &probe;
    }
    for (const BatchProbe& probe : result_.probes) {
      if (!fits(probe) || meets(probe) || probe.batch_size >= meeting->batch_size) continue;
      if (!missing || probe.batch_size > missing->batch_size) missing = &probe;
    }
    if (missing == nullptr) return std::nullopt;
    const double per_sample =
        (meeting->step_s - missing->step_s) / static_cast<double>(meeting->batch_size - missing->batch_size);
    const double constant = missing->step_s - per_sample * static_cast<double>(missing->batch_size);
    const double divisor = 1 - per_sample * bounds_.target;
    if (divisor <= 0 || constant <= 0) return std::nullopt;
    const double wanted = std::ceil(constant * bounds_.target / divisor);
    const bool lies_between =
        wanted > static_cast<double>(missing->batch_size) && wanted < static_cast<double>(meeting->batch_size);
    return lies_between ? std::optional(static_cast<std::int64_t>(wanted)) : std::nullopt;
  }

  void choose() {
    const BatchProbe& lower = *largest_fitting();
    result_.slope = slope_at(lower, far_from(lower));
    result_.intercept =
        static_cast<double>(lower.gradient_peak_bytes) - result_.slope * static_cast<double>(lower.batch_size);
    result_.largest = lower.batch_size;
    if (bounds_.target > 0) return choose_for_target(lower);
    if (const BatchProbe* behind = behind_step(); behind != nullptr && !behind->ran_out && !rises_in_steps_) {
      result_.largest = std::max(result_.largest, size_below(*behind, lower));
    }
    const BatchProbe* fastest = &lower;
    for (const BatchProbe& probe : result_.probes) {
      if (!fits(probe) || rate_of(probe) <= kWorthLess * rate_of(lower) || rate_of(probe) <= rate_of(*fastest))
        continue;
      // Not by chance: each at its worst and best.
      const double least = static_cast<double>(probe.batch_size) / (probe.step_s + probe.spread_s);
      const double most = static_cast<double>(lower.batch_size) / std::max(lower.step_s - lower.spread_s, 1e-12);
      if (least > most) fastest = &probe;
    }
    if (fastest != &lower) {
      result_.batch_size = fastest->batch_size;
      result_.reason = fmt::format("{} samples train {:.0f} % faster than {}", fastest->batch_size,
                                   (rate_of(*fastest) / rate_of(lower) - 1) * 100, lower.batch_size);
      return;
    }
    result_.batch_size = result_.largest;
    if (result_.largest == bounds_.max) {
      result_.reason = fmt::format("{} samples are the most that may be tried", result_.largest);
    } else {
      result_.reason = fmt::format("{} samples are the most that {} bytes hold", result_.largest, bounds_.limit);
    }
    if (is_broken_) result_.reason += "; the bytes of a step do not lie on one line";
    if (result_.largest > lower.batch_size) result_.reason += ", and this size was not probed itself";
  }

  void choose_for_target(const BatchProbe& lower) {
    const BatchProbe* chosen = nullptr;
    for (const BatchProbe& probe : result_.probes) {
      if (fits(probe) && meets(probe) && (!chosen || probe.batch_size < chosen->batch_size)) chosen = &probe;
    }
    const bool met = chosen != nullptr;
    for (const BatchProbe& probe : result_.probes) {
      if (!met && fits(probe) && (!chosen || rate_of(probe) > rate_of(*chosen))) chosen = &probe;
    }
    result_.batch_size = chosen->batch_size;
    result_.reason =
        met ? fmt::format("{} samples are the fewest found with {} samples/s", chosen->batch_size, bounds_.target)
            : fmt::format("no size has {} samples/s; {} samples come nearest, {} fit", bounds_.target,
                          chosen->batch_size, lower.batch_size);
  }

  const SearchBounds& bounds_;
  const std::function<BatchProbe(std::int64_t)>& measure_;
  SearchResult result_;
  std::size_t lost_ = 0;  // Probes before the first that fits.
  bool is_broken_ = false;
  bool rises_in_steps_ = false;
};

}  // namespace

SearchResult search_batch_size(const SearchBounds& bounds, const std::function<BatchProbe(std::int64_t)>& measure) {
  return Search(bounds, measure).run();
}

MicroBatches micro_batches_of(std::int64_t samples, std::int64_t largest) {
  std::int64_t size = std::min(samples, largest);
  const std::int64_t fewest = (samples + size - 1) / size, half = (size + 1) / 2;
  while (samples % size != 0 && size > half) --size;
  if (samples % size != 0) size = (samples + fewest - 1) / fewest;
  return {size, (samples + size - 1) / size};
}

std::int64_t limit_of_machine(std::int64_t held, std::int64_t left, std::int64_t own) {
  return held + std::min(static_cast<std::int64_t>(kMachineShare * static_cast<double>(left)), left - own);
}

}  // namespace headrace
