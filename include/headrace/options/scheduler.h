// One learning-rate schedule: a class of torch.optim.lr_scheduler and its parameters.
#pragma once

#include <headrace/options.h>
#include <headrace/options/scheduler_names.h>

#include <concepts>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace headrace {

// Names, meanings and defaults are torch's. Where classes have unlike defaults, 0 stands for the class's own, and a
// length of 0 for the whole run. Lengths are in what the schedule is stepped by, updates or epochs.
struct SchedulerOptions {
  LrSchedulerName name = LrSchedulerName::none;
  double factor = 0.0;                            // ConstantLR: 1/3; ReduceLROnPlateau: 0.1.
  std::int64_t total_iters = 5;                   // ConstantLR, LinearLR, PolynomialLR.
  double start_factor = 1.0 / 3;                  // LinearLR.
  double end_factor = 1.0;                        // LinearLR.
  std::int64_t step_size = 30;                    // StepLR.
  double gamma = 0.0;                             // StepLR, MultiStepLR: 0.1; CyclicLR: 1; ExponentialLR has none.
  std::vector<std::int64_t> milestones{};         // MultiStepLR, SequentialLR: each above the last.
  double power = 1.0;                             // PolynomialLR.
  std::int64_t T_max = 0;                         // CosineAnnealingLR.
  double eta_min = 0.0;                           // CosineAnnealingLR, CosineAnnealingWarmRestarts.
  std::int64_t T_0 = 0;                           // CosineAnnealingWarmRestarts, which has no default for it.
  std::int64_t T_mult = 1;                        // CosineAnnealingWarmRestarts.
  double base_lr = 0.0;                           // CyclicLR.
  double max_lr = 0.0;                            // CyclicLR, OneCycleLR; 0: the optimizer's.
  std::int64_t step_size_up = 2000;               // CyclicLR.
  std::int64_t step_size_down = 0;                // CyclicLR; 0: step_size_up.
  SchedulerMode mode = SchedulerMode::automatic;  // CyclicLR: triangular; ReduceLROnPlateau: min.
  bool cycle_momentum = true;                     // CyclicLR, OneCycleLR.
  double base_momentum = 0.0;                     // CyclicLR: 0.8; OneCycleLR: 0.85.
  double max_momentum = 0.0;                      // CyclicLR: 0.9; OneCycleLR: 0.95.
  std::int64_t total_steps = 0;                   // OneCycleLR.
  double pct_start = 0.3;                         // OneCycleLR.
  AnnealStrategy anneal_strategy = AnnealStrategy::cos;  // OneCycleLR.
  double div_factor = 25.0;                              // OneCycleLR.
  double final_div_factor = 1e4;                         // OneCycleLR.
  bool three_phase = false;                              // OneCycleLR.
  std::int64_t patience = 10;                            // This and the rest: ReduceLROnPlateau.
  double threshold = 1e-4;
  ThresholdMode threshold_mode = ThresholdMode::rel;
  std::int64_t cooldown = 0;
  double min_lr = 0.0;
  double eps = 1e-8;
};

