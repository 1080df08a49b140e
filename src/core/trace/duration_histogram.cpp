#include <headrace/duration_histogram.h>

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "core/base/fail.h"

namespace headrace {

void DurationHistogram::merge(const DurationHistogram& other) noexcept {
  for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) counts_[bucket] += other.counts_[bucket];
  sum_ += other.sum_;
  least_ = std::min(least_, other.least_);
  most_ = std::max(most_, other.most_);
}

std::int64_t DurationHistogram::count() const noexcept {
  return std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0});
}

std::optional<std::int64_t> DurationHistogram::least() const noexcept {
  return count() == 0 ? std::nullopt : std::optional(least_);
}

std::optional<std::int64_t> DurationHistogram::most() const noexcept {
  return count() == 0 ? std::nullopt : std::optional(most_);
}

std::optional<double> DurationHistogram::mean() const noexcept {
  const std::int64_t values = count();
  return values == 0 ? std::nullopt : std::optional(sum_ / static_cast<double>(values));
}

double DurationHistogram::middle_of(std::size_t bucket) noexcept {
  if (bucket < 2 * kPerOctave) return static_cast<double>(bucket);  // One value wide.
  const std::size_t shift = bucket / kPerOctave - 1;
  return static_cast<double>(low_of(bucket)) + static_cast<double>(std::uint64_t{1} << shift) / 2;
}

std::int64_t DurationHistogram::low_of(std::size_t bucket) noexcept {
  if (bucket < 2 * kPerOctave) return static_cast<std::int64_t>(bucket);
  if (bucket >= kBuckets) return std::numeric_limits<std::int64_t>::max();
  const std::size_t shift = bucket / kPerOctave - 1;
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(bucket - shift * kPerOctave) << shift);
}

std::vector<DurationHistogram::Range> DurationHistogram::ranges(int per_octave) const {
  if (per_octave < 1 || per_octave > static_cast<int>(kPerOctave) || !std::has_single_bit(unsigned(per_octave))) {
    fail(ErrorCode::invalid_argument, "trace: ranges of a histogram: per_octave is {}, wanted 1, 2, 4, 8, 16 or 32",
         per_octave);
  }
  const std::size_t width = kPerOctave / static_cast<std::size_t>(per_octave);
  std::vector<Range> ranges;
  std::size_t used = 0;  // Up to the last one that has a value.
  for (std::size_t bucket = 0; bucket < kBuckets; bucket += width) {
    const auto first = counts_.begin() + static_cast<std::ptrdiff_t>(bucket);
    const std::int64_t count = std::accumulate(first, first + static_cast<std::ptrdiff_t>(width), std::int64_t{0});
    if (count == 0 && ranges.empty()) continue;
    ranges.push_back({low_of(bucket), low_of(bucket + width), count});
    if (count > 0) used = ranges.size();
  }
  ranges.resize(used);
  return ranges;
}

std::optional<double> DurationHistogram::quantile(double share) const {
  if (!(share >= 0 && share <= 1)) {
    fail(ErrorCode::invalid_argument, "trace: a quantile of {}, wanted a share of 0 to 1", share);
  }
  const std::int64_t values = count();
  if (values == 0) return std::nullopt;
  const auto rank = static_cast<std::int64_t>(share * static_cast<double>(values - 1));  // From 0, ascending.
  std::int64_t seen = 0;
  std::size_t bucket = 0;
  while (seen + counts_[bucket] <= rank) seen += counts_[bucket++];
  return std::clamp(middle_of(bucket), static_cast<double>(least_), static_cast<double>(most_));
}

}  // namespace headrace
