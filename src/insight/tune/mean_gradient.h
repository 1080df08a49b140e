// The mean gradient of several batches, and how much their gradients differ.
#pragma once

#include <headrace/job.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace headrace {

// Takes batches one after the other and keeps one gradient of the whole model in float64, whatever their number
// (Welford, "Note on a method for calculating corrected sums of squares and products", Technometrics 1962).
class MeanGradient {
 public:
  // A tensor that this batch lacks, or earlier ones lacked, counts as zeros there. Error{internal}: it has another
  // number of values than before.
  void add(const Fingerprint& batch);

  // All losses and gradients so far are.
  bool is_finite() const;
  // Of the mean gradients of two disjoint sets of `batches` each out of the batches so far, at least twice as many: the
  // L2 distance, root mean square over all ways to choose the sets, which is sqrt(2 v / batches) with v the unbiased
  // variance from batch to batch, summed over all values.
  double distance_of_sets(std::int64_t batches) const;

  // L2. Error{internal}: a tensor of both has another number of values in each.
  friend double distance(const MeanGradient& a, const MeanGradient& b);

 private:
  std::map<std::string, std::vector<double>> means_;
  std::int64_t batches_ = 0;
  double squares_ = 0;  // Of the batches' distances from their mean, summed.
  bool losses_are_finite_ = true;
};

}  // namespace headrace
