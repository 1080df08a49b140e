// Captured steps against the same steps without, on the CPU: its accelerator captures by running the work on the host,
// in capture() in the place of the first replay, and again at each later one. So forward is called at each step here,
// and with a real capture four times of a form in all.
#include <ATen/TensorOperators.h>
#include <ATen/Version.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/trainer.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "torch/device/accelerator.h"
#include "torch/train/equal_tensors.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kSteps = 20, kEager = 3;  // Of a form of batch, before one is captured.

class CpuCaptures {
 public:
  CpuCaptures() { let_cpu_capture(true); }
  ~CpuCaptures() { let_cpu_capture(false); }
  CpuCaptures(const CpuCaptures&) = delete;
  CpuCaptures& operator=(const CpuCaptures&) = delete;
};

// Smooth, so that a rounding stays one. Weights are of a size that relative differences can be told of.
struct Network {
  Named parameters, buffers;
  int calls = 0;
  std::function<void()> before;         // Each forward.
  std::function<void(Output&)> change;  // What it returns.
  bool training = true;

  Network() {
    at::manual_seed(5);
    const auto add = [this](const std::string& name, const at::Tensor& tensor) {
      parameters.emplace_back(name, at::Tensor(tensor).requires_grad_());
    };
    add("conv.weight", at::randn({4, 2, 3, 3}).mul_(0.4));
    add("norm.weight", at::randn({4}).mul_(0.2).add_(1.0));
    add("norm.bias", at::randn({4}));
    add("last.weight", at::randn({4, 4 * 16}).mul_(0.3));
    add("last.bias", at::randn({4}));
    buffers = {{"norm.running_mean", at::zeros({4})},
               {"norm.running_var", at::ones({4})},
               {"norm.num_batches_tracked", at::zeros({}, at::kLong)}};
  }
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  ModelState state() {
    return {parameters, buffers, [this](bool mode) { training = mode; }};
  }
  Output operator()(const TensorBatch& batch) {
    ++calls;
    if (before) before();
    const auto p = [this](std::size_t i) { return parameters[i].second; };
    buffers[2].second.add_(1);
    const at::Tensor normed = at::batch_norm(at::conv2d(batch["image"], p(0)), p(1), p(2), buffers[0].second,
                                             buffers[1].second, training, 0.1, 1e-5, false);
    const at::Tensor loss = at::cross_entropy_loss(at::linear(normed.tanh().flatten(1), p(3), p(4)), batch["labels"]);
    // The root of 0 has a gradient that is NaN once it is multiplied with 0.
    const at::Tensor size = p(4).mul(batch["spoil"].mean()).square().sum().sqrt();
    Output output{loss.add(size, 0.01), {}};
    if (change) change(output);
    return output;
  }
};

OptimizerOptions optimizer_of(OptimizerName name, double lr) {
  OptimizerOptions options{.name = name, .lr = lr, .weight_decay = 1e-2};
  options.set_implementation(OptimizerImplementation::fused);
  return options;
}

OptimizerOptions nesterov() {
  OptimizerOptions options = optimizer_of(OptimizerName::sgd, 0x1p-7);  // A float32, too.
  options.nesterov = true;
  return options;
}

struct Setting {
  std::string name;
  TrainOptions train{};
  OptimizerOptions optimizer = optimizer_of(OptimizerName::adamw, 1e-3);
  LrSchedulerOptions schedule{};
  double second_lr = 0;  // Of a second group; 0: there is one group.
};

TensorBatch batch_of(int index, std::int64_t size = 8) {
  at::manual_seed(static_cast<std::uint64_t>(100 + index));
  return {{"image", at::randn({size, 2, 6, 6})},
          {"labels", at::randint(4, {size}, at::kLong)},
          {"spoil", at::ones({size})}};
}

struct TinyRun {
  Network network;
  Setting setting;
  Trainer trainer;
  std::vector<double> losses;
  int made_by = -1;  // Step whose MovableBatch the last forward was of.

  TinyRun(Setting given, bool captured)
      : setting(std::move(given)),
        trainer(
            network.state(), optimizer(), [this](const TensorBatch& batch) { return network(batch); },
            options(captured), setting.schedule, 2 * kSteps) {}
  TinyRun(const TinyRun&) = delete;
  TinyRun& operator=(const TinyRun&) = delete;

