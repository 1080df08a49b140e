#include "core/base/middle.h"

#include <algorithm>
#include <cstddef>

#include "core/base/fail.h"

namespace headrace {

double middle_of(std::vector<double> values) {
  HEADRACE_CHECK(!values.empty(), "the middle of no values");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double percentile_of(const std::vector<double>& sorted, double fraction) {
  HEADRACE_CHECK(!sorted.empty() && fraction >= 0 && fraction <= 1, "percentile {} of {} values", fraction,
                 sorted.size());
  const double position = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace headrace
