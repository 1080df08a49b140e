// What Trainer costs over a hand-written LibTorch loop: the same tiny MLP (32-64-10, batch 16), the same fused AdamW,
// one thread. Blocks of both alternate; the Trainer's run under a Trace, with the spans that the time split needs.
// Then, without a Trace and on many batches in turn, three Trainers beside the same loop: one as it is by default, one
// whose step guard leaves the gradients alone, and one with all that a run asks of a step, of which the loop has
// nothing: a schedule with a warm-up, clipping, averages, step guard, named outputs and mean losses. That one may take
// at most 1.10 times the time of the loop; above 1.25, which must hold, the program ends with 1.
//   step_bench [pairs]
#include <ATen/Context.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <headrace/trace.h>
#include <headrace/trainer.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "quantile.h"
#include "torch/tensor/compute.h"

namespace {

using namespace headrace;

constexpr int kStepsPerBlock = 400;
constexpr int kBatches = 64;         // More samples than the network can learn by heart, so that gradients stay large.
constexpr int kStepsPerReport = 50;  // Between two mean losses, as a run shows them.
constexpr double kNormMax = 0.1;     // Below the norms of these gradients: nearly every step clips.
// Times the hand-written loop's time.
constexpr double kWanted = 1.10, kMustHold = 1.25;

struct Mlp {
  std::vector<at::Tensor> parameters;

  Mlp() {
    at::manual_seed(1);
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{{64, 32}, {64}, {10, 64}, {10}}) {
      parameters.push_back(at::randn(shape).mul_(0.1).requires_grad_());
    }
  }

  at::Tensor forward(const at::Tensor& images) const {
    return at::linear(at::linear(images, parameters[0], parameters[1]).relu_(), parameters[2], parameters[3]);
  }
};

// What a user would write who knows at::_fused_adamw_.
class HandWritten {
 public:
  HandWritten() {
    for (const at::Tensor& parameter : mlp_.parameters) {
      exp_avg_.push_back(at::zeros_like(parameter));
      exp_avg_sq_.push_back(at::zeros_like(parameter));
      steps_.push_back(at::zeros({}));
    }
  }

  void step(const TensorBatch& batch) {
    const at::Tensor loss = at::cross_entropy_loss(mlp_.forward(batch["image"]), batch["labels"]);
    loss.backward();
    c10::AutoGradMode no_graph(false);
    std::vector<at::Tensor> gradients;
    for (std::size_t i = 0; i < mlp_.parameters.size(); ++i) {
      gradients.push_back(mlp_.parameters[i].grad());
      *steps_[i].mutable_data_ptr<float>() += 1.0F;
    }
    at::_fused_adamw_(mlp_.parameters, gradients, exp_avg_, exp_avg_sq_, {}, steps_, 1e-3, 0.9, 0.999, 1e-2, 1e-8,
                      false, false);
    for (const at::Tensor& parameter : mlp_.parameters) parameter.mutable_grad().reset();
  }

 private:
  Mlp mlp_;
  std::vector<at::Tensor> exp_avg_, exp_avg_sq_, steps_;
};

Trainer make_trainer(const Mlp& mlp, const TrainOptions& options = {}, const LrSchedulerOptions& schedule = {}) {
  ModelState state;
  for (std::size_t i = 0; i < mlp.parameters.size(); ++i) {
    state.parameters.emplace_back(std::to_string(i), mlp.parameters[i]);
  }
  state.set_training = [](bool) {};
  OptimizerOptions fused;
  fused.set_implementation(OptimizerImplementation::fused);
  Optimizer optimizer(state.parameters, fused);
  const Forward forward = [&mlp](const TensorBatch& batch) {
    const at::Tensor logits = mlp.forward(batch["image"]);
    return Output{at::cross_entropy_loss(logits, batch["labels"]), {{"logits", logits}}};
  };
  return Trainer(std::move(state), std::move(optimizer), forward, options, schedule, 1'000'000);
}

TensorBatch random_batch() {
  return {{"image", at::randn({16, 32})}, {"labels", at::randint(10, {16}, at::kLong)}};
}

// The same ones for each that has them.
class BatchesInTurn {
 public:
  BatchesInTurn() {
    at::manual_seed(2);
    for (int i = 0; i < kBatches; ++i) batches_.push_back(random_batch());
  }

  const TensorBatch& next() { return batches_[taken_++ % batches_.size()]; }

 private:
  std::vector<TensorBatch> batches_;
  std::size_t taken_ = 0;
};

template <class Step>
double block_us(const Step& step) {
  const std::int64_t begin = monotonic_ns();
  for (int i = 0; i < kStepsPerBlock; ++i) step();
  return seconds_since(begin) * 1e6 / kStepsPerBlock;
}

struct Arm {
  std::string name;
  std::function<void()> step;
  std::vector<double> us{};  // A step, one value a round.
};