  Optimizer optimizer() const {
    if (setting.second_lr == 0) return Optimizer(network.parameters, setting.optimizer);
    OptimizerOptions second = setting.optimizer;
    second.lr = setting.second_lr;
    const auto middle = network.parameters.begin() + 3;
    return Optimizer(std::vector<ParameterGroup>{{Named(network.parameters.begin(), middle), setting.optimizer},
                                                 {Named(middle, network.parameters.end()), second}});
  }
  TrainOptions options(bool captured) const {
    TrainOptions given = setting.train;
    given.cuda_graph = captured;
    return given;
  }

  at::Tensor step(const TensorBatch& batch) {
    const at::Tensor loss = trainer.step(batch);
    losses.push_back(loss.item<double>());
    return loss;
  }
  void steps(int begin, int end) {
    for (int i = begin; i < end; ++i) step(batch_of(i));
  }
  // With a forward of its own, so that it shows whose is run.
  at::Tensor step_movable(int index) {
    const TensorBatch batch = batch_of(index);
    const MovableBatch movable{
        {batch["image"], batch["labels"], batch["spoil"]}, "", [this, index](const std::vector<at::Tensor>& tensors) {
          made_by = index;
          return network({{"image", tensors[0]}, {"labels", tensors[1]}, {"spoil", tensors[2]}});
        }};
    const at::Tensor loss = trainer.step(movable, 8);
    losses.push_back(loss.item<double>());
    return loss;
  }

  // Shared.
  Named tensors() const {
    Named all = network.parameters;
    all.insert(all.end(), network.buffers.begin(), network.buffers.end());
    for (const auto& [name, average] : trainer.averages()) all.emplace_back("ema/" + name, average);
    return all;
  }
  const GraphReport& graph() const { return trainer.graph_report(); }
};

// Relative to the largest element.
void expect_close(const Named& found, const Named& wanted, double limit = 1e-6) {
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const at::Tensor a = found[i].second.detach().to(at::kDouble), b = wanted[i].second.detach().to(at::kDouble);
    const double size = std::max(0.1, b.abs().max().item<double>());
    EXPECT_LE(a.sub(b).abs().max().item<double>(), limit * size) << found[i].first;
  }
}

void expect_same_run(const TinyRun& found, const TinyRun& wanted, double limit = 1e-6) {
  ASSERT_EQ(found.losses.size(), wanted.losses.size());
  for (std::size_t i = 0; i < found.losses.size(); ++i) {
    EXPECT_LE(std::abs(found.losses[i] - wanted.losses[i]), limit * std::abs(wanted.losses[i])) << "loss " << i;
  }
  expect_close(found.tensors(), wanted.tensors(), limit);
}

LrSchedulerOptions schedule_of(LrSchedulerName name) {
  LrSchedulerOptions schedule;
  schedule.name = name;
  return schedule;
}

TrainOptions clipping(double max_norm, GradNormPer per, double value = 0) {
  TrainOptions options;
  options.max_grad_norm = max_norm;
  options.grad_norm_per = per;
  options.clip_grad_value = value;
  return options;
}

std::vector<Setting> settings() {
  const OptimizerOptions adamw = optimizer_of(OptimizerName::adamw, 1e-3);
  OptimizerOptions adam = optimizer_of(OptimizerName::adam, 1e-3);
  adam.amsgrad = true;
  TrainOptions averaging;
  averaging.ema_decay = 0.99;
  LrSchedulerOptions cosine = schedule_of(LrSchedulerName::CosineAnnealingLR);
  cosine.warmup_steps = 4;
  TrainOptions all = clipping(0.3, GradNormPer::model);
  all.ema_decay = 0.9;
  all.ema_warmup = false;
  return {{.name = "adamw"},
          {.name = "sgd with Nesterov's momentum", .optimizer = nesterov()},
          {.name = "adam with amsgrad", .optimizer = adam},
          {.name = "norm per model", .train = clipping(0.3, GradNormPer::model)},
          {.name = "norm per group", .train = clipping(0.2, GradNormPer::group), .second_lr = 3e-3},
          {.name = "norm per layer", .train = clipping(0.2, GradNormPer::layer)},
          {.name = "value", .train = clipping(0, GradNormPer::model, 0.02)},
          {.name = "averages with warm-up", .train = averaging},
          {.name = "cosine", .schedule = cosine},
          {.name = "two groups of other rates", .optimizer = adamw, .second_lr = 3e-3},
          {.name = "all of it", .train = all, .optimizer = nesterov(), .schedule = cosine, .second_lr = 3e-3}};
}

