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

namespace headrace {

inline constexpr std::int64_t kRoundingBatches = 5;
inline constexpr std::int64_t kDirectionBatches = 8;
inline constexpr std::int64_t kBitEqualSteps = 5;
inline constexpr int kShortRunSeeds = 3;
inline constexpr std::int64_t kShortRunStepsMin = 20;
inline constexpr double kErrorFactor = 4;
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

// Class reduced_precision, first half: 1 - the mean cosine between gradients, at most 0.1.
NumericResult compare_direction(std::span<const Fingerprint> reference, std::span<const Fingerprint> candidate);

// Second half. Each argument holds what short runs have learned, as a loss, one run a seed. The reference's span
// a band from their smallest to their largest, widened at both ends by its own width, or by 2 % of its middle where
// that is more: three seeds show little of a spread, and every run of the candidate must lie inside. The figure is the
// distance of the farthest one from the band's middle, in half widths of the widened band.
NumericResult compare_losses(std::span<const double> reference, std::span<const double> candidate);
// For a job whose samples of the last steps are the same whatever the settings.
double mean_of_last_tenth(std::span<const double> losses);

// Runs these checks on a job. What the reference gives is kept until another reference is prepared: up to eight
// gradients of the whole model in memory. Those of the float64 run, five in float64, are made once and stay.
class NumericCheck {
 public:
  // Asked between pieces of work; false ends a check early, without a result.
  using KeepGoing = std::function<bool()>;

  // What a float64 run of kRoundingBatches may take. Without a clock there is none.
  struct ExactLimit {
    std::function<double()> clock;  // Monotonic seconds.
    std::function<double()> seconds_max;
  };

  NumericCheck(Job& job, std::uint64_t seed, KeepGoing keep_going, ExactLimit exact_limit = {});

  // How many steps' worth of time the cheap check of this class takes, reference included where it is not known yet.
  std::int64_t steps_needed(NumericClass numeric_class, const Settings& reference) const;

  // Measures on the reference what `check` and `check_losses` compare with. False: ended early.
  bool prepare(NumericClass numeric_class, const Settings& reference);
  // The cheap check, before any timing. For reduced_precision the gradients' direction only.
  std::optional<NumericResult> check(NumericClass numeric_class, const Settings& candidate);

  // Short runs are long, so that they come last, and the reference's are made once, of the length given first.
  bool has_short_runs() const noexcept { return !reference_losses_.empty(); }
  std::int64_t short_run_steps() const noexcept { return short_run_steps_; }
  bool prepare_short_runs(const Settings& reference, std::int64_t steps);
  std::optional<NumericResult> check_losses(const Settings& candidate);

 private:
  bool prepare_exact();
  bool run_exact(double seconds_max);
  std::optional<NumericResult> check_bits(const Settings& candidate);
  std::optional<std::vector<double>> short_runs(const Settings& settings);
  std::uint64_t hash_after_steps(const Settings& settings);

  Job& job_;
  std::uint64_t seed_;
  KeepGoing keep_going_;
  Settings reference_;
  std::vector<Fingerprint> fingerprints_;
  double fingerprint_s_ = 0;  // That the newest one took; 0 without a clock.
  ExactLimit exact_limit_;
  std::vector<ExactFingerprint> exact_;  // Empty: why_not_exact_ says why.
  bool exact_tried_ = false;
  std::string why_not_exact_;
  std::optional<std::uint64_t> hash_;
  std::int64_t short_run_steps_ = 0;
  std::vector<double> reference_losses_;
};

}  // namespace headrace
