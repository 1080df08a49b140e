// What changes that take turns together gain each, from all their pairs at once: a regression of the pairs' log ratios
// on the turns, pair by pair (recursive least squares). Each effect is taken to be about 0 until pairs say otherwise.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace headrace {

// Changes are numbers below `count`. An estimate, which proves nothing.
class JointEffects {
 public:
  struct Turn {
    std::size_t change;
    double sign;  // 1: a gain of its makes the log ratio larger; -1: smaller.
  };

  explicit JointEffects(std::size_t count);
  double of(std::size_t change) const { return effects_[change]; }  // Of log time; positive: it gains.
  double expected(std::span<const Turn> turns) const;               // Log ratio of a pair.
  // Takes count * turns steps.
  void add(std::span<const Turn> turns, double log_ratio);
  // The settings below the changes are others now: what was found is where it begins, and as uncertain as at first.
  void doubt();

 private:
  double& covariance(std::size_t one, std::size_t other) { return covariances_[one * effects_.size() + other]; }

  std::vector<double> effects_;
  std::vector<double> covariances_;  // Of what is not known of them.
};

}  // namespace headrace
