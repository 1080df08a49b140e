#include "insight/tune/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>
#include <numeric>
#include <utility>

#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr int kExactCountMax = 200;   // Of more, the exact distribution of the scores' sum takes long.
constexpr int kNormalDegrees = 1000;  // Of Student's t that is as good as normal.

// probability[s] = P(S = s): each score joins the sum with probability one half.
std::vector<double> sum_probabilities(int count, int score_max) {
  std::vector<double> probability{1.0};
  for (int rank = 1; rank <= count; ++rank) {
    const int score = std::min(rank, score_max);
    std::vector<double> next(probability.size() + score, 0.0);
    for (std::size_t sum = 0; sum < probability.size(); ++sum) {
      next[sum] += probability[sum] / 2;
      next[sum + score] += probability[sum] / 2;
    }
    probability = std::move(next);
  }
  return probability;
}

int sum_of_scores(int count, int score_max) {
  int sum = 0;
  for (int rank = 1; rank <= count; ++rank) sum += std::min(rank, score_max);
  return sum;
}

// The largest sum with P(S <= sum) <= error; -1 when not even 0 is that rare.
int rare_sum(int count, int score_max, double error) {
  if (count > kExactCountMax) {
    double variance = 0;
    for (int rank = 1; rank <= count; ++rank) variance += std::pow(std::min(rank, score_max), 2) / 4;
    return static_cast<int>(sum_of_scores(count, score_max) / 2.0 -
                            student_quantile(kNormalDegrees, error) * std::sqrt(variance));
  }
  const auto probability = sum_probabilities(count, score_max);
  double total = 0;
  int sum = -1;
  while (sum + 1 < static_cast<int>(probability.size()) && total + probability[sum + 1] <= error) {
    total += probability[++sum];
  }
  return sum;
}

// The sum of scores of the differences below `middle`: it grows with `middle`, and only at means of two differences.
int score_below(std::span<const double> differences, double middle, int score_max) {
  std::vector<std::pair<double, bool>> distances;
  distances.reserve(differences.size());
  for (const double difference : differences) {
    distances.emplace_back(std::abs(difference - middle), difference < middle);
  }
  std::sort(distances.begin(), distances.end());
  int sum = 0;
  for (std::size_t i = 0; i < distances.size(); ++i) {
    if (distances[i].second) sum += std::min(static_cast<int>(i) + 1, score_max);
  }
  return sum;
}

// The largest middle up to which the sum of scores below it stays within `sum_max` (0 to less than that of all).
double last_middle(std::span<const double> differences, int score_max, int sum_max) {
  const auto [least, most] = std::minmax_element(differences.begin(), differences.end());
  // None lies below the least, all below what comes next after the most.
  double within = *least, beyond = std::nextafter(*most, std::numeric_limits<double>::infinity());
  for (int halving = 0; halving < 100; ++halving) {
    const double middle = within + (beyond - within) / 2;
    if (middle <= within || middle >= beyond) break;  // Neighbours.
    (score_below(differences, middle, score_max) <= sum_max ? within : beyond) = middle;
  }
  return within;
}

// P(|T| <= t), t >= 0, by the finite sums for whole degrees of freedom: Abramowitz and Stegun 26.7.3 and 26.7.4.
double student_inside(int degrees, double t) {
  const double angle = std::atan(t / std::sqrt(static_cast<double>(degrees)));
  const double cosine = std::cos(angle);
  const bool odd = degrees % 2 != 0;
  double term = odd ? cosine : 1.0;
  double sum = degrees == 1 ? 0.0 : term;
  for (int k = odd ? 3 : 2; k < degrees; k += 2) {
    term *= cosine * cosine * (k - 1) / k;
    sum += term;
  }
  return odd ? (angle + std::sin(angle) * sum) * 2 / std::numbers::pi : std::sin(angle) * sum;
}

// The upper end of Student's interval, which is centred on the mean: that may lie below the estimate.
double student_reach(std::span<const double> values, double center, double error) {
  if (values.size() < 2) return std::numeric_limits<double>::infinity();
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double deviation = std::sqrt(squares / (count - 1) / count);
  return std::max(center, mean + student_quantile(static_cast<int>(values.size()) - 1, error) * deviation);
}

}  // namespace

double median(std::vector<double> values) {
  HEADRACE_CHECK(!values.empty(), "median of no values");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 != 0) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

double signed_rank_cdf(int count, int score_max, int sum) {
  const auto probability = sum_probabilities(count, score_max);
  double total = 0;
  for (int s = 0; s <= sum && s < static_cast<int>(probability.size()); ++s) total += probability[s];
  return total;
}

int robust_score_max(int count) noexcept {
  return (count + 3) / 4;
}

double student_quantile(int degrees, double upper_tail) {
  HEADRACE_CHECK(degrees >= 1 && upper_tail > 0 && upper_tail < 0.5, "degrees {}, tail {}", degrees, upper_tail);
  const double inside = 1 - 2 * upper_tail;
  double low = 0, high = 1;
  while (student_inside(degrees, high) < inside) high *= 2;
  for (int halving = 0; halving < 100; ++halving) {
    const double middle = (low + high) / 2;
    (student_inside(degrees, middle) < inside ? low : high) = middle;
  }
  return high;
}

Estimate estimate_middle(std::span<const double> differences, double error_below, double error_above, int score_max) {
  HEADRACE_CHECK(!differences.empty() && score_max >= 1, "{} differences", differences.size());
  const auto count = static_cast<int>(differences.size());
  // Seen from above, everything is the same with the signs turned.
  std::vector<double> turned(differences.begin(), differences.end());
  for (double& value : turned) value = -value;

  Estimate estimate;
  const int less_than_half = (sum_of_scores(count, score_max) - 1) / 2;
  estimate.center =
      (last_middle(differences, score_max, less_than_half) - last_middle(turned, score_max, less_than_half)) / 2;
  const int below = rare_sum(count, score_max, error_below);
  const int above = rare_sum(count, score_max, error_above);
  estimate.low =
      below >= 0 ? last_middle(differences, score_max, below) : -student_reach(turned, -estimate.center, error_below);
  estimate.high =
      above >= 0 ? -last_middle(turned, score_max, above) : student_reach(differences, estimate.center, error_above);
  return estimate;
}

Estimate estimate_middle(std::span<const double> differences, double error_below, double error_above) {
  return estimate_middle(differences, error_below, error_above, robust_score_max(static_cast<int>(differences.size())));
}

}  // namespace headrace
