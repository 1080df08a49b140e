// How often the bets of a trial keep and drop a change, and after how many pairs. Noise of a block is Student's t with
// 3 degrees of freedom; a burst makes a block 20 to 50 % longer.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>

#include "insight/tune/bets.h"

namespace headrace {
namespace {

constexpr double kGainMin = 0.02;
constexpr std::int64_t kPairsMax = 200;  // A trial that is open then is left so.

struct Result {
  double kept = 0;
  double dropped = 0;
  double pairs = 0;  // Mean.
};

Result simulate(double gain, double noise, double burst_probability, int runs) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> uniform;
  const auto log_time = [&] {
    const double burst = uniform(random) < burst_probability ? 1.2 + 0.3 * uniform(random) : 1.0;
    const double tail = std::student_t_distribution<double>(3)(random) / std::sqrt(3.0);
    return std::log(burst * std::max(0.5, 1 + noise * tail));
  };
  Result result;
  for (int run = 0; run < runs; ++run) {
    Bets bets(kGainMin);
    while (bets.outcome() == Outcome::open && bets.pairs() < kPairsMax) {
      const double first = log_time();  // The blocks are alike, so that no coin is needed.
      bets.add(std::log1p(gain) + first - log_time());
    }
    result.kept += bets.outcome() == Outcome::pays;
    result.dropped += bets.outcome() == Outcome::no_gain || bets.outcome() == Outcome::slower;
    result.pairs += static_cast<double>(bets.pairs());
  }
  return {result.kept / runs, result.dropped / runs, result.pairs / runs};
}

}  // namespace
}  // namespace headrace

int main() {
  constexpr int kRuns = 2000;
  std::printf("%6s %6s %6s %8s %8s %6s\n", "noise", "burst", "gain", "kept", "dropped", "pairs");
  for (const double noise : {0.02, 0.04, 0.07}) {
    for (const double burst : {0.0, 0.1}) {
      for (const double gain : {-0.20, 0.0, 0.02, 0.05, 0.10, 0.60}) {
        const auto result = headrace::simulate(gain, noise, burst, kRuns);
        std::printf("%6.2f %6.2f %6.2f %8.4f %8.4f %6.1f\n", noise, burst, gain, result.kept, result.dropped,
                    result.pairs);
      }
    }
  }
}
