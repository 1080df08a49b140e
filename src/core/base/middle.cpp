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

}  // namespace headrace
