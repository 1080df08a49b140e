#include "insight/tune/mean_gradient.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "core/base/fail.h"

namespace headrace {
namespace {

void check_size(const std::string& name, std::size_t found, std::size_t wanted) {
  if (found == wanted) return;
  fail(ErrorCode::internal, "tune: the gradient of {} has {} values where another batch has {}", name, found, wanted);
}

}  // namespace

void MeanGradient::add(const Fingerprint& batch) {
  ++batches_;
  losses_are_finite_ = losses_are_finite_ && std::isfinite(batch.loss);
  for (const auto& gradient : batch.gradients) means_.try_emplace(gradient.name, gradient.values.size(), 0.0);
  for (auto& [name, mean] : means_) {
    const auto gradient = std::find_if(batch.gradients.begin(), batch.gradients.end(),
                                       [&name = name](const auto& one) { return one.name == name; });
    const bool is_there = gradient != batch.gradients.end();
    if (is_there) check_size(name, gradient->values.size(), mean.size());
    for (std::size_t i = 0; i < mean.size(); ++i) {
      const double value = is_there ? static_cast<double>(gradient->values[i]) : 0;
      const double step = value - mean[i];
      mean[i] += step / static_cast<double>(batches_);
      squares_ += step * (value - mean[i]);
    }
  }
}

bool MeanGradient::is_finite() const {
  return losses_are_finite_ && std::isfinite(squares_);  // An infinite value leaves a NaN there.
}

double MeanGradient::distance_of_sets(std::int64_t batches) const {
  HEADRACE_CHECK(batches > 0 && batches_ >= 2 * batches, "{} of {}", batches, batches_);
  return std::sqrt(2 * squares_ / static_cast<double>(batches_ - 1) / static_cast<double>(batches));
}

double distance(const MeanGradient& a, const MeanGradient& b) {
  double squares = 0;
  for (const auto& [name, mean] : a.means_) {
    const auto other = b.means_.find(name);
    const bool is_in_both = other != b.means_.end();
    if (is_in_both) check_size(name, other->second.size(), mean.size());
    for (std::size_t i = 0; i < mean.size(); ++i) {
      const double difference = mean[i] - (is_in_both ? other->second[i] : 0);
      squares += difference * difference;
    }
  }
  for (const auto& [name, mean] : b.means_) {
    if (a.means_.contains(name)) continue;
    for (const double value : mean) squares += value * value;
  }
  return std::sqrt(squares);
}

}  // namespace headrace