TEST(CapturedStep, IsTheStepThatItWouldBeWithout) {
  const CpuCaptures captures;
  for (const Setting& setting : settings()) {
    SCOPED_TRACE(setting.name);
    TinyRun captured(setting, true), plain(setting, false);
    captured.steps(0, kSteps);
    plain.steps(0, kSteps);
    EXPECT_EQ(captured.graph().replays, kSteps - kEager);
    EXPECT_THAT(captured.graph().reason, IsEmpty());
    expect_same_run(captured, plain);
    EXPECT_EQ(captured.trainer.progress().optimizer_steps, kSteps);
    EXPECT_EQ(captured.trainer.progress().batch, kSteps);
    EXPECT_EQ(captured.network.calls, kSteps);
    EXPECT_EQ(plain.graph().replays, 0);
  }
}

// The rate is a float32 there: only one that is a float32 anyway can have the bits of the walk. Those are ATen's where
// optimizer_test.cpp finds them to be.
TEST(CapturedStep, OfAdamwHasTheBitsOfTheWalk) {
  const CpuCaptures captures;
  const Setting setting{.name = "adamw", .optimizer = optimizer_of(OptimizerName::adamw, 0x1p-10)};
  TinyRun captured(setting, true), plain(setting, false);
  captured.steps(0, kSteps);
  plain.steps(0, kSteps);
  expect_same_run(captured, plain, at::get_cpu_capability().starts_with("AVX") ? 0 : 1e-6);
}

TEST(CapturedStep, ABatchOfAnotherSizeIsMadeByOperatorsBetweenReplays) {
  const CpuCaptures captures;
  const Setting setting{.name = "adamw"};
  TinyRun captured(setting, true), plain(setting, false);
  for (TinyRun* run : {&captured, &plain}) {
    run->steps(0, 6);
    run->step(batch_of(6, 5));
    if (run == &captured) {
      EXPECT_EQ(run->graph().replays, 3);
      EXPECT_THAT(run->graph().reason, HasSubstr("3 steps of batches like this one are made"));
    }
    run->steps(7, 13);
  }
  EXPECT_EQ(captured.graph().replays, 9);
  EXPECT_THAT(captured.graph().reason, IsEmpty());
  expect_same_run(captured, plain);
}

TEST(CapturedStep, OfEightFormsAndOfNoMore) {
  const CpuCaptures captures;
  TinyRun captured({.name = "adamw"}, true), plain({.name = "adamw"}, false);
  for (TinyRun* run : {&captured, &plain}) {
    for (int form = 0; form < 9; ++form) {
      for (int i = 0; i < kEager + 1; ++i) run->step(batch_of(10 * form + i, 2 + form));
      if (run != &captured || form >= 8) continue;
      EXPECT_THAT(run->graph().reason, IsEmpty()) << form;
    }
  }
  EXPECT_EQ(captured.graph().replays, 8);
  EXPECT_THAT(captured.graph().reason, HasSubstr("8 batches of other shapes or structure came before this one"));
  captured.step(batch_of(3, 2));
  plain.step(batch_of(3, 2));
  EXPECT_EQ(captured.graph().replays, 9) << "the first form is captured still";
  expect_same_run(captured, plain);
}

// ---- Why a step is not captured ----

struct Refusal {
  std::string reason;
  Setting setting;
  std::function<void(TinyRun&)> prepare = [](TinyRun&) {};
};

