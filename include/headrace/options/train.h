// The training loop.
#pragma once

#include <headrace/options.h>
#include <headrace/options/scheduler_names.h>
#include <headrace/options/step_guard.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <type_traits>

namespace headrace {

// Of the checkpoints that this build writes and reads.
inline constexpr const char* kCheckpointFormat = "headrace-checkpoint";
inline constexpr const char* kCheckpointVersion = "2";

enum class Precision { fp32, bf16, fp16 };
constexpr auto choices(Precision) {
  return std::array{Choice<Precision>{Precision::fp32, "fp32"}, Choice<Precision>{Precision::bf16, "bf16"},
                    Choice<Precision>{Precision::fp16, "fp16"}};
}

enum class GradNormType { l2, inf };
constexpr auto choices(GradNormType) {
  return std::array{Choice<GradNormType>{GradNormType::l2, "l2"}, Choice<GradNormType>{GradNormType::inf, "inf"}};
}

enum class GradNormPer { model, group, layer };
constexpr auto choices(GradNormPer) {
  return std::array{Choice<GradNormPer>{GradNormPer::model, "model"}, Choice<GradNormPer>{GradNormPer::group, "group"},
                    Choice<GradNormPer>{GradNormPer::layer, "layer"}};
}

// What a step does where memory runs out in its forward or backward.
enum class OutOfMemoryPolicy { raise, halve };
constexpr auto choices(OutOfMemoryPolicy) {
  return std::array{Choice<OutOfMemoryPolicy>{OutOfMemoryPolicy::raise, "raise"},
                    Choice<OutOfMemoryPolicy>{OutOfMemoryPolicy::halve, "halve"}};
}

struct TrainOptions {
  std::int64_t epochs = 4;
  Precision precision = Precision::fp32;           // bf16, fp16: autocast; parameters stay float32. Live knob.
  std::int64_t gradient_accumulation_steps = 1;    // Micro-batches in one optimizer step.
  double max_grad_norm = 0.0;                      // Largest norm of an optimizer step's gradients; 0: any.
  GradNormType grad_norm_type = GradNormType::l2;  // As norm_type of torch.nn.utils.clip_grad_norm_: 2 or inf.
  GradNormPer grad_norm_per = GradNormPer::model;  // Whose gradients have one norm.
  double clip_grad_value = 0.0;              // As torch.nn.utils.clip_grad_value_; 0: any. At most one clip is above 0.
  double clip_grad_ratio = 0.0;              // Largest norm of a unit's gradient by that of its weights; 0: any.
  double loss_scale = 0.0;                   // As torch.amp.GradScaler: what it begins with; 0: none.
  double ema_decay = 0.0;                    // Of exponential moving averages of the weights (EMA); 0: none are kept.
  bool ema_warmup = true;                    // Their decay is min(ema_decay, (1 + n) / (10 + n)) at update n, from 1.
  StepGuardOptions step_guard{};             // Numbers that are not finite.
  bool cuda_graph = false;                   // Steps on a CUDA device are captured and replayed.
  std::int64_t loss_interval = 50;           // Steps on a CUDA device whose losses are read together.
  bool deterministic = false;                // at::globalContext().setDeterministicAlgorithms.
  std::int64_t early_stopping_patience = 0;  // Epochs without a better val accuracy that end the run; 0: none do.
  double checkpoint_every_s = 300;           // Seconds between checkpoints within an epoch; 0: at epoch ends alone.
  std::int64_t keep_checkpoints = 2;         // Newest ones kept in --out, beside the best.
  bool async_checkpoints = true;             // Training waits for a copy; a thread writes it.
  OutOfMemoryPolicy on_out_of_memory = OutOfMemoryPolicy::raise;
  std::int64_t memory_limit_mib = 0;  // Bound of what CPU tensors hold, in MiB; 0: the machine's alone.
  bool plan_batch_size = false;       // headrace train measures how many samples of a batch it computes at once.
  // Stochastic weight averaging, of a recipe's run alone.
  std::int64_t swa_start = 0;           // The first epoch, from 1, whose weights are in the mean; 0: none is kept.
  double swa_lr = 0.0;                  // The rate behind that epoch, as torch.optim.swa_utils.SWALR; 0: scheduled.
  std::int64_t swa_anneal_epochs = 10;  // From the scheduled rate to swa_lr.
  AnnealStrategy swa_anneal_strategy = AnnealStrategy::cos;
};

namespace detail {

template <class Visitor, class Options>
void describe_averages(Visitor& visit, Options& o) {
  visit("ema_decay", o.ema_decay, Range<double>{0.0, 0.99999999},
        "Keep exponential moving averages of parameters and buffers: after each update average = ema_decay * average + "
        "(1 - ema_decay) * weight. The averages are evaluated and become the run's result. 0 keeps none;"
        " 0.999 to 0.9999 are usual.");
  visit("ema_warmup", o.ema_warmup,
        "Use min(ema_decay, (1 + n) / (10 + n)) as the decay of update n, from 1, so that the averages forget the "
        "initial weights.");
  visit(
      "swa_start", o.swa_start, Range<std::int64_t>{0, 100000},
      "Stochastic weight averaging (SWA): from this epoch on, counted from 1, the mean of the weights after each epoch "
      "is kept, as torch.optim.swa_utils.AveragedModel does. At the run's end a pass over the training data gives it "
      "the running statistics of batch normalisations; it is evaluated then and is the run's result. 0 keeps none. "
      "Excludes ema_decay.");
  visit("swa_lr", o.swa_lr, Range<double>{0.0, 100.0},
        "With swa_start, the learning rate to which the epochs behind swa_start lead from the last one before, as "
        "torch.optim.swa_utils.SWALR: of the optimizer, and of a group times its lr_mult. 0: the schedule goes on.");
  visit("swa_anneal_epochs", o.swa_anneal_epochs, Range<std::int64_t>{0, 100000},
        "With swa_lr, epochs after which it is reached; 0: at once.");
  visit("swa_anneal_strategy", o.swa_anneal_strategy, "With swa_lr, how it is reached: cos or linear.");
}

}  // namespace detail

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, TrainOptions>
void describe(Visitor& visit, Options& o) {
  visit("epochs", o.epochs, Range<std::int64_t>{1, 100000}, "How many times to go through the training data.");
  visit("precision", o.precision,
        "fp32, or autocast to bf16 or fp16 with float32 parameters; fp16 wants a loss_scale.");
  visit("gradient_accumulation_steps", o.gradient_accumulation_steps, Range<std::int64_t>{1, 4096},
        "Micro-batches whose gradients make one optimizer step.");
  visit("max_grad_norm", o.max_grad_norm, Range<double>{0.0, 1e6},
        "Largest norm of the gradients of an update, which are scaled down to it; 0 does not clip.");
  visit("grad_norm_type", o.grad_norm_type,
        "The norm that max_grad_norm limits: l2, or inf, which is the largest absolute value.");
  visit("grad_norm_per", o.grad_norm_per,
        "What has a norm of its own under max_grad_norm: the whole model, each group of the optimizer, or each layer, "
        "which is the parameters of one module.");
  visit("clip_grad_value", o.clip_grad_value, Range<double>{0.0, 1e6},
        "Largest absolute value of an element of the gradients, beyond which it is set to that; 0 does not clip.");
  visit("clip_grad_ratio", o.clip_grad_ratio, Range<double>{0.0, 1e6},
        "Adaptive clipping: the largest norm of a unit's gradient, as a part of the norm of its weights, counted as at "
        "least 0.001. A unit is what makes one output: a row of a matrix, a filter, a whole bias. 0 does not clip; "
        "0.01 is usual.");
  visit(
      "loss_scale", o.loss_scale, Range<double>{0.0, 1e30},
      "What the loss is multiplied with before backward, and the gradients divided by before clipping; 65536 is usual, "
      "0 is none. An update whose gradients are not finite is left out and halves it, 2000 good ones double it.");
  detail::describe_averages(visit, o);
  visit("step_guard", o.step_guard, "");
  visit(
      "cuda_graph", o.cuda_graph,
      "Of a model on a CUDA device: capture the whole step once and replay it, with what forward's own code did then. "
      "Steps that cannot be captured are made operator by operator, and the reason is said.");
  visit("loss_interval", o.loss_interval, Range<std::int64_t>{2, 10000},
        "Of a model on a CUDA device: after so many steps their losses, and what their updates found, are copied to "
        "the host, and they are read when the next ones are copied, so that no step waits. A number that is not finite "
        "is told after at most twice as many steps.");
  visit("deterministic", o.deterministic, "Refuse operators without a deterministic form.");
  visit("early_stopping_patience", o.early_stopping_patience, Range<std::int64_t>{0, 100000},
        "End the run after this many epochs in a row without a better val accuracy; 0 never does. The schedule still "
        "spreads over all epochs.");
  visit("checkpoint_every_s", o.checkpoint_every_s, Range<double>{0.0, 1e6},
        "Seconds between checkpoints within an epoch, beside the one at its end; 0: at epoch ends alone.");
  visit("keep_checkpoints", o.keep_checkpoints, Range<std::int64_t>{1, 1000},
        "Newest checkpoints kept in the run folder, beside the best.");
  visit("async_checkpoints", o.async_checkpoints,
        "Write checkpoints on another thread: training waits only for a copy of the tensors, whose memory is kept, and "
        "for the previous write if it is not finished. false: training waits for the file.");
  visit(
      "on_out_of_memory", o.on_out_of_memory,
      "Where memory runs out in a forward or backward: raise ends the run; halve computes the batch again in parts of "
      "half as many samples, whose gradients add up to the same update, and stays with that size. It keeps a copy of "
      "the buffers before each forward, and of the gradients where a batch has several parts or an update several "
      "batches. Where the model has BatchNorm or dropout the result depends on the size. Evaluations are cut likewise; "
      "headrace tune compares gradients of whole batches, and ends where memory runs out for one.");
  visit("memory_limit_mib", o.memory_limit_mib, Range<std::int64_t>{0, std::int64_t{1} << 24},
        "What tensors on the CPU may hold together, in MiB; beyond it memory has run out. 0 sets no limit.");
  visit("plan_batch_size", o.plan_batch_size,
        "Before the first step of a new run, measure how many of the data.batch_size samples are best computed at once "
        "within the memory there is; an update still has all of them. It goes by measured time too, so that two runs "
        "may differ in rounding, and where the model has BatchNorm, whose result depends on the size, by more.");
}

}  // namespace headrace
