// The training loop, the optimizer and the learning-rate schedule.
#pragma once

#include <headrace/options.h>

namespace headrace {

// Of the checkpoints that this build writes and reads.
inline constexpr const char* kCheckpointFormat = "headrace-checkpoint";
inline constexpr const char* kCheckpointVersion = "2";

enum class Precision { fp32, bf16 };
constexpr auto choices(Precision) {
  return std::array{Choice<Precision>{Precision::fp32, "fp32"}, Choice<Precision>{Precision::bf16, "bf16"}};
}

struct TrainOptions {
  std::int64_t epochs = 4;
  Precision precision = Precision::fp32;         // bf16: autocast; parameters and optimizer stay float32. Live knob.
  std::int64_t gradient_accumulation_steps = 1;  // Micro-batches in one optimizer step.
  double max_grad_norm = 0.0;         // Largest L2 norm of all gradients of an optimizer step; 0: no clipping.
  double loss_scale = 0.0;            // torch/numerics/loss_scale.h: what it begins with; 0: none.
  bool deterministic = false;         // at::globalContext().setDeterministicAlgorithms.
  double checkpoint_every_s = 300;    // Seconds between checkpoints within an epoch; 0: at epoch ends alone.
  std::int64_t keep_checkpoints = 2;  // Newest ones kept in --out, beside the best.
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, TrainOptions>
void describe(Visitor& visit, Options& o) {
  visit("epochs", o.epochs, Range<std::int64_t>{1, 100000}, "Passes over the training data.");
  visit("precision", o.precision, "fp32, or bf16 autocast with float32 parameters.");
  visit("gradient_accumulation_steps", o.gradient_accumulation_steps, Range<std::int64_t>{1, 4096},
        "Micro-batches whose gradients make one optimizer step.");
  visit("max_grad_norm", o.max_grad_norm, Range<double>{0.0, 1e6},
        "Largest L2 norm of all gradients together; 0 does not clip.");
  visit(
      "loss_scale", o.loss_scale, Range<double>{0.0, 1e30},
      "What the loss is multiplied with before backward, and the gradients divided by before clipping; 65536 is usual, "
      "0 is none. An update whose gradients are not finite is left out and halves it, 2000 good ones double it.");
  visit("deterministic", o.deterministic, "Refuse operators without a deterministic form.");
  visit("checkpoint_every_s", o.checkpoint_every_s, Range<double>{0.0, 1e6},
        "Seconds between checkpoints within an epoch, beside the one at its end; 0: at epoch ends alone.");
  visit("keep_checkpoints", o.keep_checkpoints, Range<std::int64_t>{1, 1000},
        "Newest checkpoints kept in the run folder, beside the best.");
}

enum class EvalSplit { automatic, val, test };
constexpr auto choices(EvalSplit) {
  return std::array{Choice<EvalSplit>{EvalSplit::automatic, "auto"}, Choice<EvalSplit>{EvalSplit::val, "val"},
                    Choice<EvalSplit>{EvalSplit::test, "test"}};
}

struct EvalOptions {
  EvalSplit split = EvalSplit::automatic;  // What `headrace eval` reads.
  double at_least = 0.0;                   // Accuracy below which it exits with 3.
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, EvalOptions>
void describe(Visitor& visit, Options& o) {
  visit("split", o.split, "What headrace eval reads: val, test, or auto, which is test where there is one, else val.");
  visit("at_least", o.at_least, Range<double>{0.0, 1.0}, "Accuracy below which headrace eval exits with 3.");
}

enum class OptimizerName { adamw, sgd };
constexpr auto choices(OptimizerName) {
  return std::array{Choice<OptimizerName>{OptimizerName::adamw, "adamw"},
                    Choice<OptimizerName>{OptimizerName::sgd, "sgd"}};
}

enum class OptimizerImplementation { plain, foreach_, fused };
constexpr auto choices(OptimizerImplementation) {
  return std::array{Choice<OptimizerImplementation>{OptimizerImplementation::plain, "plain"},
                    Choice<OptimizerImplementation>{OptimizerImplementation::foreach_, "foreach"},
                    Choice<OptimizerImplementation>{OptimizerImplementation::fused, "fused"}};
}

struct OptimizerOptions {
  OptimizerName name = OptimizerName::adamw;
  double lr = 1e-3;
  double weight_decay = 1e-2;
  std::vector<double> betas{0.9, 0.999};  // Two numbers.
  double eps = 1e-8;
  double momentum = 0.9;
  bool nesterov = false;
  Switch fused = Switch::off;    // Live knob.
  Switch foreach = Switch::off;  // Live knob. Not on together with `fused`.

