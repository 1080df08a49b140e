// The learning-rate schedule, in the words of torch.optim.lr_scheduler.
#pragma once

#include <headrace/options.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace headrace {

enum class LrSchedulerName { constant, cosine, step, multi_step };
constexpr auto choices(LrSchedulerName) {
  return std::array{Choice<LrSchedulerName>{LrSchedulerName::constant, "constant"},
                    Choice<LrSchedulerName>{LrSchedulerName::cosine, "cosine"},
                    Choice<LrSchedulerName>{LrSchedulerName::step, "step"},
                    Choice<LrSchedulerName>{LrSchedulerName::multi_step, "multi_step"}};
}

// Names and meanings are those of torch.optim.lr_scheduler, stepped once an epoch; cosine moves with every optimizer
// step, over the whole run.
struct LrSchedulerOptions {
  LrSchedulerName name = LrSchedulerName::constant;
  std::int64_t warmup_steps = 0;     // Optimizer steps from lr/warmup_steps up to lr, linearly.
  double eta_min = 0.0;              // cosine: learning rate at the last step of the last epoch.
  std::int64_t step_size = 30;       // step: epochs between two falls of the learning rate.
  double gamma = 0.1;                // step and multi_step: what the learning rate is multiplied with at each fall.
  std::vector<double> milestones{};  // multi_step: epochs done at a fall; whole numbers, each above the last.
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, LrSchedulerOptions>
void describe(Visitor& visit, Options& o) {
  visit("name", o.name,
        "constant; cosine (CosineAnnealingLR) from lr down to eta_min over the whole run; step (StepLR) and multi_step "
        "(MultiStepLR) multiply lr by gamma every step_size epochs or at the milestones.");
  visit("warmup_steps", o.warmup_steps, Range<std::int64_t>{0, 10'000'000}, "Optimizer steps of linear warm-up.");
  visit("eta_min", o.eta_min, Range<double>{0.0, 1e3}, "Learning rate at the end of a cosine schedule.");
  visit("step_size", o.step_size, Range<std::int64_t>{1, 100000},
        "Epochs between two falls of the learning rate (step).");
  visit("gamma", o.gamma, Range<double>{0.0, 1.0}, "Factor of the learning rate at each fall (step, multi_step).");
  visit("milestones", o.milestones, Range<double>{1.0, 1e5},
        "Epochs after which the learning rate falls, whole numbers that rise (multi_step).");
}

}  // namespace headrace
