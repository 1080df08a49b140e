#include "insight/tune/numeric_check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "core/base/fail.h"
#include "insight/tune/comparison.h"

namespace headrace {
namespace {

constexpr double kLossTolerance = 1e-5;
constexpr double kGradientTolerance = 1e-2;
constexpr double kTensorTolerance = 0.1;
constexpr double kTensorShareMin = 1e-3;
constexpr double kUpdateTolerance = 1e-6;
constexpr double kCosineMin = 0.9;
constexpr double kBandShareMin = 0.02;
const double kLossFloor = kErrorFactor * std::ldexp(1.0, -24) * std::sqrt(1e5);
constexpr double kInfinity = std::numeric_limits<double>::infinity();

NumericResult result_of(NumericClass numeric_class, double value, double tolerance, std::string measure) {
  // A NaN does not pass.
  return {numeric_class, true, value <= tolerance, value, tolerance, std::move(measure), std::nullopt, {}};
}

// Keeps the figure that is largest against its tolerance; one that is not a number wins.
void keep_worst(NumericResult& worst, double value, double tolerance, const std::string& measure,
                std::optional<double> baseline_error = std::nullopt) {
  const double excess = value / tolerance;
  if (worst.checked && !(std::isnan(excess) || excess > worst.value / worst.tolerance)) return;
  worst = result_of(NumericClass::rounding, std::isnan(value) ? kInfinity : value, tolerance, measure);
  worst.baseline_error = baseline_error;
}

double relative(double difference, double size) {
  if (difference == 0) return 0;
  return size > 0 ? difference / size : kInfinity;
}

struct Squares {
  double reference = 0;
  double candidate = 0;
  double difference = 0;
  double product = 0;

  void add(const Squares& other) {
    reference += other.reference;
    candidate += other.candidate;
    difference += other.difference;
    product += other.product;
  }
};

template <class Value>
Squares squares_of(const std::vector<Value>& reference, const std::vector<float>& candidate) {
  Squares squares;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const auto a = static_cast<double>(reference[i]), b = static_cast<double>(candidate[i]);
    squares.reference += a * a;
    squares.candidate += b * b;
    squares.difference += (a - b) * (a - b);
    squares.product += a * b;
  }
  return squares;
}

// What differs in form, or nothing.
template <class Print>
std::optional<std::string> difference_in_form(const Print& reference, const Fingerprint& candidate) {
  if (reference.gradients.size() != candidate.gradients.size()) {
    return fmt::format("gradients, {} tensors where {} were expected", candidate.gradients.size(),
                       reference.gradients.size());
  }
  for (std::size_t i = 0; i < reference.gradients.size(); ++i) {
    const auto& a = reference.gradients[i];
    const auto& b = candidate.gradients[i];
    if (a.name != b.name) return fmt::format("gradients, {} where {} was expected", b.name, a.name);
    if (a.values.size() != b.values.size()) {
      return fmt::format("gradient of {}, {} values where {} were expected", a.name, b.values.size(), a.values.size());
    }
  }
  return std::nullopt;
}

void compare_batch(const Fingerprint& reference, const Fingerprint& candidate, NumericResult& worst) {
  keep_worst(worst, relative(std::abs(candidate.loss - reference.loss), std::abs(reference.loss)), kLossTolerance,
             "loss, relative");
  std::vector<Squares> tensors;
  Squares all;
  for (std::size_t i = 0; i < reference.gradients.size(); ++i) {
    tensors.push_back(squares_of(reference.gradients[i].values, candidate.gradients[i].values));
    all.add(tensors.back());
  }
  keep_worst(worst, relative(std::sqrt(all.difference), std::sqrt(all.reference)), kGradientTolerance,
             "gradients, relative L2");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!(std::sqrt(tensors[i].reference) >= kTensorShareMin * std::sqrt(all.reference))) continue;
    keep_worst(worst, relative(std::sqrt(tensors[i].difference), std::sqrt(tensors[i].reference)), kTensorTolerance,
               fmt::format("gradient of {}, relative L2", reference.gradients[i].name));
  }
}

// Root mean square over batches.
class MeanError {
 public:
  void add(double error) {
    squares_ += error * error;
    ++count_;
  }
  bool empty() const { return count_ == 0; }
  double value() const { return count_ == 0 ? 0 : std::sqrt(squares_ / count_); }

 private:
  double squares_ = 0;
  int count_ = 0;
};

struct Errors {
  MeanError loss, gradients;
  std::vector<MeanError> tensors;  // Of batches in which they count.
};

