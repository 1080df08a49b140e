// Quantiles of measured values, for the benches that stand beside the sources.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace headrace {

// Of at least one value, in any order: the one below which that share of the others lies, so it is a value that
// occurred; 0.5 of an even number is the lower one of the middle.
inline double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

}  // namespace headrace
