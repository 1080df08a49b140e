#include "insight/tune/live_level.h"

#include <algorithm>

#include "insight/tune/unit_times.h"

namespace headrace {
namespace {

constexpr std::size_t kUnitsMax = 4096;
constexpr double kWindowSeconds = static_cast<double>(LiveLevel::kUnits) * kLiveBlockSeconds;

}  // namespace

LiveLevel::LiveLevel() {
  window_.reserve(kUnits);
}

bool LiveLevel::add(double seconds) {
  window_.push_back(seconds);
  window_s_ += seconds;
  if (window_.size() < kUnits || (window_s_ < kWindowSeconds && window_.size() < kUnitsMax)) return false;
  const auto middle = window_.begin() + static_cast<std::ptrdiff_t>(window_.size() / 2);
  std::nth_element(window_.begin(), middle, window_.end());
  const double middle_s = *middle;
  window_.clear();
  window_s_ = 0;
  const bool is_first = level_s_ == 0;
  if (!is_first && middle_s <= kFactor * level_s_ && kFactor * middle_s >= level_s_) return false;
  level_s_ = middle_s;
  return !is_first;
}

}  // namespace headrace