Errors errors_of(std::span<const ExactFingerprint> exact, std::span<const Fingerprint> found) {
  Errors errors;
  errors.tensors.resize(exact.front().gradients.size());
  for (std::size_t batch = 0; batch < exact.size(); ++batch) {
    const ExactFingerprint& truth = exact[batch];
    errors.loss.add(relative(std::abs(found[batch].loss - truth.loss), std::abs(truth.loss)));
    std::vector<Squares> tensors;
    Squares all;
    for (std::size_t i = 0; i < truth.gradients.size(); ++i) {
      tensors.push_back(squares_of(truth.gradients[i].values, found[batch].gradients[i].values));
      all.add(tensors.back());
    }
    errors.gradients.add(relative(std::sqrt(all.difference), std::sqrt(all.reference)));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (std::sqrt(tensors[i].reference) < kTensorShareMin * std::sqrt(all.reference)) continue;
      errors.tensors[i].add(relative(std::sqrt(tensors[i].difference), std::sqrt(tensors[i].reference)));
    }
  }
  return errors;
}

double tolerance_for(double baseline_error, double floor) {
  return std::max(kErrorFactor * baseline_error, floor);
}

}  // namespace

ExactComparison compare_with_exact(std::span<const ExactFingerprint> exact, std::span<const Fingerprint> reference,
                                   std::span<const Fingerprint> candidate, double update_difference) {
  HEADRACE_CHECK(!exact.empty() && exact.size() == reference.size() && exact.size() == candidate.size(), "{}, {}, {}",
                 exact.size(), reference.size(), candidate.size());
  for (std::size_t batch = 0; batch < exact.size(); ++batch) {
    if (const auto form = difference_in_form(exact[batch], reference[batch])) {
      return {std::nullopt, fmt::format("the float64 run has others: {}", *form)};
    }
    if (const auto form = difference_in_form(exact[batch], candidate[batch])) {
      return {result_of(NumericClass::rounding, kInfinity, kGradientTolerance, *form), {}};
    }
  }
  const Errors own = errors_of(exact, reference), found = errors_of(exact, candidate);
  if (!(own.gradients.value() <= kGradientTolerance) || !std::isfinite(own.loss.value())) {
    return {std::nullopt, fmt::format("the loop as written is itself {:.2g} away from float64 in its gradients, more "
                                      "than {:.2g}",
                                      own.gradients.value(), kGradientTolerance)};
  }
  NumericResult worst;
  const auto keep = [&](const MeanError& error, const MeanError& baseline, double floor, const std::string& measure) {
    keep_worst(worst, error.value(), tolerance_for(baseline.value(), floor), measure, baseline.value());
  };
  keep(found.loss, own.loss, kLossFloor, "loss, error against float64");
  keep(found.gradients, own.gradients, kGradientTolerance, "gradients, error against float64");
  for (std::size_t i = 0; i < found.tensors.size(); ++i) {
    if (found.tensors[i].empty()) continue;
    keep(found.tensors[i], own.tensors[i], kTensorTolerance,
         fmt::format("gradient of {}, error against float64", exact.front().gradients[i].name));
  }
  keep_worst(worst, update_difference, kUpdateTolerance, "update on the same gradients, relative L2");
  return {worst, {}};
}

NumericResult compare_rounding(std::span<const Fingerprint> reference, std::span<const Fingerprint> candidate,
                               double update_difference) {
  HEADRACE_CHECK(reference.size() == candidate.size(), "{} and {}", reference.size(), candidate.size());
  NumericResult worst;
  for (std::size_t batch = 0; batch < reference.size(); ++batch) {
    if (const auto form = difference_in_form(reference[batch], candidate[batch])) {
      return result_of(NumericClass::rounding, kInfinity, kGradientTolerance, *form);
    }
    compare_batch(reference[batch], candidate[batch], worst);
  }
  keep_worst(worst, update_difference, kUpdateTolerance, "update on the same gradients, relative L2");
  return worst;
}

