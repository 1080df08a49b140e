// Nanoseconds that one element of a keyed permutation costs, in the order of an epoch: sizes just below and just above
// a power of two, where the fewest and the most elements are walked past. Medians of 9 rounds, in turn.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "core/base/clock.h"
#include "core/base/random.h"

int main() {
  constexpr std::array<std::int64_t, 4> kSizes{60'000, 70'000, 1'000'000, 1'281'167};
  std::array<std::vector<double>, kSizes.size()> costs_ns;
  std::int64_t sum = 0;  // Printed, so that no call is left out.
  for (std::int64_t round = 0; round < 9; ++round) {
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      const headrace::Permutation permutation{kSizes[i], 1, round};
      const std::int64_t begin_ns = headrace::monotonic_ns();
      for (std::int64_t position = 0; position < kSizes[i]; ++position) sum += permutation(position);
      costs_ns[i].push_back(static_cast<double>(headrace::monotonic_ns() - begin_ns) / static_cast<double>(kSizes[i]));
    }
  }
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    std::sort(costs_ns[i].begin(), costs_ns[i].end());
    fmt::print("{:>9} elements {:>6.1f} ns each, {:.1f} to {:.1f}\n", kSizes[i], costs_ns[i][4], costs_ns[i].front(),
               costs_ns[i].back());
  }
  fmt::print("sum {}\n", sum);
  return 0;
}
