// What a schedule's options choose from, by the names of torch.optim.lr_scheduler.
#pragma once

#include <headrace/options.h>

#include <array>

namespace headrace {

// Classes of torch.optim.lr_scheduler.
enum class LrSchedulerName {
  none,
  ConstantLR,
  LinearLR,
  StepLR,
  MultiStepLR,
  ExponentialLR,
  PolynomialLR,
  CosineAnnealingLR,
  CosineAnnealingWarmRestarts,
  CyclicLR,
  OneCycleLR,
  ReduceLROnPlateau,
  SequentialLR,
  ChainedScheduler
};
constexpr auto choices(LrSchedulerName) {
  return std::array{
      Choice<LrSchedulerName>{LrSchedulerName::none, "none"},
      Choice<LrSchedulerName>{LrSchedulerName::ConstantLR, "ConstantLR"},
      Choice<LrSchedulerName>{LrSchedulerName::LinearLR, "LinearLR"},
      Choice<LrSchedulerName>{LrSchedulerName::StepLR, "StepLR"},
      Choice<LrSchedulerName>{LrSchedulerName::MultiStepLR, "MultiStepLR"},
      Choice<LrSchedulerName>{LrSchedulerName::ExponentialLR, "ExponentialLR"},
      Choice<LrSchedulerName>{LrSchedulerName::PolynomialLR, "PolynomialLR"},
      Choice<LrSchedulerName>{LrSchedulerName::CosineAnnealingLR, "CosineAnnealingLR"},
      Choice<LrSchedulerName>{LrSchedulerName::CosineAnnealingWarmRestarts, "CosineAnnealingWarmRestarts"},
      Choice<LrSchedulerName>{LrSchedulerName::CyclicLR, "CyclicLR"},
      Choice<LrSchedulerName>{LrSchedulerName::OneCycleLR, "OneCycleLR"},
      Choice<LrSchedulerName>{LrSchedulerName::ReduceLROnPlateau, "ReduceLROnPlateau"},
      Choice<LrSchedulerName>{LrSchedulerName::SequentialLR, "SequentialLR"},
      Choice<LrSchedulerName>{LrSchedulerName::ChainedScheduler, "ChainedScheduler"}};
}

// `mode` is a word of two classes: triangular to exp_range are CyclicLR's, min and max ReduceLROnPlateau's.
enum class SchedulerMode { automatic, triangular, triangular2, exp_range, min, max };
constexpr auto choices(SchedulerMode) {
  return std::array{Choice<SchedulerMode>{SchedulerMode::automatic, "auto"},
                    Choice<SchedulerMode>{SchedulerMode::triangular, "triangular"},
                    Choice<SchedulerMode>{SchedulerMode::triangular2, "triangular2"},
                    Choice<SchedulerMode>{SchedulerMode::exp_range, "exp_range"},
                    Choice<SchedulerMode>{SchedulerMode::min, "min"},
                    Choice<SchedulerMode>{SchedulerMode::max, "max"}};
}

enum class AnnealStrategy { cos, linear };
constexpr auto choices(AnnealStrategy) {
  return std::array{Choice<AnnealStrategy>{AnnealStrategy::cos, "cos"},
                    Choice<AnnealStrategy>{AnnealStrategy::linear, "linear"}};
}

enum class ThresholdMode { rel, abs };
constexpr auto choices(ThresholdMode) {
  return std::array{Choice<ThresholdMode>{ThresholdMode::rel, "rel"}, Choice<ThresholdMode>{ThresholdMode::abs, "abs"}};
}

enum class SchedulerInterval { automatic, step, epoch };
constexpr auto choices(SchedulerInterval) {
  return std::array{Choice<SchedulerInterval>{SchedulerInterval::automatic, "auto"},
                    Choice<SchedulerInterval>{SchedulerInterval::step, "step"},
                    Choice<SchedulerInterval>{SchedulerInterval::epoch, "epoch"}};
}

}  // namespace headrace