NumericResult compare_direction(std::span<const Fingerprint> reference, std::span<const Fingerprint> candidate) {
  HEADRACE_CHECK(reference.size() == candidate.size() && !reference.empty(), "{} and {}", reference.size(),
                 candidate.size());
  const double tolerance = 1 - kCosineMin;
  double cosines = 0;
  for (std::size_t batch = 0; batch < reference.size(); ++batch) {
    if (const auto form = difference_in_form(reference[batch], candidate[batch])) {
      return result_of(NumericClass::reduced_precision, kInfinity, tolerance, *form);
    }
    Squares all;
    for (std::size_t i = 0; i < reference[batch].gradients.size(); ++i) {
      all.add(squares_of(reference[batch].gradients[i].values, candidate[batch].gradients[i].values));
    }
    const double sizes = std::sqrt(all.reference) * std::sqrt(all.candidate);
    // Two zero gradients agree; a zero one against another has no direction.
    cosines += all.reference == 0 && all.candidate == 0 ? 1 : sizes > 0 ? all.product / sizes : 0;
    if (!std::isfinite(candidate[batch].loss)) cosines = std::numeric_limits<double>::quiet_NaN();
  }
  const double distance = 1 - cosines / static_cast<double>(reference.size());
  return result_of(NumericClass::reduced_precision, std::isnan(distance) ? kInfinity : std::max(0.0, distance),
                   tolerance, "gradients, 1 - mean cosine");
}

double mean_of_last_tenth(std::span<const double> losses) {
  HEADRACE_CHECK(!losses.empty(), "the mean of no losses");
  const auto tail = losses.last(std::max<std::size_t>(1, losses.size() / 10));
  return std::accumulate(tail.begin(), tail.end(), 0.0) / static_cast<double>(tail.size());
}

NumericResult compare_losses(std::span<const double> reference, std::span<const double> candidate) {
  HEADRACE_CHECK(!reference.empty() && !candidate.empty(), "{} and {} runs", reference.size(), candidate.size());
  const auto [low, high] = std::minmax_element(reference.begin(), reference.end());
  const double middle = (*low + *high) / 2;
  const double half_width = (*high - *low) / 2 + std::max(*high - *low, kBandShareMin * std::abs(middle));
  double farthest = 0;
  for (const double loss : candidate) {
    const double distance = relative(std::abs(loss - middle), half_width);
    farthest = std::isnan(distance) ? kInfinity : std::max(farthest, distance);
  }
  return result_of(NumericClass::reduced_precision, farthest, 1.0,
                   fmt::format("loss after short runs, distance from the band of {} seeds' middle in half widths",
                               reference.size()));
}

NumericCheck::NumericCheck(Job& job, std::uint64_t seed, KeepGoing keep_going, ExactLimit exact_limit)
    : job_(job), seed_(seed), keep_going_(std::move(keep_going)), exact_limit_(std::move(exact_limit)) {}

std::int64_t NumericCheck::steps_needed(NumericClass numeric_class, const Settings& reference) const {
  const bool known = reference == reference_;
  if (numeric_class == NumericClass::bit_equal) return known && hash_ ? kBitEqualSteps : 2 * kBitEqualSteps;
  const auto batches = numeric_class == NumericClass::rounding ? kRoundingBatches : kDirectionBatches;
  return 2 * batches - (known ? std::min(batches, static_cast<std::int64_t>(fingerprints_.size())) : 0);
}

bool NumericCheck::prepare(NumericClass numeric_class, const Settings& reference) {
  if (reference != reference_) {
    fingerprints_.clear();
    hash_.reset();
    reference_ = reference;
  }
  if (numeric_class == NumericClass::bit_equal) {
    if (!hash_) hash_ = hash_after_steps(reference);
    return keep_going_();
  }
  const auto batches = numeric_class == NumericClass::rounding ? kRoundingBatches : kDirectionBatches;
  if (static_cast<std::int64_t>(fingerprints_.size()) < batches) switch_to(job_, reference);
  for (auto batch = static_cast<std::int64_t>(fingerprints_.size()); batch < batches; ++batch) {
    if (!keep_going_()) return false;
    const double begin_s = exact_limit_.clock ? exact_limit_.clock() : 0;
    fingerprints_.push_back(job_.fingerprint(batch));
    fingerprint_s_ = exact_limit_.clock ? exact_limit_.clock() - begin_s : 0;
  }
  return numeric_class != NumericClass::rounding || prepare_exact();
}

bool NumericCheck::prepare_exact() {
  if (exact_tried_ || !exact_limit_.clock) return true;
  const double seconds_max = exact_limit_.seconds_max();
  const double wanted_s = kRoundingBatches * kExactCost * fingerprint_s_;
  if (wanted_s > seconds_max) {
    exact_tried_ = true;
    why_not_exact_ = fmt::format("{} batches in float64 are estimated to take {:.2g} s, and {:.2g} s are given to them",
                                 kRoundingBatches, wanted_s, seconds_max);
    return true;
  }
  bool whole = false;
  const auto fault = attempt([&] { whole = run_exact(seconds_max); });
  if (fault && fault->code == ErrorCode::cancelled) std::rethrow_exception(fault->exception);
  if (fault) why_not_exact_ = fault->message;
  if (!whole) exact_.clear();
  exact_tried_ = whole || !why_not_exact_.empty();
  return exact_tried_;
}

