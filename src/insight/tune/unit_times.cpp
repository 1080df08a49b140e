#include "insight/tune/unit_times.h"

#include <algorithm>
#include <cmath>

#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr double kWorkSpread = 1.02;     // Work that varies by less does not vary.
constexpr double kExpectedFloor = 0.05;  // Of a typical unit: a line may cross 0 where nothing was seen.
// Times a typical unit: so many workers may hand out a batch each at once. What waits longer is a burst.
constexpr double kWaitMax = 8;
constexpr std::size_t kFitEvery = 4;  // Units, once there are enough.
constexpr std::int64_t kBlocksWanted = 20, kBlocksMin = 8;
constexpr double kBaselineSeconds = 5;
constexpr std::size_t kBaselineUnitsMax = 4096;

// In place, so that counting a unit allocates nothing. Of an even number the upper of the two in the middle.
double middle_in_place(std::span<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

bool is_counted(const LiveUnit& unit) noexcept {
  const bool is_time = std::isfinite(unit.seconds) && unit.seconds > 0;
  const bool is_amount = std::isfinite(unit.work) && unit.work > 0;
  return unit.countable && is_time && is_amount && std::isfinite(unit.wait_s);
}

UnitTimes::UnitTimes() {
  slopes_.reserve(kWindow * (kWindow - 1) / 2);
}

void UnitTimes::add(double seconds, double work, double wait_s) {
  double waited_s = std::clamp(wait_s, 0.0, seconds);
  points_[count_ % kWindow] = {seconds - waited_s, work};
  ++count_;
  if (count_ <= kNewest || count_ % kFitEvery == 0) fit();
  if (count_ > kNewest) waited_s = std::min(waited_s, kWaitMax * typical());
  wait_s_ += (waited_s - wait_s_) / static_cast<double>(std::min(count_, kWindow));
}

double UnitTimes::Line::expected(double work) const noexcept {
  return std::max(level + slope * work, least) + wait_s;
}

UnitTimes::Line UnitTimes::line() const {
  HEADRACE_CHECK(is_known(), "no unit of the loop as written was counted");
  return {slope_, level_, kExpectedFloor * typical_, wait_s_};
}

void UnitTimes::fit() {
  const std::size_t count = std::min(count_, kWindow);
  slope_ = slope();
  std::array<double, kWindow> values{};
  const std::size_t newest_count = std::min(count, kNewest);
  for (std::size_t i = 0; i < newest_count; ++i) values[i] = newest(i).seconds - slope_ * newest(i).work;
  level_ = middle_in_place({values.data(), newest_count});
  for (std::size_t i = 0; i < count; ++i) values[i] = newest(i).work;
  typical_ = level_ + slope_ * middle_in_place({values.data(), count});
}

double UnitTimes::slope() {
  const std::size_t count = std::min(count_, kWindow);
  const auto less_work = [](const Point& a, const Point& b) { return a.work < b.work; };
  const auto end = points_.begin() + static_cast<std::ptrdiff_t>(count);
  const auto [least, most] = std::minmax_element(points_.begin(), end, less_work);
  if (most->work <= kWorkSpread * least->work) return 0;
  const double apart = 1e-3 * most->work;  // Nearer, noise is divided by next to nothing.
  slopes_.clear();
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = i + 1; j < count; ++j) {
      const double distance = points_[i].work - points_[j].work;
      if (std::abs(distance) > apart) slopes_.push_back((points_[i].seconds - points_[j].seconds) / distance);
    }
  }
  return std::max(0.0, middle_in_place(slopes_));  // More work takes no less time.
}

LiveBaseline::LiveBaseline() {
  units_.reserve(1024);
}

bool LiveBaseline::add(const LiveUnit& unit) {
  if (!is_counted(unit)) return false;
  if (left_out_ < kFirstUnits) {
    ++left_out_;
    return false;
  }
  units_.push_back({unit.seconds, unit.work, std::clamp(unit.wait_s, 0.0, unit.seconds)});
  total_s_ += unit.seconds;
  wait_s_ += unit.wait_s;
  return true;
}

bool LiveBaseline::is_enough() const noexcept {
  const auto count = static_cast<std::int64_t>(units_.size());
  if (units_.size() >= kBaselineUnitsMax) return true;
  const auto held = static_cast<std::int64_t>(total_s_ / kLiveBlockSeconds);
  const std::int64_t blocks = std::min(count, held);
  return blocks >= kBlocksWanted || (blocks >= kBlocksMin && total_s_ >= kBaselineSeconds);
}

double LiveBaseline::wait_share() const noexcept {
  return total_s_ > 0 ? wait_s_ / total_s_ : 0;
}

std::vector<double> LiveBaseline::blocks(const UnitTimes& times, std::int64_t units, bool even_waiting) const {
  std::vector<double> blocks_s;
  double sum = 0;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const double waits_longer_s = even_waiting ? units_[i].wait_s - times.wait_s() : 0;
    sum += (units_[i].seconds - waits_longer_s) / times.expected(units_[i].work) * times.typical();
    if (static_cast<std::int64_t>(i + 1) % units != 0) continue;
    blocks_s.push_back(sum);
    sum = 0;
  }
  return blocks_s;
}

}  // namespace headrace
