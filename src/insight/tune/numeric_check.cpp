#include "insight/tune/numeric_check.h"

#include <algorithm>
#include <cmath>
#include <limits>
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

Squares squares_of(const Fingerprint& reference, const Fingerprint& candidate) {  // Of the same form.
  Squares all;
  for (std::size_t i = 0; i < reference.gradients.size(); ++i) {
    all.add(squares_of(reference.gradients[i].values, candidate.gradients[i].values));
  }
  return all;
}

// Two zero gradients agree; a zero one against another has no direction.
double cosine_of(const Squares& squares) {
  const double sizes = std::sqrt(squares.reference) * std::sqrt(squares.candidate);
  return squares.reference == 0 && squares.candidate == 0 ? 1 : sizes > 0 ? squares.product / sizes : 0;
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

NumericResult judge_reduced_precision(double relative_l2, double cosine, bool finite, double distance_between_calls) {
  const auto result = [](double value, double tolerance, std::string measure) {
    return result_of(NumericClass::reduced_precision, std::isnan(value) ? kInfinity : value, tolerance,
                     std::move(measure));
  };
  if (!finite) return result(kInfinity, 0, "numbers that are not finite");
  const NumericResult direction = result(1 - cosine, 1 - kCosineMin, "gradients, 1 - cosine");
  if (!direction.passed) return direction;
  return result(relative_l2, kCallDistanceFactor * distance_between_calls,
                "gradients, relative L2, against half of that between two batches");
}

NumericResult compare_reduced_precision(std::span<const Fingerprint> reference,
                                        std::span<const Fingerprint> candidate) {
  HEADRACE_CHECK(reference.size() == candidate.size() && !reference.empty(), "{} and {}", reference.size(),
                 candidate.size());
  double farthest = 0, cosine = 1;
  bool finite = true;
  Squares between_batches;
  for (std::size_t batch = 0; batch < reference.size(); ++batch) {
    if (const auto form = difference_in_form(reference[batch], candidate[batch])) {
      return result_of(NumericClass::reduced_precision, kInfinity, 1 - kCosineMin, *form);
    }
    const Squares all = squares_of(reference[batch], candidate[batch]);
    farthest = std::max(farthest, relative(std::sqrt(all.difference), std::sqrt(all.reference)));
    cosine = std::min(cosine, cosine_of(all));
    finite = finite && std::isfinite(candidate[batch].loss) && std::isfinite(all.difference);
    // A batch may leave out a layer that another one reaches.
    if (batch > 0 && !difference_in_form(reference[batch - 1], reference[batch])) {
      between_batches.add(squares_of(reference[batch - 1], reference[batch]));
    }
  }
  return judge_reduced_precision(farthest, cosine, finite,
                                 relative(std::sqrt(between_batches.difference), std::sqrt(between_batches.reference)));
}

NumericResult judge_batches(double distance, double distance_within, bool finite) {
  constexpr auto kClass = NumericClass::reduced_precision;
  if (!finite) return result_of(kClass, kInfinity, 0, "numbers that are not finite");
  const double quotient = relative(distance, distance_within);
  return result_of(
      kClass, std::isnan(quotient) ? kInfinity : quotient, kBatchesDistanceFactor,
      fmt::format("mean gradients of {} batches, distance relative to that of two sets as written", kBatchesCompared));
}

NumericCheck::NumericCheck(Job& job, KeepGoing keep_going, ExactLimit exact_limit)
    : job_(job), keep_going_(std::move(keep_going)), exact_limit_(std::move(exact_limit)) {}

std::int64_t NumericCheck::steps_needed(NumericClass numeric_class, const Settings& reference) const {
  const bool known = reference == reference_;
  if (numeric_class == NumericClass::bit_equal) return known && hash_ ? kBitEqualSteps : 2 * kBitEqualSteps;
  return 2 * kCheckedBatches - (known ? static_cast<std::int64_t>(fingerprints_.size()) : 0);
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
  if (static_cast<std::int64_t>(fingerprints_.size()) < kCheckedBatches) switch_to(job_, reference);
  for (auto batch = static_cast<std::int64_t>(fingerprints_.size()); batch < kCheckedBatches; ++batch) {
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
  const double wanted_s = kCheckedBatches * kExactCost * fingerprint_s_;
  if (wanted_s > seconds_max) {
    exact_tried_ = true;
    why_not_exact_ = fmt::format("{} batches in float64 are estimated to take {:.2g} s, and {:.2g} s are given to them",
                                 kCheckedBatches, wanted_s, seconds_max);
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
  while (static_cast<std::int64_t>(exact_.size()) < kCheckedBatches) {
    if (!keep_going_()) return false;
    ExactResult result = job_.exact_fingerprint(static_cast<std::int64_t>(exact_.size()));
    if (!result.fingerprint) {
      why_not_exact_ = std::move(result.why_not);
      return false;
    }
    exact_.push_back(std::move(*result.fingerprint));
    const double spent_s = exact_limit_.clock() - begin_s;
    const double left = static_cast<double>(kCheckedBatches) - static_cast<double>(exact_.size());
    if (left > 0 && spent_s * (1 + left / static_cast<double>(exact_.size())) > seconds_max) {
      why_not_exact_ = fmt::format("{} of {} batches in float64 took {:.2g} s, and {:.2g} s are given to all",
                                   exact_.size(), kCheckedBatches, spent_s, seconds_max);
      return false;
    }
  }
  return true;
}

std::optional<NumericResult> NumericCheck::check(NumericClass numeric_class, const Settings& candidate) {
  if (numeric_class == NumericClass::bit_equal) return check_bits(candidate);
  HEADRACE_CHECK(static_cast<std::int64_t>(fingerprints_.size()) == kCheckedBatches, "the reference is not prepared");

  std::vector<Fingerprint> found;
  switch_to(job_, candidate);
  for (std::int64_t batch = 0; batch < kCheckedBatches; ++batch) {
    if (!keep_going_()) return std::nullopt;
    found.push_back(job_.fingerprint(batch));
  }
  if (numeric_class == NumericClass::reduced_precision) return compare_reduced_precision(fingerprints_, found);
  const double update_difference = job_.update_difference(reference_, candidate);
  std::string why_not = why_not_exact_;
  if (!exact_.empty()) {
    ExactComparison compared = compare_with_exact(exact_, fingerprints_, found, update_difference);
    if (compared.result) return *compared.result;
    why_not = std::move(compared.why_not);
  }
  NumericResult result = compare_rounding(fingerprints_, found, update_difference);
  result.why_not_float64 = std::move(why_not);
  return result;
}

std::int64_t NumericCheck::steps_needed_for_batches() const {
  return (batches_as_written_ ? 1 : 3) * kBatchesCompared;
}

bool NumericCheck::prepare_batches() {
  if (batches_as_written_) return true;
  switch_to(job_, {});
  MeanGradient first, all;
  for (std::int64_t batch = 0; batch < 2 * kBatchesCompared; ++batch) {
    if (!keep_going_()) return false;
    const Fingerprint found = job_.fingerprint_as_loaded(batch);
    if (batch < kBatchesCompared) first.add(found);
    all.add(found);
  }
  batches_as_written_ = BatchesAsWritten{std::move(first), all.distance_of_sets(kBatchesCompared)};
  return true;
}

std::optional<NumericResult> NumericCheck::check_batches(NumericClass numeric_class, const Settings& candidate) {
  HEADRACE_CHECK(batches_as_written_.has_value(), "the batches as written are not prepared");
  switch_to(job_, candidate);
  MeanGradient found;
  for (std::int64_t batch = 0; batch < kBatchesCompared; ++batch) {
    if (!keep_going_()) return std::nullopt;
    found.add(job_.fingerprint_as_loaded(batch));
  }
  NumericResult result = judge_batches(distance(found, batches_as_written_->mean), batches_as_written_->distance_within,
                                       found.is_finite());
  result.numeric_class = numeric_class;
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

}  // namespace headrace
