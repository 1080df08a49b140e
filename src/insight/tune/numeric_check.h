// Whether a configuration computes what its reference computes, to the tolerance of its class.
//
// One step from one state, never two free-running loss curves: those part by percents for reasons of rounding alone. In
// every result `value` is at most `tolerance` when the check passed, whatever the measure.
#pragma once

#include <headrace/tune.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "insight/tune/mean_gradient.h"

namespace headrace {

inline constexpr std::int64_t kCheckedBatches = 5;  // Of classes rounding and reduced_precision.
inline constexpr std::int64_t kBitEqualSteps = 5;
inline constexpr double kErrorFactor = 4;
inline constexpr double kCallDistanceFactor = 0.5;
inline constexpr std::int64_t kBatchesCompared = 4;  // In each of the sets of judge_batches().
inline constexpr double kBatchesDistanceFactor = 1.5;
// A float64 batch is taken to cost so many of float32 until one is measured (1.8 to 4 on the demo's network,
// docs/decisions/0016).
inline constexpr double kExactCost = 4;

// Class rounding where there is a float64 run of the same batches: the candidate's error against it, the root mean
// square over the batches, is at most kErrorFactor times the reference's, or the floor where that is more. Loss: its
// relative error; gradients: relative L2 of all together, and of each tensor that holds at least 1e-3 of the norm. The
// floors: of the loss, kErrorFactor times what float32 loses in one plain sum over 1e5 values (2^-24 * sqrt(1e5)), as
// batch normalisation makes it in one layout and not in the other: a reference that sums in a better way, or is right
// by luck, would else refuse every honest change; of the gradients, the fixed figures below. The update on the same
// gradients within 1e-6.
// nullopt, with why: the reference itself is further from float64 than the fixed figures allow, so that a multiple of
// its error would let anything pass, or the float64 run has other gradients.
struct ExactComparison {
  std::optional<NumericResult> result;
  std::string why_not;
};
ExactComparison compare_with_exact(std::span<const ExactFingerprint> exact, std::span<const Fingerprint> reference,
                                   std::span<const Fingerprint> candidate, double update_difference);

// Class rounding elsewhere: the loss of each batch within 1e-5 relative, all gradients together within 1e-2 relative
// L2, each tensor that holds at least 1e-3 of the gradient's norm within 0.1 (a bias before BatchNorm holds rounding
// noise only), the update on the same gradients within 1e-6. Reports the figure that is largest against its tolerance.
NumericResult compare_rounding(std::span<const Fingerprint> reference, std::span<const Fingerprint> candidate,
                               double update_difference);

// Class reduced_precision. The cosine between the gradients is at least 0.9, their relative L2 distance at most
// kCallDistanceFactor times `distance_between_calls`, the relative L2 distance between the reference's own gradients of
// two batches, and all of the candidate's numbers are finite. No fixed bound would do: bfloat16 moves gradients by
// 0.2 % (a character LSTM) to 25 % (ResNet-18 at batch 8), and what training bears is the noise that it has from batch
// to batch. Where the reference's batches do not differ, only equal gradients pass. The result tells of the cosine
// where that fails, else of the distance.
NumericResult judge_reduced_precision(double relative_l2, double cosine, bool finite, double distance_between_calls);
// The same of several batches: of the one that is farthest and of the one that is turned most. The distance between
// neighbouring batches of the reference is the root mean square, relative to theirs.
NumericResult compare_reduced_precision(std::span<const Fingerprint> reference, std::span<const Fingerprint> candidate);

// Of a change to what batches hold, whatever its class: on the same batches it has nothing to show. `distance`: L2,
// between the mean gradient of kBatchesCompared batches as the change loads them and that of as many as written.
// `distance_within`: that of two disjoint sets of as many as written. It passes where the first is at most
// kBatchesDistanceFactor times the second and all of the change's numbers are finite. The result tells the quotient.
//
// Both distances estimate the same one, sqrt(2 v / kBatchesCompared) with v the variance of a batch's gradient summed
// over all values, where batches come from one distribution; where they correspond, sample by sample, the first is
// smaller. Their quotient is then 1 give or take 0.73 / sqrt(d), with d the effective dimension of that noise (the
// trace of its covariance squared, over the trace of its square): with distance_within from all ways to divide the 8
// batches as written, honest gaussian noise is refused in 17 % of cases where d is 1, 8 % at 4, 2 % at 10, 0.05 % at
// 25; from one way to divide them in 36, 19, 8 and 1.1 %. A change that moves the mean gradient by s times the
// deviation sqrt(v) of one batch has a quotient of about sqrt(1 + 2 s^2).
//
// It cannot see what moves the mean gradient by less than 0.8 of that deviation, noise that grows less than 1.9 times,
// what shows only later in a run or at other weights, and what befalls one sample in hundreds.
NumericResult judge_batches(double distance, double distance_within, bool finite);

// Runs these checks on a job, all of them before anything is timed. What the reference gives is kept until another
// reference is prepared: up to five gradients of the whole model in memory. Those of the float64 run, five in float64,
// and the mean gradient of batches as written, another in float64, are made once and stay.
class NumericCheck {
 public:
  // Asked between pieces of work; false ends a check early, without a result.
  using KeepGoing = std::function<bool()>;

  // What a float64 run of kCheckedBatches may take. Without a clock there is none.
  struct ExactLimit {
    std::function<double()> clock;  // Monotonic seconds.
    std::function<double()> seconds_max;
  };

  NumericCheck(Job& job, KeepGoing keep_going, ExactLimit exact_limit = {});

  // How many steps' worth of time the check of this class takes, reference included where it is not known yet.
  std::int64_t steps_needed(NumericClass numeric_class, const Settings& reference) const;

  // Measures on the reference what `check` compares with. False: ended early.
  bool prepare(NumericClass numeric_class, const Settings& reference);
  std::optional<NumericResult> check(NumericClass numeric_class, const Settings& candidate);

  // The same for judge_batches(), whose reference is always the job as written. The result is told as one of
  // `numeric_class`.
  std::int64_t steps_needed_for_batches() const;
  bool prepare_batches();
  std::optional<NumericResult> check_batches(NumericClass numeric_class, const Settings& candidate);

 private:
  struct BatchesAsWritten {
    MeanGradient mean;
    double distance_within;
  };
  bool prepare_exact();
  bool run_exact(double seconds_max);
  std::optional<NumericResult> check_bits(const Settings& candidate);
  std::uint64_t hash_after_steps(const Settings& settings);

  Job& job_;
  KeepGoing keep_going_;
  Settings reference_;
  std::vector<Fingerprint> fingerprints_;
  double fingerprint_s_ = 0;  // That the newest one took; 0 without a clock.
  ExactLimit exact_limit_;
  std::vector<ExactFingerprint> exact_;  // Empty: why_not_exact_ says why.
  bool exact_tried_ = false;
  std::string why_not_exact_;
  std::optional<std::uint64_t> hash_;
  std::optional<BatchesAsWritten> batches_as_written_;
};

}  // namespace headrace
