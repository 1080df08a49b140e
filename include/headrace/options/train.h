// The training loop and its evaluation.
#pragma once

#include <headrace/options.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <type_traits>

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
  double loss_scale = 0.0;            // As torch.amp.GradScaler: what it begins with; 0: none.
  bool deterministic = false;         // at::globalContext().setDeterministicAlgorithms.
  double checkpoint_every_s = 300;    // Seconds between checkpoints within an epoch; 0: at epoch ends alone.
  std::int64_t keep_checkpoints = 2;  // Newest ones kept in --out, beside the best.
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, TrainOptions>
void describe(Visitor& visit, Options& o) {
  visit("epochs", o.epochs, Range<std::int64_t>{1, 100000}, "How many times to go through the training data.");
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

}  // namespace headrace
