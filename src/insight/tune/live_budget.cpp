#include "insight/tune/live_budget.h"

#include <algorithm>

namespace headrace {

void LiveBudget::add(double unit_s, double excess_s) noexcept {
  elapsed_s_ += unit_s;
  behind_s_ += excess_s;
  most_behind_s_ = std::max(most_behind_s_, behind_s_);
}

void LiveBudget::expect_rest(std::optional<double> rest_s) noexcept {
  whole_s_.reset();
  if (rest_s) whole_s_ = elapsed_s_ - behind_s_ + *rest_s;
}

double LiveBudget::allowed_s() const noexcept {
  return lost_s_ + lost_share_ * std::max(0.0, whole_s_.value_or(elapsed_s_ - behind_s_));
}

}  // namespace headrace