std::vector<Refusal> refusals() {
  const auto with = [](const std::function<void(TrainOptions&)>& change) {
    Setting setting{.name = ""};
    change(setting.train);
    return setting;
  };
  const auto by = [](OptimizerOptions options) { return Setting{.name = "", .optimizer = std::move(options)}; };
  OptimizerOptions damped = optimizer_of(OptimizerName::sgd, 1e-2);
  damped.dampening = 0.5;
  Setting one_cycle{.name = ""};
  one_cycle.schedule = schedule_of(LrSchedulerName::OneCycleLR);
  one_cycle.schedule.max_lr = 1e-2;
  const auto update_by_itself = [](TinyRun& run) {
    run.trainer.external_optimizer.name = "mine.Muon";
    run.trainer.external_optimizer.step = [&run](const std::function<double(double)>& scheduled) {
      const c10::AutoGradMode no_graph(false);
      for (const auto& [name, parameter] : run.network.parameters) parameter.sub_(parameter.grad(), scheduled(1e-2));
    };
  };
  constexpr const char* kGuard = "step_guard looks at each step before the next one";
  return {{"mine.Muon makes the update itself", Setting{.name = ""}, update_by_itself},
          {"its loss_scale", with([](TrainOptions& o) { o.loss_scale = 1024; })},
          {"gradient_accumulation_steps is above 1", with([](TrainOptions& o) { o.gradient_accumulation_steps = 2; })},
          {"clip_grad_ratio is not captured", with([](TrainOptions& o) { o.clip_grad_ratio = 0.01; })},
          {kGuard, with([](TrainOptions& o) { o.step_guard.policy = GuardPolicy::replace; })},
          {kGuard, with([](TrainOptions& o) { o.step_guard.policy = GuardPolicy::lower_lr; })},
          {kGuard, with([](TrainOptions& o) {
             o.step_guard.policy = GuardPolicy::skip;
             o.step_guard.weights = true;
           })},
          {kGuard, with([](TrainOptions& o) { o.step_guard.weights = true; })},
          {kGuard, with([](TrainOptions& o) { o.step_guard.detect_anomaly = true; })},
          {"batches may be computed in parts",
           with([](TrainOptions& o) { o.on_out_of_memory = OutOfMemoryPolicy::halve; })},
          {"batches may be computed in parts", Setting{.name = ""},
           [](TinyRun& run) { run.trainer.progress().micro_batch = 4; }},
          {"the schedule moves momentum", one_cycle},
          {"RMSprop is not captured", by(optimizer_of(OptimizerName::rmsprop, 1e-3))},
          {"SGD with dampening is not captured", by(damped)}};
}

TEST(CapturedStep, SaysWhyItIsNoneAndTrainsAsWithout) {
  const CpuCaptures captures;
  for (const Refusal& refusal : refusals()) {
    SCOPED_TRACE(refusal.reason);
    TinyRun refused(refusal.setting, true), plain(refusal.setting, false);
    for (TinyRun* run : {&refused, &plain}) {
      refusal.prepare(*run);
      run->steps(0, 6);
    }
    EXPECT_EQ(refused.graph().replays, 0);
    EXPECT_THAT(refused.graph().reason, HasSubstr(refusal.reason));
    expect_same_run(refused, plain);
  }
}

TEST(CapturedStep, IsNoneOnACpuOrWhereNobodyAskedForIt) {
  TinyRun on_cpu({.name = "adamw"}, true), plain({.name = "adamw"}, false);
  EXPECT_THAT(on_cpu.graph().reason, IsEmpty()) << "no step was made yet";
  for (TinyRun* run : {&on_cpu, &plain}) {
    for (int i = 0; i < 6; ++i) run->step_movable(i);
    EXPECT_EQ(run->graph().replays, 0);
  }
  EXPECT_THAT(on_cpu.graph().reason, HasSubstr("the model is on the CPU"));
  EXPECT_THAT(plain.graph().reason, HasSubstr("cuda_graph is off"));
  expect_same_run(on_cpu, plain, 0);
}

// ---- What cannot be captured ----

TEST(CapturedStep, WhatForwardThrowsWhileItIsCapturedIsTheReasonAndTrainingGoesOn) {
  const CpuCaptures captures;
  TinyRun refused({.name = "adamw"}, true), plain({.name = "adamw"}, false);
  refused.network.before = [&refused] {
    if (refused.network.calls == kEager + 1) throw std::runtime_error("aten::item is not captured");
  };
  refused.steps(0, kSteps);
  plain.steps(0, kSteps);
  EXPECT_EQ(refused.graph().replays, 0);
  EXPECT_THAT(refused.graph().reason, HasSubstr("aten::item is not captured"));
  EXPECT_EQ(refused.network.calls, kSteps + 1) << "none is tried again";
  expect_same_run(refused, plain);
}

TEST(CapturedStep, AnInterruptWhileItIsCapturedGoesOnAsItIs) {
  const CpuCaptures captures;
  TinyRun captured({.name = "adamw"}, true), plain({.name = "adamw"}, false);
  captured.network.before = [&captured] {
    if (captured.network.calls == kEager + 1)
      throw std::runtime_error("KeyboardInterrupt: ");  // As pybind11's error_already_set.
  };
  captured.steps(0, kEager);
  const Named before = clones(captured.tensors());
  EXPECT_THAT([&] { captured.step(batch_of(kEager)); },
              ::testing::ThrowsMessage<std::runtime_error>(HasSubstr("KeyboardInterrupt")));
  expect_equal(captured.tensors(), before);
  EXPECT_EQ(captured.trainer.progress().batch, kEager);
  captured.steps(kEager, kSteps);
  plain.steps(0, kSteps);
  EXPECT_EQ(captured.graph().replays, kSteps - kEager) << "it was no reason";
  expect_same_run(captured, plain);
}

