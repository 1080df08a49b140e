#include "insight/compare/output_guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace headrace {
namespace {

constexpr double kDistanceMin = 1e-5;  // That rounding in another order makes.
constexpr double kOwnDistances = 4;
constexpr int kPairsIfAlike = 3, kPairsIfNot = 8;

}  // namespace

double output_distance(const std::vector<double>& old_outputs, const std::vector<double>& new_outputs) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (old_outputs.size() != new_outputs.size()) return infinity;
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < old_outputs.size(); ++i) {
    largest = std::max(largest, std::abs(old_outputs[i]));
    difference = std::max(difference, std::abs(new_outputs[i] - old_outputs[i]));
  }
  if (difference == 0) return 0;
  return largest == 0 ? infinity : difference / largest;
}

void OutputGuard::add(const std::vector<double>& old_outputs, const std::vector<double>& new_outputs) {
  if (old_outputs.empty()) return;
  if (new_outputs.size() != old_outputs.size() && missing_.empty()) {
    missing_ = fmt::format("NEW tells {} outputs, OLD {}", new_outputs.size(), old_outputs.size());
  }
  if (pairs_ == 0) low_ = high_ = old_outputs;
  ++pairs_;
  widen(old_outputs);
  distance_ = std::max(distance_, output_distance(old_outputs, new_outputs));
}

void OutputGuard::widen(const std::vector<double>& old_outputs) {
  if (old_outputs.size() != low_.size()) {
    own_distance_ = std::numeric_limits<double>::infinity();
    return;
  }
  double largest = 0, width = 0;
  for (std::size_t i = 0; i < low_.size(); ++i) {
    low_[i] = std::min(low_[i], old_outputs[i]);
    high_[i] = std::max(high_[i], old_outputs[i]);
    largest = std::max({largest, std::abs(low_[i]), std::abs(high_[i])});
    width = std::max(width, high_[i] - low_[i]);
  }
  if (width > 0) own_distance_ = std::max(own_distance_, width / largest);
}

int OutputGuard::pairs_wanted() const {
  return kOwnDistances * own_distance_ <= kDistanceMin ? kPairsIfAlike : kPairsIfNot;
}

bool OutputGuard::is_judged() const {
  return !missing_.empty() || pairs_ >= pairs_wanted();
}

std::string OutputGuard::fault() const {
  if (!missing_.empty()) return missing_;
  const double allowed = std::max(kDistanceMin, kOwnDistances * own_distance_);
  if (!is_judged() || distance_ <= allowed) return "";
  return fmt::format(
      "outputs of NEW differ by {:.2g} of the largest one; at most {:.2g} was wanted, as runs of OLD differ by {:.2g}",
      distance_, allowed, own_distance_);
}

void OutputGuard::tell(CompareVerdict& verdict) const {
  verdict.has_outputs = is_told() && is_judged();
  verdict.wrong_outputs = fault();
  if (!is_told() || is_judged()) return;
  verdict.remarks.push_back(
      fmt::format("outputs were not judged: {} pairs tell them, and as runs of OLD {} it takes {}", pairs_,
                  own_distance_ > 0 ? fmt::format("differ by {:.2g}", own_distance_) : "are alike", pairs_wanted()));
}

}  // namespace headrace
