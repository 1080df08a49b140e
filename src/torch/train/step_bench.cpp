// What Trainer costs over a hand-written LibTorch loop: the same tiny MLP (32-64-10, batch 16), the same fused AdamW,
// one thread. Blocks of both alternate; the Trainer's run under a Trace, with the spans that the time split needs.
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

#include <cstdlib>
#include <vector>

#include "core/base/clock.h"
#include "quantile.h"
#include "torch/tensor/compute.h"

namespace {

using namespace headrace;

constexpr int kStepsPerBlock = 400;

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

Trainer make_trainer(const Mlp& mlp) {
  ModelState state;
  for (std::size_t i = 0; i < mlp.parameters.size(); ++i) {
    state.parameters.emplace_back(std::to_string(i), mlp.parameters[i]);
  }
  state.set_training = [](bool) {};
  OptimizerOptions options;
  options.set_implementation(OptimizerImplementation::fused);
  Optimizer optimizer(state.parameters, options);
  const Forward forward = [&mlp](const TensorBatch& batch) {
    const at::Tensor logits = mlp.forward(batch["image"]);
    return Output{at::cross_entropy_loss(logits, batch["labels"]), {{"logits", logits}}};
  };
  return Trainer(std::move(state), std::move(optimizer), forward, {}, {}, 1'000'000);
}

template <class Step>
double block_us(const Step& step) {
  const std::int64_t begin = monotonic_ns();
  for (int i = 0; i < kStepsPerBlock; ++i) step();
  return seconds_since(begin) * 1e6 / kStepsPerBlock;
}

}  // namespace

int main(int argc, char** argv) {
  const int pairs = argc > 1 ? std::atoi(argv[1]) : 60;
  apply_compute_threads(1);
  const TensorBatch batch{{"image", at::randn({16, 32})}, {"labels", at::randint(10, {16}, at::kLong)}};
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
  const auto show = [](const char* name, const std::vector<double>& values, double scale, const char* unit) {
    fmt::print("{:<14} median {:7.2f} {}   quartiles {:.2f} to {:.2f}\n", name, quantile(values, 0.5) * scale, unit,
               quantile(values, 0.25) * scale, quantile(values, 0.75) * scale);
  };
  fmt::print("{} pairs of {} steps, 1 thread\n", pairs, kStepsPerBlock);
  show("hand-written", hand_us, 1, "us");
  show("Trainer", trainer_us, 1, "us");
  show("overhead", overhead, 100, "%");
  return 0;
}