TEST(CapturedStep, AForwardThatReturnsAWeightOrSamplesIsNotCaptured) {
  const CpuCaptures captures;
  for (const bool weight : {true, false}) {
    TinyRun refused({.name = "adamw"}, true), plain({.name = "adamw"}, false);
    for (TinyRun* run : {&refused, &plain}) {
      run->network.change = [weight](Output& output) {
        if (weight) output.weight = 3.0;
        if (!weight) output.samples = 7;
      };
      run->steps(0, 8);
    }
    EXPECT_EQ(refused.graph().replays, 0);
    EXPECT_THAT(refused.graph().reason, HasSubstr("forward returns a weight or samples"));
    // Not the buffers: on the CPU the forward that could not be captured has moved them.
    expect_close(refused.network.parameters, plain.network.parameters);
    for (std::size_t i = 0; i < plain.losses.size(); ++i) EXPECT_NEAR(refused.losses[i], plain.losses[i], 2e-6) << i;
    EXPECT_NEAR(refused.trainer.mean_loss().value_or(-1), plain.trainer.mean_loss().value_or(1), 1e-6);
  }
}

// ---- Faults ----

TensorBatch nan_batch(int index) {
  TensorBatch batch = batch_of(index);
  batch["image"].fill_(std::numeric_limits<float>::quiet_NaN());
  return batch;
}

void expect_finite(const Named& tensors) {
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(tensor.isfinite().all().item<bool>()) << name;
}

TEST(CapturedStep, ALossThatIsNotFiniteIsNamedLaterByItsBatch) {
  const CpuCaptures captures;
  TinyRun run({.name = "adamw"}, true);
  int made = 0;
  const auto train = [&] {
    for (; made < 130; ++made) run.step(made == 10 ? nan_batch(made) : batch_of(made));
  };
  EXPECT_THAT(error_of(ErrorCode::numerics, train), HasSubstr("loss is nan in epoch 0, batch 10"));
  EXPECT_GT(made, 50) << "no step waits for it";
  EXPECT_LT(made, 11 + 100);
  expect_finite(run.network.parameters);
  EXPECT_EQ(run.trainer.progress().guard.losses, 1);
}

TEST(CapturedStep, LossesAreReadAtTheIntervalThatIsAskedFor) {
  const CpuCaptures captures;
  for (const std::int64_t interval : {2, 10, 200}) {
    SCOPED_TRACE(interval);
    TinyRun run({.name = "interval", .train = {.loss_interval = interval}}, true);
    int made = 0;
    const auto train = [&] {
      for (; made < 150; ++made) run.step(made == 10 ? nan_batch(made) : batch_of(made));
      run.trainer.mean_loss();
    };
    EXPECT_THAT(error_of(ErrorCode::numerics, train), HasSubstr("loss is nan in epoch 0, batch 10"));
    EXPECT_LE(made, 11 + 2 * interval);
    EXPECT_EQ(made == 150, interval == 200) << "not before so many steps";
  }
  EXPECT_THAT(
      error_of(ErrorCode::invalid_argument, [] { TinyRun({.name = "one", .train = {.loss_interval = 1}}, false); }),
      HasSubstr("loss_interval: wanted at least 2, found 1"));
}

TEST(CapturedStep, ADeviceThatCapturesTimesThePhasesOfItsSteps) {
  const CpuCaptures captures;
  TinyRun run({.name = "adamw"}, true);
  const Applied applied = run.trainer.time_device(true);
  EXPECT_EQ(applied.applied, "true") << applied.reason;
  run.steps(0, kSteps);
  const DeviceTimes times = run.trainer.device_times();
  const std::int64_t replays = run.graph().replays;
  EXPECT_EQ(times.of(DevicePhase::transfer).count, kSteps);
  EXPECT_EQ(times.of(DevicePhase::forward).count, kSteps - replays);
  EXPECT_EQ(times.of(DevicePhase::backward).count, kSteps - replays);
  EXPECT_EQ(times.of(DevicePhase::optimizer).count, kSteps - replays);
  EXPECT_EQ(times.of(DevicePhase::replay).count, replays);
  EXPECT_GT(replays, 0);
  double sum = 0;
  for (const DeviceTimes::Phase& phase : times.phases) {
    EXPECT_GT(phase.seconds, 0);
    sum += phase.seconds;
  }
  EXPECT_LE(sum, times.seconds * (1 + 1e-9));
  EXPECT_EQ(times.waiting + times.dropped, 0);
}

