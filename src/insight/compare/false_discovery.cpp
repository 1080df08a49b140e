#include "insight/compare/false_discovery.h"

#include <algorithm>
#include <functional>

#include "core/base/fail.h"

namespace headrace {

std::vector<bool> reject(std::span<const double> e_values, double rate) {
  HEADRACE_CHECK(rate > 0 && rate < 1, "a false discovery rate of {}", rate);
  std::vector<double> sorted(e_values.begin(), e_values.end());
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  std::vector<bool> rejected(e_values.size(), false);
  for (std::size_t k = sorted.size(); k > 0; --k) {
    const double bound = static_cast<double>(sorted.size()) / (rate * static_cast<double>(k));
    if (sorted[k - 1] < bound) continue;
    for (std::size_t i = 0; i < e_values.size(); ++i) rejected[i] = e_values[i] >= sorted[k - 1];
    break;
  }
  return rejected;
}

}  // namespace headrace
