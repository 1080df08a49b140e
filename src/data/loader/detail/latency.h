// How long things took, counted in buckets that are 1/16 of a power of two wide.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace headrace::detail {

// Constant memory (8 KB), constant time, no allocation. Values are told within 1/32.
class LatencyHistogram {
 public:
  void add(std::int64_t ns) noexcept {
    ++counts_[bucket(ns)];
    ++total_;
  }

  // The largest value that the slowest `share` (0 to 1) of all reached or passed; nullopt without values.
  std::optional<std::int64_t> reached_by(double share) const noexcept {
    if (total_ == 0) return std::nullopt;
    auto wanted = static_cast<std::int64_t>(std::ceil(share * static_cast<double>(total_)));
    for (std::size_t i = counts_.size(); i-- > 0;) {
      wanted -= counts_[i];
      if (counts_[i] > 0 && wanted <= 0) return middle(i);
    }
    return std::nullopt;
  }

 private:
  static constexpr int kStepBits = 4;  // 16 buckets a power of two.
  static constexpr std::int64_t kSteps = 1 << kStepBits;

  static std::size_t bucket(std::int64_t ns) noexcept {
    if (ns < kSteps) return ns < 0 ? 0 : static_cast<std::size_t>(ns);
    const int shift = 63 - std::countl_zero(static_cast<std::uint64_t>(ns)) - kStepBits;
    return static_cast<std::size_t>(shift * kSteps + (ns >> shift));
  }
  static std::int64_t middle(std::size_t bucket) noexcept {
    const auto index = static_cast<std::int64_t>(bucket);
    if (index < 2 * kSteps) return index;  // One value a bucket.
    const auto shift = index / kSteps - 1;
    return ((index - shift * kSteps) << shift) + (std::int64_t{1} << (shift - 1));
  }

  std::array<std::int64_t, (64 - kStepBits) * kSteps> counts_{};
  std::int64_t total_ = 0;
};

}  // namespace headrace::detail