TEST(CapturedStep, WithoutACaptureTheCpuHasNoTimesOfADeviceAndSaysWhy) {
  TinyRun run({.name = "adamw"}, false);
  const Applied applied = run.trainer.time_device(true);
  EXPECT_EQ(applied.requested, "true");
  EXPECT_EQ(applied.applied, "false");
  EXPECT_EQ(applied.reason, "the model is on the CPU");
  EXPECT_EQ(run.trainer.time_device(false).reason, "");
  run.steps(0, 3);
  const DeviceTimes times = run.trainer.device_times();
  EXPECT_EQ(times.of(DevicePhase::forward).count, 0);
  EXPECT_FALSE(times.busy_share().has_value());
  const DeviceMemoryReport memory = run.trainer.device_memory();
  EXPECT_FALSE(memory.memory.has_value());
  EXPECT_EQ(memory.reason, "the model is on the CPU");
  run.trainer.reset_peak_device_memory();
  EXPECT_FALSE(run.trainer.release_device_cache().has_value());
  EXPECT_THAT(error_of(ErrorCode::unsupported, [&] { run.trainer.save_device_memory("never_written.pickle"); }),
              HasSubstr("wanted a model on a CUDA device: the model is on the CPU"));
}

TEST(CapturedStep, ALossThatIsNotFiniteIsNamedAtTheLatestWhenTheMeanIsAsked) {
  const CpuCaptures captures;
  TinyRun run({.name = "adamw"}, true);
  run.trainer.progress().epoch = 2;
  for (int i = 0; i < 15; ++i) run.step(i == 10 ? nan_batch(i) : batch_of(i));
  EXPECT_THAT(error_of(ErrorCode::numerics, [&] { run.trainer.mean_loss(); }),
              HasSubstr("loss is nan in epoch 2, batch 10"));
  expect_finite(run.network.parameters);
}

TEST(CapturedStep, AGradientThatIsNotFiniteIsNamedAndItsUpdateLeftOut) {
  const CpuCaptures captures;
  for (const double max_norm : {0.0, 0.3}) {
    Setting setting{.name = "", .train = clipping(max_norm, GradNormPer::model)};
    setting.train.ema_decay = 0.9;
    TinyRun run(setting, true);
    run.steps(0, 5);
    Named held = run.network.parameters;
    for (const auto& entry : run.trainer.optimizer().state()) held.push_back(entry);
    for (std::size_t i = 0; i < run.network.parameters.size(); ++i) held.push_back(run.trainer.averages()[i]);
    const Named before = clones(held);
    TensorBatch spoiled = batch_of(5);
    spoiled["spoil"].zero_();
    EXPECT_TRUE(std::isfinite(run.step(spoiled).item<double>()));
    expect_equal(held, before);
    run.step(batch_of(6));
    EXPECT_FALSE(run.network.parameters[0].second.equal(before[0].second)) << "the next update is made";
    EXPECT_THAT(error_of(ErrorCode::numerics, [&] { run.trainer.mean_loss(); }),
                HasSubstr("gradient of last.bias is nan in epoch 0, batch 5"));
    expect_finite(held);
  }
}

Setting skipping(std::int64_t max_in_a_row = 10) {
  Setting setting{.name = "skip", .train = clipping(0.3, GradNormPer::model), .optimizer = nesterov()};
  setting.train.step_guard.policy = GuardPolicy::skip;
  setting.train.step_guard.max_in_a_row = max_in_a_row;
  setting.train.ema_decay = 0.9;
  setting.train.ema_warmup = false;  // Which counts updates, and so one too many until it is read.
  return setting;
}

// A batch whose loss is bad, or its gradients alone.
TensorBatch bad_batch(int index, bool bad_loss) {
  if (bad_loss) return nan_batch(index);
  TensorBatch batch = batch_of(index);
  batch["spoil"].zero_();
  return batch;
}

