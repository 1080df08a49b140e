// How often a duration occurred, in buckets whose width grows with it: any number of durations in 15 KiB.
//
// After G. Tene's HdrHistogram (hdrhistogram.org): 32 buckets of equal width for each power of two, and below 64 ns one
// a nanosecond. A value costs an addition into a bucket (core/trace/trace_bench.cpp: at most 5 ns), and a quantile a
// walk over all of them, some microseconds. A value type of one writer: threads have one each, and merge() adds them.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace headrace {

class DurationHistogram {
 public:
  // A quantile is off by at most this share of itself: half the width of a bucket by its lower end.
  static constexpr double kRelativeError = 1.0 / 64;

  // In nanoseconds, or any other unit; a negative one (a clock that jumped) counts as 0.
  void add(std::int64_t duration) noexcept {
    const std::int64_t value = duration < 0 ? 0 : duration;
    ++counts_[bucket_of(value)];
    sum_ += static_cast<double>(value);
    if (value < least_) least_ = value;
    if (value > most_) most_ = value;
  }
  // As if all that `other` was given had been given to this one. The order of merges does not change any count.
  void merge(const DurationHistogram& other) noexcept;

  std::int64_t count() const noexcept;
  // Exact, but for the mean, which is a sum of doubles. nullopt: nothing was added.
  std::optional<std::int64_t> least() const noexcept;
  std::optional<std::int64_t> most() const noexcept;
  std::optional<double> mean() const noexcept;
  // The middle of the bucket of the value below which `share` of the others lie, within least and most: 0.5 is the
  // median. nullopt: nothing was added. Error{invalid_argument}: `share` is not 0 to 1.
  std::optional<double> quantile(double share) const;

  // So many values lie from `from` on and below `to`.
  struct Range {
    std::int64_t from, to;
    std::int64_t count;
  };
  // From the first range that has a value to the last one, without gaps; empty: nothing was added. Each power of two
  // from 32 on is divided into `per_octave` ranges of equal width, as is what lies below 32. Error{invalid_argument}:
  // another number than 1, 2, 4, 8, 16 and 32.
  std::vector<Range> ranges(int per_octave = 4) const;

 private:
  static constexpr int kBits = 5;  // 32 buckets an octave.
  static constexpr std::size_t kPerOctave = std::size_t{1} << kBits;
  static constexpr std::size_t kBuckets = (63 - kBits + 1) * kPerOctave;  // Up to 2^63 - 1.

  // Continuous: below 64 each value has its own bucket, and from there on each octave the next 32.
  static std::size_t bucket_of(std::int64_t value) noexcept {
    const auto bits = static_cast<std::uint64_t>(value);
    const int octave = static_cast<int>(std::bit_width(bits | (kPerOctave - 1))) - kBits;  // 0: below 32.
    const int shift = octave > 0 ? octave - 1 : 0;
    return static_cast<std::size_t>(bits >> shift) + static_cast<std::size_t>(shift) * kPerOctave;
  }
  static double middle_of(std::size_t bucket) noexcept;
  static std::int64_t low_of(std::size_t bucket) noexcept;  // Of the one behind the last: the largest number.

  std::array<std::int64_t, kBuckets> counts_{};
  double sum_ = 0;
  std::int64_t least_ = std::numeric_limits<std::int64_t>::max();
  std::int64_t most_ = std::numeric_limits<std::int64_t>::min();
};

}  // namespace headrace