// False: there is none, and why_not_exact_ says why, or it ended early.
bool NumericCheck::run_exact(double seconds_max) {
  switch_to(job_, {});
  const double begin_s = exact_limit_.clock();
  while (static_cast<std::int64_t>(exact_.size()) < kRoundingBatches) {
    if (!keep_going_()) return false;
    ExactResult result = job_.exact_fingerprint(static_cast<std::int64_t>(exact_.size()));
    if (!result.fingerprint) {
      why_not_exact_ = std::move(result.why_not);
      return false;
    }
    exact_.push_back(std::move(*result.fingerprint));
    const double spent_s = exact_limit_.clock() - begin_s;
    const double left = static_cast<double>(kRoundingBatches) - static_cast<double>(exact_.size());
    if (left > 0 && spent_s * (1 + left / static_cast<double>(exact_.size())) > seconds_max) {
      why_not_exact_ = fmt::format("{} of {} batches in float64 took {:.2g} s, and {:.2g} s are given to all",
                                   exact_.size(), kRoundingBatches, spent_s, seconds_max);
      return false;
    }
  }
  return true;
}

std::optional<NumericResult> NumericCheck::check(NumericClass numeric_class, const Settings& candidate) {
  if (numeric_class == NumericClass::bit_equal) return check_bits(candidate);
  const bool rounding = numeric_class == NumericClass::rounding;
  const auto batches = rounding ? kRoundingBatches : kDirectionBatches;
  HEADRACE_CHECK(static_cast<std::int64_t>(fingerprints_.size()) >= batches, "the reference is not prepared");
  const auto reference = std::span<const Fingerprint>(fingerprints_).first(batches);

  std::vector<Fingerprint> found;
  switch_to(job_, candidate);
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    if (!keep_going_()) return std::nullopt;
    found.push_back(job_.fingerprint(batch));
  }
  if (!rounding) return compare_direction(reference, found);
  const double update_difference = job_.update_difference(reference_, candidate);
  std::string why_not = why_not_exact_;
  if (!exact_.empty()) {
    ExactComparison compared = compare_with_exact(exact_, reference, found, update_difference);
    if (compared.result) return *compared.result;
    why_not = std::move(compared.why_not);
  }
  NumericResult result = compare_rounding(reference, found, update_difference);
  result.why_not_float64 = std::move(why_not);
  return result;
}

std::uint64_t NumericCheck::hash_after_steps(const Settings& settings) {
  switch_to(job_, settings);
  timed_steps(job_, kBitEqualSteps);
  return job_.state_hash();
}

std::optional<NumericResult> NumericCheck::check_bits(const Settings& candidate) {
  HEADRACE_CHECK(hash_.has_value(), "the reference is not prepared");
  const bool equal = hash_after_steps(candidate) == *hash_;
  if (!keep_going_()) return std::nullopt;
  std::string measure = fmt::format("states that differ after {} steps", kBitEqualSteps);
  // A job that does not repeat itself cannot be matched; say so rather than accuse the candidate.
  if (!equal && hash_after_steps(reference_) != *hash_) measure += "; the job does not repeat its own bits either";
  return result_of(NumericClass::bit_equal, equal ? 0.0 : 1.0, 0.0, std::move(measure));
}

std::optional<std::vector<double>> NumericCheck::short_runs(const Settings& settings) {
  switch_to(job_, settings);
  std::vector<double> losses;
  for (int run = 0; run < kShortRunSeeds; ++run) {
    if (!keep_going_()) return std::nullopt;
    losses.push_back(job_.short_run(short_run_steps_, seed_ + run));
  }
  return losses;
}

bool NumericCheck::prepare_short_runs(const Settings& reference, std::int64_t steps) {
  if (has_short_runs()) return true;
  short_run_steps_ = steps;
  auto losses = short_runs(reference);
  if (losses) reference_losses_ = std::move(*losses);
  return has_short_runs();
}

std::optional<NumericResult> NumericCheck::check_losses(const Settings& candidate) {
  HEADRACE_CHECK(has_short_runs(), "the reference is not prepared");
  const auto losses = short_runs(candidate);
  if (!losses) return std::nullopt;
  return compare_losses(reference_losses_, *losses);
}

}  // namespace headrace