  // What the two switches come to: the one that is on, else the first that is left to the program.
  OptimizerImplementation implementation() const noexcept {
    for (const Switch state : {Switch::on, Switch::automatic}) {
      if (fused == state) return OptimizerImplementation::fused;
      if (foreach == state) return OptimizerImplementation::foreach_;
    }
    return OptimizerImplementation::plain;
  }
  void set_implementation(OptimizerImplementation implementation) noexcept {
    fused = implementation == OptimizerImplementation::fused ? Switch::on : Switch::off;
    foreach
      = implementation == OptimizerImplementation::foreach_ ? Switch::on : Switch::off;
  }
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, OptimizerOptions>
void describe(Visitor& visit, Options& o) {
  visit("name", o.name, "The optimizer: AdamW (Loshchilov and Hutter 2019), or SGD with momentum.");
  visit("lr", o.lr, Range<double>{0.0, 1e3}, "Learning rate, before the schedule.");
  visit("weight_decay", o.weight_decay, Range<double>{0.0, 1e3},
        "Weight decay: adamw's is apart from the gradient, sgd's is added to it, where 1e-4 is usual.");
  visit("betas", o.betas, Range<double>{0.0, 0.99999999},
        "Two decay rates: of the running mean of the gradient and of its square (adamw).");
  visit("eps", o.eps, Range<double>{0.0, 1.0}, "Added to the denominator (adamw).");
  visit("momentum", o.momentum, Range<double>{0.0, 0.999999},
        "Share of the last update's direction that the next one keeps; 0 is plain gradient descent (sgd).");
  visit("nesterov", o.nesterov, "Nesterov's momentum: step from where the momentum leads (sgd).");
  visit("fused", o.fused,
        "Update all parameters in one kernel, as torch.optim's fused; auto uses it wherever there is such a kernel.");
  visit("foreach", o.foreach,
        "Update by operators over lists of tensors, as torch.optim's foreach. Without either, and with both false, one "
        "tensor after the other.");
}

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
  std::int64_t warmup_steps = 0;   // Optimizer steps from lr/warmup_steps up to lr, linearly.
  double eta_min = 0.0;            // cosine: learning rate at the last step of the last epoch.
  std::int64_t step_size = 30;     // step: epochs between two falls of the learning rate.
  double gamma = 0.1;              // step and multi_step: what the learning rate is multiplied with at each fall.
  std::vector<double> milestones;  // multi_step: epochs done at a fall; whole numbers, each above the last.
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, LrSchedulerOptions>
void describe(Visitor& visit, Options& o) {
  visit("name", o.name,
        "constant; cosine (CosineAnnealingLR) from lr down to eta_min over the whole run; step (StepLR) and multi_step "
        "(MultiStepLR) multiply lr by gamma every step_size epochs or at the milestones.");
  visit("warmup_steps", o.warmup_steps, Range<std::int64_t>{0, 10'000'000}, "Optimizer steps of linear warm-up.");
  visit("eta_min", o.eta_min, Range<double>{0.0, 1e3}, "Learning rate at the end of a cosine schedule.");
  visit("step_size", o.step_size, Range<std::int64_t>{1, 100000}, "Epochs between two falls of the rate (step).");
  visit("gamma", o.gamma, Range<double>{0.0, 1.0}, "Factor of the learning rate at each fall (step, multi_step).");
  visit("milestones", o.milestones, Range<double>{1.0, 1e5},
        "Epochs after which the learning rate falls, whole numbers that rise (multi_step).");
}

}  // namespace headrace