// Of whatever is a SchedulerOptions, the fields of that alone.
template <class Visitor, class Options>
requires std::derived_from<std::remove_const_t<Options>, SchedulerOptions>
void describe_scheduler(Visitor& visit, Options& o) {
  const Range<std::int64_t> length{1, 100'000'000}, length_or_none{0, 100'000'000};
  const Range<double> share{0.0, 1.0}, rate{0.0, 1e3};
  visit("name", o.name, "The schedule, a class of torch.optim.lr_scheduler; none keeps the optimizer's lr.");
  visit("factor", o.factor, share,
        "What lr is multiplied with: before total_iters (ConstantLR, where 0 is 1/3), at each reduction "
        "(ReduceLROnPlateau, where 0 is 0.1).");
  visit("total_iters", o.total_iters, length,
        "Steps of the schedule until lr is whole (ConstantLR), end_factor (LinearLR) or 0 (PolynomialLR) is reached.");
  visit("start_factor", o.start_factor, Range<double>{1e-12, 1.0}, "Of lr, at the beginning (LinearLR).");
  visit("end_factor", o.end_factor, share, "Of lr, at the end (LinearLR).");
  visit("step_size", o.step_size, length, "Steps of the schedule between two falls of lr (StepLR).");
  visit(
      "gamma", o.gamma, rate,
      "What lr is multiplied with at each fall (StepLR, MultiStepLR, where 0 is 0.1) or step (ExponentialLR), and the "
      "height of a cycle at each step (CyclicLR with exp_range, where 0 is 1).");
  visit("milestones", o.milestones, length,
        "Steps of the schedule after which lr falls (MultiStepLR) or the next schedule begins (SequentialLR), rising.");
  visit("power", o.power, Range<double>{0.0, 1e3}, "Of the polynomial (PolynomialLR).");
  visit("T_max", o.T_max, length_or_none,
        "Steps of the schedule from lr down to eta_min; 0 is what the run has, to end at eta_min (CosineAnnealingLR).");
  visit("eta_min", o.eta_min, rate, "Lowest lr (CosineAnnealingLR, CosineAnnealingWarmRestarts).");
  visit("T_0", o.T_0, length_or_none, "Steps of the schedule until the first restart (CosineAnnealingWarmRestarts).");
  visit("T_mult", o.T_mult, Range<std::int64_t>{1, 1000},
        "How much longer each period is than the last (CosineAnnealingWarmRestarts).");
  visit("base_lr", o.base_lr, rate, "Lowest lr of a cycle (CyclicLR).");
  visit("max_lr", o.max_lr, rate, "Highest lr; 0 is the optimizer's (CyclicLR, OneCycleLR).");
  visit("step_size_up", o.step_size_up, length, "Steps of the schedule from base_lr to max_lr (CyclicLR).");
  visit("step_size_down", o.step_size_down, length_or_none, "And back; 0 is step_size_up (CyclicLR).");
  visit("mode", o.mode,
        "CyclicLR: triangular, which auto is, triangular2 or exp_range. ReduceLROnPlateau: whether a metric of which "
        "less is better is to fall (min), or one to rise of which more is better (max); auto is min, in Python's fit() "
        "as its monitor has it. In a recipe the metric is val's loss, with max its accuracy.");
  visit("cycle_momentum", o.cycle_momentum,
        "Move the optimizer's momentum, or the first of its betas, against lr (CyclicLR, OneCycleLR).");
  visit("base_momentum", o.base_momentum, Range<double>{0.0, 0.999999},
        "Momentum at the highest lr; 0 is 0.8 (CyclicLR) or 0.85 (OneCycleLR).");
  visit("max_momentum", o.max_momentum, Range<double>{0.0, 0.999999},
        "Momentum at the lowest lr; 0 is 0.9 (CyclicLR) or 0.95 (OneCycleLR).");
  visit("total_steps", o.total_steps, length_or_none,
        "Length of the cycle; 0 is what the run has, below which a recipe's must not be (OneCycleLR).");
  visit("pct_start", o.pct_start, share, "Share of the cycle in which lr rises (OneCycleLR).");
  visit("anneal_strategy", o.anneal_strategy, "How lr moves: cos or linear (OneCycleLR).");
  visit("div_factor", o.div_factor, Range<double>{1e-6, 1e12}, "lr begins at max_lr / div_factor (OneCycleLR).");
  visit("final_div_factor", o.final_div_factor, Range<double>{1e-6, 1e12},
        "lr ends at this share of where it began: 1 / final_div_factor (OneCycleLR).");
  visit("three_phase", o.three_phase, "Fall as far as lr rose, then to the end (OneCycleLR).");
  visit("patience", o.patience, Range<std::int64_t>{0, 100'000},
        "Epochs in a row without a better metric that are let pass (ReduceLROnPlateau, which in a recipe wants a split "
        "val).");
  visit("threshold", o.threshold, rate, "By how much a metric must be better to count as such (ReduceLROnPlateau).");
  visit("threshold_mode", o.threshold_mode, "threshold is a share of the best (rel), or a number (abs).");
  visit("cooldown", o.cooldown, Range<std::int64_t>{0, 100'000},
        "Epochs after a reduction that do not count (ReduceLROnPlateau).");
  visit("min_lr", o.min_lr, rate,
        "Below which lr is not reduced; a group's lr_mult multiplies this, too (ReduceLROnPlateau).");
  visit("eps", o.eps, rate,
        "A reduction of lr, before a group's lr_mult, by no more than this is left out (ReduceLROnPlateau).");
}

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, SchedulerOptions>
void describe(Visitor& visit, Options& o) {
  describe_scheduler(visit, o);
}

}  // namespace headrace
