// How often a trial finds a gain, and with how many pairs, for several scores of the signed-rank test: the sign test, a
// quarter and half of the ranks, Wilcoxon. Noise of a block is Student's t with 3 degrees of freedom; a burst makes a
// block 20 to 50 % longer.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "insight/tune/comparison.h"
#include "insight/tune/statistics.h"

namespace headrace {
namespace {

struct Scores {
  const char* name;
  int (*score_max)(int count);
};

constexpr Scores kScores[] = {{"sign", [](int) { return 1; }},
                              {"quarter", [](int count) { return robust_score_max(count); }},
                              {"half", [](int count) { return (count + 1) / 2; }},
                              {"Wilcoxon", [](int count) { return count; }}};

struct Result {
  double kept = 0;
  double refused = 0;
  double pairs = 0;  // Mean.
};

Result simulate(const Scores& scores, double gain, double noise, double burst_probability, int runs) {
  const double gain_min = std::log1p(0.02);
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> uniform;
  const auto log_time = [&] {
    const double burst = uniform(random) < burst_probability ? 1.2 + 0.3 * uniform(random) : 1.0;
    const double tail = std::student_t_distribution<double>(3)(random) / std::sqrt(3.0);
    return std::log(burst * std::max(0.5, 1 + noise * tail));
  };
  Result result;
  for (int run = 0; run < runs; ++run) {
    std::vector<double> ratios;
    for (const std::int64_t look : kLooks) {
      while (static_cast<std::int64_t>(ratios.size()) < look) {
        const double first = log_time();
        ratios.push_back(std::log1p(gain) + first - log_time());
      }
      const auto found =
          estimate_middle(ratios, kKeepError, kTailError, scores.score_max(static_cast<int>(ratios.size())));
      const bool kept = look >= kPairsToKeep && found.low > gain_min;
      const bool refused = !kept && found.high < (look >= 6 ? gain_min : 0);
      result.kept += kept;
      result.refused += refused;
      if (kept || refused) break;
    }
    result.pairs += static_cast<double>(ratios.size());
  }
  return {result.kept / runs, result.refused / runs, result.pairs / runs};
}

}  // namespace
}  // namespace headrace

int main() {
  constexpr int kRuns = 2000;
  std::printf("%-9s %6s %6s %6s %8s %8s %6s\n", "scores", "noise", "burst", "gain", "kept", "refused", "pairs");
  for (const double noise : {0.02, 0.04}) {
    for (const double burst : {0.0, 0.1}) {
      for (const double gain : {0.0, 0.02, 0.05, 0.10}) {
        for (const auto& scores : headrace::kScores) {
          const auto result = headrace::simulate(scores, gain, noise, burst, kRuns);
          std::printf("%-9s %6.2f %6.2f %6.2f %8.4f %8.4f %6.1f\n", scores.name, noise, burst, gain, result.kept,
                      result.refused, result.pairs);
        }
      }
    }
  }
}