// A round times a block of every arm; the first is another one each time, and every other round goes backwards.
void take_turns(std::vector<Arm>& arms, int rounds) {
  for (Arm& arm : arms) block_us(arm.step);
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < arms.size(); ++i) {
      const std::size_t place = (i + static_cast<std::size_t>(round) / 2) % arms.size();
      Arm& arm = arms[round % 2 == 0 ? place : arms.size() - 1 - place];
      arm.us.push_back(block_us(arm.step));
    }
  }
}

// Round by round.
std::vector<double> ratios(const std::vector<double>& over, const std::vector<double>& under) {
  std::vector<double> found;
  for (std::size_t i = 0; i < over.size(); ++i) found.push_back(over[i] / under[i]);
  return found;
}

void show(const std::vector<Arm>& arms) {
  for (const Arm& arm : arms) {
    const std::vector<double> times = ratios(arm.us, arms.front().us);
    fmt::print("{:<38} median {:7.2f} us   quartiles {:.2f} to {:.2f}   {:.3f} times the loop [{:.3f}, {:.3f}]\n",
               arm.name, quantile(arm.us, 0.5), quantile(arm.us, 0.25), quantile(arm.us, 0.75), quantile(times, 0.5),
               quantile(times, 0.25), quantile(times, 0.75));
  }
}

// Returns how many times the hand-written loop's time the Trainer with all takes: the middle round's.
double compare_with_all(int rounds) {
  TrainOptions unexamined, with_all;
  unexamined.step_guard.gradients = false;
  with_all.max_grad_norm = kNormMax;
  with_all.ema_decay = 0.999;
  LrSchedulerOptions schedule;
  schedule.name = LrSchedulerName::CosineAnnealingLR;
  schedule.warmup_steps = 100;
  const Mlp first, second, third;
  HandWritten hand_written;
  Trainer by_default = make_trainer(first);
  Trainer without = make_trainer(second, unexamined);
  Trainer all = make_trainer(third, with_all, schedule);
  BatchesInTurn of_hand_written, of_by_default, of_without, of_all;
  double mean_loss = 0;
  int steps = 0;
  const auto step_and_report = [&] {
    all.step(of_all.next());
    if (++steps % kStepsPerReport == 0) mean_loss = all.take_mean_loss().value_or(std::nan(""));
  };
  std::vector<Arm> arms{{"hand-written", [&] { hand_written.step(of_hand_written.next()); }},
                        {"Trainer", [&] { by_default.step(of_by_default.next()); }},
                        {"Trainer, step_guard.gradients = false", [&] { without.step(of_without.next()); }},
                        {"Trainer, all features", step_and_report}};
  take_turns(arms, rounds);
  fmt::print("\nwithout a Trace, {} batches in turn, {} rounds of {} steps\n", kBatches, rounds, kStepsPerBlock);
  show(arms);
  const Progress& progress = all.progress();
  fmt::print("of {} updates with all features {} were clipped; mean loss of the last {} steps {:.3f}\n",
             progress.optimizer_steps, progress.clipped_updates, kStepsPerReport, mean_loss);
  return quantile(ratios(arms.back().us, arms.front().us), 0.5);
}

}  // namespace

int main(int argc, char** argv) {
  const int pairs = argc > 1 ? std::atoi(argv[1]) : 60;
  apply_compute_threads(1);
  const TensorBatch batch = random_batch();
  HandWritten hand_written;
  const Mlp mlp;
  Trainer trainer = make_trainer(mlp);
  const auto hand_written_step = [&] { hand_written.step(batch); };
  const auto trainer_step = [&] {
    Span span{step::kStep};
    { Span wait{step::kDataWait}; }
    trainer.step(batch);
  };

  block_us(hand_written_step);
  block_us(trainer_step);
  std::vector<double> hand_us, trainer_us, overhead;
  for (int pair = 0; pair < pairs; ++pair) {
    const auto run_hand = [&] { hand_us.push_back(block_us(hand_written_step)); };
    const auto run_trainer = [&] {
      Trace trace;
      trainer_us.push_back(block_us(trainer_step));
    };
    if (pair % 2 == 0) {
      run_hand();
      run_trainer();
    } else {
      run_trainer();
      run_hand();
    }
    overhead.push_back(trainer_us.back() / hand_us.back() - 1);
  }
  const auto show_line = [](const char* name, const std::vector<double>& values, double scale, const char* unit) {
    fmt::print("{:<14} median {:7.2f} {}   quartiles {:.2f} to {:.2f}\n", name, quantile(values, 0.5) * scale, unit,
               quantile(values, 0.25) * scale, quantile(values, 0.75) * scale);
  };
  fmt::print("{} pairs of {} steps, 1 thread\n", pairs, kStepsPerBlock);
  show_line("hand-written", hand_us, 1, "us");
  show_line("Trainer", trainer_us, 1, "us");
  show_line("overhead", overhead, 100, "%");

  const double times = compare_with_all(pairs);
  fmt::print("all features over the hand-written loop: wanted at most {:.2f} ({:.2f} must hold), found {:.3f}: {}\n",
             kWanted, kMustHold, times, times <= kWanted ? "met" : "missed");
  return times <= kMustHold ? 0 : 1;
}
