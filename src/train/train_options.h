// The training loop, the optimizer and the learning-rate schedule.
#pragma once

#include <headrace/options.h>

namespace headrace {

enum class Precision { fp32, bf16 };
constexpr auto choices(Precision) {
  return std::array{Choice<Precision>{Precision::fp32, "fp32"}, Choice<Precision>{Precision::bf16, "bf16"}};
}

struct TrainOptions {
  std::int64_t epochs = 4;
  Precision precision = Precision::fp32;  // bf16: autocast; parameters and optimizer stay float32. Live knob.
  std::int64_t accumulate = 1;            // Micro-batches in one optimizer step.
  double clip_norm = 0.0;                 // Largest L2 norm of all gradients of an optimizer step; 0: no clipping.
  bool deterministic = false;             // at::globalContext().setDeterministicAlgorithms.
  std::int64_t keep_checkpoints = 2;      // Newest ones kept in --out.
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, TrainOptions>
void describe(Visitor& visit, Options& o) {
  visit("epochs", o.epochs, Range<std::int64_t>{1, 100000}, "Passes over the training data.");
  visit("precision", o.precision, "fp32, or bf16 autocast with float32 parameters.");
  visit("accumulate", o.accumulate, Range<std::int64_t>{1, 4096},
        "Micro-batches whose gradients make one optimizer step.");
  visit("clip_norm", o.clip_norm, Range<double>{0.0, 1e6},
        "Largest L2 norm of all gradients together; 0 does not clip.");
  visit("deterministic", o.deterministic, "Refuse operators without a deterministic form.");
  visit("keep_checkpoints", o.keep_checkpoints, Range<std::int64_t>{1, 1000},
        "Newest checkpoints kept in the run folder.");
}

struct EvalOptions {
  double at_least = 0.0;  // Test accuracy below which `headrace eval` exits with 3.
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, EvalOptions>
void describe(Visitor& visit, Options& o) {
  visit("at_least", o.at_least, Range<double>{0.0, 1.0}, "Test accuracy below which headrace eval exits with 3.");
}

enum class OptimizerName { adamw };
constexpr auto choices(OptimizerName) {
  return std::array{Choice<OptimizerName>{OptimizerName::adamw, "adamw"}};
}

enum class OptimizerImplementation { plain, foreach_, fused };
constexpr auto choices(OptimizerImplementation) {
  return std::array{Choice<OptimizerImplementation>{OptimizerImplementation::plain, "plain"},
                    Choice<OptimizerImplementation>{OptimizerImplementation::foreach_, "foreach"},
                    Choice<OptimizerImplementation>{OptimizerImplementation::fused, "fused"}};
}

struct OptimizerOptions {
  OptimizerName name = OptimizerName::adamw;
  double rate = 1e-3;
  double weight_decay = 1e-2;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  OptimizerImplementation implementation = OptimizerImplementation::plain;  // Live knob.
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, OptimizerOptions>
void describe(Visitor& visit, Options& o) {
  visit("name", o.name, "The optimizer: AdamW (Loshchilov and Hutter 2019).");
  visit("rate", o.rate, Range<double>{0.0, 1e3}, "Learning rate, before the schedule.");
  visit("weight_decay", o.weight_decay, Range<double>{0.0, 1e3}, "Decoupled weight decay.");
  visit("beta1", o.beta1, Range<double>{0.0, 0.999999}, "Decay of the gradient's running mean.");
  visit("beta2", o.beta2, Range<double>{0.0, 0.99999999}, "Decay of the squared gradient's running mean.");
  visit("epsilon", o.epsilon, Range<double>{0.0, 1.0}, "Added to the denominator.");
  visit("implementation", o.implementation,
        "plain runs operator by operator, foreach over lists of tensors, fused in one kernel.");
}

enum class ScheduleName { constant, cosine };
constexpr auto choices(ScheduleName) {
  return std::array{Choice<ScheduleName>{ScheduleName::constant, "constant"},
                    Choice<ScheduleName>{ScheduleName::cosine, "cosine"}};
}

struct ScheduleOptions {
  ScheduleName name = ScheduleName::constant;
  std::int64_t warmup_steps = 0;  // Optimizer steps from rate/warmup_steps up to rate, linearly.
  double final_fraction = 0.0;    // Cosine ends at rate * final_fraction at the last step of the last epoch.
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, ScheduleOptions>
void describe(Visitor& visit, Options& o) {
  visit("name", o.name, "constant, or cosine from the rate down to rate x final_fraction over the whole run.");
  visit("warmup_steps", o.warmup_steps, Range<std::int64_t>{0, 10'000'000}, "Optimizer steps of linear warm-up.");
  visit("final_fraction", o.final_fraction, Range<double>{0.0, 1.0},
        "Share of the rate left at the end of a cosine schedule.");
}

}  // namespace headrace