TEST(CapturedStep, OfThePolicySkipLeavesOutWhatTheHostWouldAndCountsItWhenItIsRead) {
  const CpuCaptures captures;
  TinyRun captured(skipping(), true), plain(skipping(), false);
  for (TinyRun* run : {&captured, &plain}) {
    for (int i = 0; i < kSteps; ++i) {
      const bool is_bad = i == 6 || i == 7 || i == 12;
      run->trainer.step(is_bad ? bad_batch(i, /*bad_loss=*/i != 7) : batch_of(i));
    }
  }
  EXPECT_EQ(captured.graph().replays, kSteps - kEager);
  EXPECT_EQ(captured.trainer.progress().optimizer_steps, kSteps) << "nothing was read yet";
  EXPECT_TRUE(std::isfinite(captured.trainer.mean_loss().value()));
  EXPECT_NEAR(captured.trainer.mean_loss().value(), plain.trainer.mean_loss().value(), 1e-5);
  expect_close(captured.tensors(), plain.tensors());
  expect_finite(captured.tensors());
  const Progress &found = captured.trainer.progress(), &wanted = plain.trainer.progress();
  EXPECT_EQ(found.optimizer_steps, kSteps - 3);
  EXPECT_EQ(found.optimizer_steps, wanted.optimizer_steps);
  EXPECT_EQ(found.skipped_updates, wanted.skipped_updates);
  EXPECT_EQ(found.clipped_updates, wanted.clipped_updates);
  EXPECT_TRUE(found.guard == wanted.guard);
  EXPECT_EQ(found.guard.losses, 2);
  EXPECT_EQ(found.guard.gradients, 1);
  EXPECT_EQ(captured.trainer.guard().last_fault()->batch, 12);
}

TEST(CapturedStep, OfThePolicySkipEndsTheRunBeyondItsLimitsWhenTheyAreRead) {
  const CpuCaptures captures;
  TinyRun run(skipping(/*max_in_a_row=*/2), true);
  for (int i = 0; i < 12; ++i) run.trainer.step(i == 5 || i == 7 || i == 8 ? bad_batch(i, true) : batch_of(i));
  EXPECT_NO_THROW(run.trainer.mean_loss()) << "two in a row are borne with";
  for (int i = 12; i < 16; ++i) run.trainer.step(i < 15 ? bad_batch(i, true) : batch_of(i));
  EXPECT_THAT(error_of(ErrorCode::numerics, [&] { run.trainer.mean_loss(); }),
              HasSubstr("loss is nan in epoch 0, batch 14; faults in a row: wanted at most 2"));
  expect_finite(run.network.parameters);
}

TEST(CapturedStep, OfThePolicySkipNamesAWeightThatNoSkippingMends) {
  const CpuCaptures captures;
  TinyRun run(skipping(), true);
  run.steps(0, 6);
  {
    const c10::AutoGradMode no_graph(false);
    run.network.parameters[3].second.fill_(std::numeric_limits<float>::quiet_NaN());
  }
  run.trainer.step(batch_of(6));
  EXPECT_THAT(error_of(ErrorCode::numerics, [&] { run.trainer.mean_loss(); }),
              HasSubstr("last.weight is not finite; step_guard.policy skip mends no weight"));
}

// The averages of buffers too, which a bad forward spoils.
TEST(CapturedStep, IsReplayedForBatchesOfTheSameFieldsInTheirOrderAlone) {
  const CpuCaptures captures;
  TinyRun run({.name = "adamw"}, true);
  run.steps(0, kEager + 2);
  const std::int64_t before = run.graph().replays;
  const TensorBatch known = batch_of(9);
  run.step({{"labels", known["labels"]}, {"image", known["image"]}, {"spoil", known["spoil"]}});
  EXPECT_EQ(run.graph().replays, before);
  EXPECT_THAT(run.graph().reason, HasSubstr("3 steps of batches like this one are made"));
}

// ---- What changes between steps ----

TEST(CapturedStep, NewRatesNeedNoNewCapture) {
  const CpuCaptures captures;
  const Setting setting{.name = "adamw", .optimizer = optimizer_of(OptimizerName::adamw, 0x1p-10), .second_lr = 0x1p-8};
  TinyRun captured(setting, true), plain(setting, false);
  for (TinyRun* run : {&captured, &plain}) {
    for (int i = 0; i < kSteps; ++i) {
      if (i == 10) {
        OptimizerOptions options = run->trainer.optimizer().options(1);
        options.lr = 0x1p-6;
        run->trainer.optimizer().set_options(options, 1);
      }
      run->step_movable(i);
    }
  }
  EXPECT_EQ(captured.made_by, kEager);
  EXPECT_EQ(captured.graph().replays, kSteps - kEager);
  expect_same_run(captured, plain);
}

TEST(CapturedStep, IsCapturedAgainWhereWhatItHoldsHasChanged) {
  const CpuCaptures captures;
  const std::vector<std::pair<std::string, std::function<void(TinyRun&)>>> changes{
      {"weight decay",
       [](TinyRun& run) {
         OptimizerOptions options = run.trainer.optimizer().options();
         options.weight_decay = 0.2;
         run.trainer.optimizer().set_options(options);
       }},
      {"precision", [](TinyRun& run) { run.trainer.set_precision(Precision::bf16); }},
      {"memory format", [](TinyRun& run) { run.trainer.set_memory_format(MemoryFormat::channels_last); }},
      {"another optimizer", [](TinyRun& run) { run.trainer.optimizer() = run.optimizer(); }},
      {"other memory",
       [](TinyRun& run) {
         const at::Tensor& weight = run.network.parameters[3].second;
         weight.set_data(weight.detach().clone());
       }},
      {"a frozen parameter", [](TinyRun& run) { run.network.parameters[0].second.requires_grad_(false); }}};
  for (const auto& [name, change] : changes) {
    SCOPED_TRACE(name);
    const Setting setting{.name = name, .optimizer = nesterov()};  // Whose updates have the same bits either way.
    TinyRun captured(setting, true), plain(setting, false);
    for (TinyRun* run : {&captured, &plain}) {
      for (int i = 0; i < 10; ++i) run->step_movable(i);
      EXPECT_TRUE(run == &plain || run->made_by == kEager);
      change(*run);
      for (int i = 10; i < kSteps; ++i) run->step_movable(i);
    }
    EXPECT_GE(captured.made_by, 10);
    EXPECT_LT(captured.made_by, kSteps - 1);
    EXPECT_GE(captured.graph().replays, kSteps - 2 * kEager);
    EXPECT_THAT(captured.graph().reason, IsEmpty());
    expect_same_run(captured, plain);
  }
}

// ---- What a step tells ----

TEST(CapturedStep, LossesStayWhatTheyWere) {
  const CpuCaptures captures;
  TinyRun run({.name = "adamw"}, true);
  std::vector<at::Tensor> losses;
  for (int i = 0; i < kSteps; ++i) losses.push_back(run.step(batch_of(i)));
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_EQ(losses[i].item<double>(), run.losses[i]) << i;
    EXPECT_EQ(losses[i].dim(), 0);
    EXPECT_FALSE(losses[i].requires_grad());
  }
  EXPECT_NE(run.losses.back(), run.losses[kEager]);
}

TEST(CapturedStep, TheMeanIsThatOfTheLossesWhateverIsDoneToThem) {
  const CpuCaptures captures;
  TinyRun run({.name = "adamw"}, true);
  double sum = 0;
  std::int64_t samples = 0;
  for (int i = 0; i < 60; ++i) {
    const std::int64_t size = i % 10 == 9 ? 5 : 8;
    const at::Tensor loss = run.step(batch_of(i, size));
    sum += run.losses.back() * static_cast<double>(size);
    samples += size;
    loss.zero_();  // It is the caller's.
  }
  EXPECT_GT(run.graph().replays, 50);
  const double mean = run.trainer.take_mean_loss().value_or(-1);
  EXPECT_NEAR(mean, sum / static_cast<double>(samples), 1e-6);
  EXPECT_FALSE(run.trainer.mean_loss().has_value());
  run.steps(60, 62);
  EXPECT_NEAR(run.trainer.mean_loss().value_or(-1), (run.losses[60] + run.losses[61]) / 2, 1e-6);
}

TEST(CapturedStep, WhatClippingFoundIsThatOfTheRunWithout) {
  const CpuCaptures captures;
  for (const Setting& setting : settings()) {
    SCOPED_TRACE(setting.name);
    TinyRun captured(setting, true), plain(setting, false);
    for (TinyRun* run : {&captured, &plain}) {
      run->steps(0, kSteps);
      run->trainer.mean_loss();
    }
    const ClipReport &found = captured.trainer.clip_report(), &wanted = plain.trainer.clip_report();
    EXPECT_NEAR(found.norm_before, wanted.norm_before, 1e-6 * std::max(1.0, wanted.norm_before));
    if (setting.train.clip_grad_value == 0 && setting.train.grad_norm_per == GradNormPer::model) {
      EXPECT_NEAR(found.norm_after, wanted.norm_after, 2e-6) << "of one norm, which is known without a second look";
    }
    EXPECT_EQ(found.clipped, wanted.clipped);
    EXPECT_TRUE(found.finite);
    EXPECT_EQ(captured.trainer.progress().clipped_updates, plain.trainer.progress().clipped_updates);
    const bool clips = setting.train.max_grad_norm > 0 || setting.train.clip_grad_value > 0;
    EXPECT_EQ(plain.trainer.progress().clipped_updates > 0, clips) << "or it compares nothing";
  }
}

}  // namespace
}  // namespace headrace
