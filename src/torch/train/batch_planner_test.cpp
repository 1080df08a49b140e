#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/batch_planner.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "torch/tensor/tensor_memory.h"
#include "torch/train/equal_tensors.h"
#include "torch/train/tiny_training.h"
#include "torch/train/training_state.h"

namespace headrace {
namespace {

using testing::AllOf;
using testing::Each;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t kMiB = 1 << 20;

class BatchPlanner : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(watch_tensor_memory().reason, ""); }
  void TearDown() override { set_tensor_memory_limit(0); }
};

// Of a network that is as it would be trained; its batch is drawn anew.
BatchOf batches_for(const tiny::Training& training) {
  return [network = training.network.get()](std::int64_t n) -> BoundForward {
    return [network, batch = tiny::random_batch(n)] { return (*network)(batch); };
  };
}

// Linear layers without bias: the others of what the first gives, whose sum is squared.
class Branches {
 public:
  Branches(std::int64_t width, int layers) : width_(width) {
    for (int i = 0; i < layers; ++i) {
      const at::Tensor weight = at::randn({width, width}).mul_(0.05);
      state.parameters.emplace_back("layer" + std::to_string(i), at::Tensor(weight).requires_grad_());
    }
    state.set_training = [](bool) {};
  }
  Branches(const Branches&) = delete;
  Branches& operator=(const Branches&) = delete;

  BatchOf batches() const {
    return [this](std::int64_t n) -> BoundForward {
      return [this, input = at::randn({n, width_})] { return forward(input); };
    };
  }
  Trainer trainer(const OptimizerOptions& optimizer = tiny::plain_update()) const {
    return Trainer(state, Optimizer(state.parameters, optimizer), {}, {}, {}, 100);
  }

  ModelState state;
  // Of a batch of this size, in the backward before that of the third layer.
  std::function<void(std::int64_t n)> in_backward = [](std::int64_t) {};

 private:
  Output forward(const at::Tensor& input) const {
    const at::Tensor first = at::linear(input, state.parameters[0].second);
    at::Tensor sum = first;
    for (std::size_t i = 1; i < state.parameters.size(); ++i) {
      const at::Tensor branch = at::linear(first, state.parameters[i].second);
      if (i == 2) branch.register_hook([this, n = input.size(0)](const at::Tensor& /*gradient*/) { in_backward(n); });
      sum = sum.add(branch);
    }
    return {sum.square().mean(), {}};
  }

  std::int64_t width_;
};

std::int64_t parameter_bytes(Trainer& trainer) {
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : trainer.model().parameters) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

// What is held beside a step now, and `bytes` for it.
std::int64_t limit_with(std::int64_t bytes) {
  return tensor_bytes() + bytes;
}

bool fits(const tiny::Training& training, std::int64_t size, std::int64_t limit) {
  set_tensor_memory_limit(limit);
  bool fitted = true;
  try {
    training.trainer->step(batches_for(training)(size), size, /*last_of_window=*/true);
  } catch (const c10::OutOfMemoryError&) {
    fitted = false;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
    fitted = false;
  }
  set_tensor_memory_limit(0);
  return fitted;
}

// By real steps; what fits grows no larger behind the first that does not.
std::int64_t largest_by_steps(const tiny::Training& training, std::int64_t most, std::int64_t limit) {
  std::int64_t fitting = 0, beyond = most + 1;
  while (beyond - fitting > 1) {
    const std::int64_t middle = (fitting + beyond) / 2;
    (fits(training, middle, limit) ? fitting : beyond) = middle;
  }
  return fitting;
}

std::string message_of(Trainer& trainer, const BatchOf& batch_of, const BatchPlannerOptions& options, ErrorCode code) {
  try {
    plan_batch_size(trainer, batch_of, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "no error";
}

TEST_F(BatchPlanner, IsWithinFivePercentOfTheLargestThatRealStepsFit) {
  for (const std::int64_t bytes : {2 * kMiB, 5 * kMiB}) {
    const tiny::Training training;
    const std::int64_t limit = limit_with(bytes);
    const BatchPlan plan =
        plan_batch_size(*training.trainer, batches_for(training), {.max_batch_size = 4096, .memory_limit = limit});
    const std::int64_t largest = largest_by_steps(training, 4096, limit);
    EXPECT_GT(largest, 40);
    EXPECT_LE(plan.largest_batch_size, largest);
    EXPECT_GE(20 * plan.largest_batch_size, 19 * largest);
    EXPECT_LE(plan.probes.size(), 3U);
    EXPECT_THAT(plan.probes, Each(AllOf(Field(&BatchProbe::ran_out, false), Field(&BatchProbe::step_s, testing::Gt(0)),
                                        Field(&BatchProbe::spread_s, testing::Ge(0)))));
    EXPECT_EQ(plan.probes[0].batch_size, 32);
    EXPECT_EQ(plan.memory_limit, limit);
    EXPECT_LE(plan.predicted_peak, limit);
    EXPECT_NEAR(plan.memory_fraction, static_cast<double>(plan.predicted_peak) / static_cast<double>(limit), 1e-12);
    EXPECT_GT(plan.search_s, 0);
    EXPECT_FALSE(plan.reason.empty());
  }
}

TEST_F(BatchPlanner, ItsPeakIsThatOfARealStep) {
  const tiny::Training training;
  const BatchPlan plan =
      plan_batch_size(*training.trainer, batches_for(training), {.memory_limit = limit_with(4 * kMiB)});
  ASSERT_TRUE(plan.samples_per_second.has_value());
  EXPECT_TRUE(fits(training, plan.batch_size, plan.predicted_peak + 4096));
  EXPECT_FALSE(fits(training, plan.batch_size, plan.predicted_peak - plan.predicted_peak / 50));
  EXPECT_NEAR(static_cast<double>(predict_peak_bytes(plan, plan.probes[0].batch_size)),
              static_cast<double>(plan.probes[0].gradient_peak_bytes),
              0.02 * static_cast<double>(plan.probes[0].gradient_peak_bytes));
  const std::int64_t most = predict_batch_size(plan, plan.memory_limit);
  EXPECT_LE(predict_peak_bytes(plan, most), plan.memory_limit);
  EXPECT_GT(predict_peak_bytes(plan, most + 1), plan.memory_limit);
  EXPECT_EQ(predict_batch_size(plan, plan.fixed_bytes / 2), 0);
}

TEST_F(BatchPlanner, KnowsParametersGradientsAndOptimizerExactly) {
  const std::int64_t before = tensor_bytes();
  const tiny::Training training(tiny::averaging(0.9));
  const std::int64_t held = tensor_bytes();
  const BatchPlan plan = plan_batch_size(*training.trainer, batches_for(training), {.memory_limit = held + 4 * kMiB});
  const std::int64_t parameters = parameter_bytes(*training.trainer);
  EXPECT_EQ(plan.fixed_bytes, held + parameters);
  EXPECT_GE(held - before, 4 * parameters);  // With AdamW's state and the averages.
}

TEST_F(BatchPlanner, CountsTheStateOfAnExternalOptimizerThatIsOlderThanTheCount) {
  const tiny::Training training;
  const at::Storage storage(c10::Storage::use_byte_size_t(), 4000, c10::GetDefaultCPUAllocator(), /*resizable=*/true);
  at::Tensor state = at::empty({0}).set_(storage, 0, {1000});  // As one that was made before anybody counted.
  state.zero_();
  training.trainer->external_optimizer = {
      .name = "torch.optim.Muon",
      .step = [](const auto&) {},
      .keep_state = [&] { return [&state, copy = state.clone()] { state = copy.clone(); }; }};
  const std::int64_t held = tensor_bytes();
  const BatchPlan plan = plan_batch_size(*training.trainer, batches_for(training), {.memory_limit = held + 4 * kMiB});
  EXPECT_EQ(plan.fixed_bytes, held + 4000 + parameter_bytes(*training.trainer));
}

TEST_F(BatchPlanner, SparseGradientsOfAnOpenWindowAreKeptAndCounted) {
  ModelState state;
  const at::Tensor weight = at::randn({50, 8}).requires_grad_();
  state.parameters.emplace_back("weight", weight);
  state.set_training = [](bool) {};
  OptimizerOptions optimizer;
  optimizer.name = OptimizerName::sgd;
  optimizer.momentum = optimizer.weight_decay = 0;
  TrainOptions options;
  options.gradient_accumulation_steps = 2;
  Trainer trainer(state, Optimizer(state.parameters, optimizer), {}, options, {}, 100);
  const BatchOf rows = [&weight](std::int64_t n) -> BoundForward {
    return [&weight, indices = at::arange(n, at::kLong).remainder(50)]() -> Output {
      const at::Tensor found = at::embedding(weight, indices, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false,
                                             /*sparse=*/true);
      return {found.square().mean(), {}};
    };
  };
  trainer.step(rows(8), 8);
  const at::Tensor gradient = weight.grad();
  ASSERT_TRUE(gradient.is_sparse());
  const std::int64_t held = tensor_bytes(), waiting = bytes_of_these_alone({gradient});
  EXPECT_GE(waiting, 8 * 8 * 4);
  const BatchPlan plan = plan_batch_size(trainer, rows, {.max_batch_size = 64, .memory_limit = held + kMiB});
  EXPECT_EQ(plan.fixed_bytes, held - waiting + 50 * 8 * 4);
  EXPECT_TRUE(weight.grad().is_same(gradient));
  EXPECT_EQ(trainer.progress().window, 1);
}

TEST_F(BatchPlanner, ABucketStaysWhereGradientsThatLieInItEnd) {
  TrainOptions options;
  options.gradient_accumulation_steps = 2;
  const tiny::Training training(options);
  Trainer& trainer = *training.trainer;
  tiny::train(training, 1);
  const std::int64_t parameters = parameter_bytes(trainer);
  const at::Tensor bucket = at::zeros({parameters / 4});
  std::int64_t begin = 0;
  for (const auto& [name, parameter] : trainer.model().parameters) {
    parameter.mutable_grad() = bucket.narrow(0, begin, parameter.numel()).view(parameter.sizes());
    begin += parameter.numel();
  }
  const std::int64_t held = tensor_bytes();
  const BatchPlan plan = plan_batch_size(trainer, batches_for(training), {.memory_limit = held + 4 * kMiB});
  EXPECT_EQ(plan.fixed_bytes, held + parameters);
}

TEST_F(BatchPlanner, WhereTheUpdateIsThePeakOfASizeThatWasNotProbedItIsPredictedToo) {
  const Branches network(256, 2);
  OptimizerOptions optimizer;
  optimizer.set_implementation(OptimizerImplementation::foreach_);
  optimizer.maximize = true;  // Two temporaries as large as all parameters.
  Trainer trainer = network.trainer(optimizer);
  const BatchPlan plan =
      plan_batch_size(trainer, network.batches(),
                      {.max_batch_size = 40, .memory_limit = limit_with(16 * kMiB), .global_batch_size = 63});
  EXPECT_EQ(plan.batch_size, 21);
  EXPECT_EQ(plan.gradient_accumulation_steps, 3);
  EXPECT_FALSE(plan.samples_per_second.has_value());
  for (const BatchProbe& probe : plan.probes) {
    EXPECT_LT(probe.gradient_peak_bytes, probe.peak_bytes);
    EXPECT_LE(probe.peak_bytes, plan.predicted_peak);
  }
  const BoundForward forward = network.batches()(plan.batch_size);
  reset_peak_tensor_bytes();
  trainer.step(forward, plan.batch_size);
  EXPECT_LE(peak_tensor_bytes(), plan.predicted_peak + 4096);
}

TEST_F(BatchPlanner, ABatchThatIsCutSaysThatBatchNormDependsOnItsParts) {
  const auto reason_of = [](Trainer& trainer, const BatchOf& batch_of, std::int64_t global) {
    const BatchPlannerOptions options{.initial_batch_size = 4,
                                      .max_batch_size = 8,
                                      .memory_limit = limit_with(64 * kMiB),
                                      .target_throughput = 1e12,
                                      .global_batch_size = global};
    return plan_batch_size(trainer, batch_of, options).reason;
  };
  const tiny::Training with_norm;
  EXPECT_THAT(reason_of(*with_norm.trainer, batches_for(with_norm), 16), HasSubstr("BatchNorm depends on"));
  for (const std::int64_t whole : {0, 4}) {
    EXPECT_THAT(reason_of(*with_norm.trainer, batches_for(with_norm), whole), testing::Not(HasSubstr("BatchNorm")));
  }
  const Branches without(16, 2);
  Trainer trainer = without.trainer();
  EXPECT_THAT(reason_of(trainer, without.batches(), 16), testing::Not(HasSubstr("BatchNorm")));
}

void expect_equal_progress(Trainer& trainer, Trainer& reference) {
  const Progress &mine = trainer.progress(), &others = reference.progress();
  EXPECT_EQ(mine.batch, others.batch);
  EXPECT_EQ(mine.optimizer_steps, others.optimizer_steps);
  EXPECT_EQ(mine.skipped_updates, others.skipped_updates);
  EXPECT_EQ(mine.window, others.window);
  EXPECT_EQ(mine.window_weight, others.window_weight);
  EXPECT_EQ(mine.largest_weight, others.largest_weight);
  EXPECT_EQ(mine.loss_sum, others.loss_sum);
  EXPECT_EQ(mine.loss_samples, others.loss_samples);
  EXPECT_EQ(mine.loss_scale, others.loss_scale);
  EXPECT_EQ(mine.scale_good_updates, others.scale_good_updates);
  EXPECT_TRUE(mine.guard == others.guard);
  EXPECT_EQ(trainer.clip_report().norm_before, reference.clip_report().norm_before);
}

// Everything that BATCH-09 names, in the middle of a window.
class Unchanged : public BatchPlanner, public testing::WithParamInterface<const char*> {};

TEST_P(Unchanged, AllIsBitForBitAsItWas) {
  const std::string kind = GetParam();
  TrainOptions options = tiny::averaging(0.9);
  options.gradient_accumulation_steps = 3;
  if (kind == "rollback") options.step_guard.policy = GuardPolicy::rollback;
  if (kind == "scaled") options.loss_scale = 1024;
  const bool is_guarded = kind == "guarded";
  if (is_guarded) {
    options.step_guard.policy = GuardPolicy::replace;
    options.max_grad_norm = 1;
  }
  OptimizerOptions optimizer;
  if (kind == "momentum") {
    optimizer.name = OptimizerName::sgd;
    optimizer.momentum = 0.9;
  }
  const tiny::Training training(options, optimizer), reference(options, optimizer);
  Trainer& trainer = *training.trainer;
  std::vector<StepPart> told;
  trainer.on_part = [&told](StepPart part) { told.push_back(part); };
  for (const tiny::Training* each : {&training, &reference}) {
    at::manual_seed(7);
    tiny::train(*each, 3);  // An update.
    if (is_guarded) {
      TensorBatch bad = tiny::random_batch(8);
      bad["image"].fill_(std::numeric_limits<double>::quiet_NaN());
      each->trainer->step(bad);
    }
    tiny::train(*each, 1);  // One micro-batch that waits.
  }
  ASSERT_EQ(trainer.progress().window, is_guarded ? 2 : 1);
  told.clear();
  const Named before = clones(training.tensors()), kept = clones(trainer.last_good_state());
  Named gradients;
  for (const auto& [name, parameter] : trainer.model().parameters) gradients.emplace_back(name, parameter.grad());
  const Named gradient_values = clones(gradients);
  const at::Tensor generator = generator_state();

  const BatchPlan plan = plan_batch_size(trainer, batches_for(training),
                                         {.memory_limit = limit_with(4 * kMiB), .target_throughput = 1e12});
  EXPECT_GE(plan.probes.size(), 2U);

  expect_equal(training.tensors(), before);
  expect_equal(trainer.last_good_state(), kept);
  expect_equal(gradients, gradient_values);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_TRUE(trainer.model().parameters[i].second.grad().is_same(gradients[i].second)) << gradients[i].first;
  }
  EXPECT_TRUE(generator_state().equal(generator));
  EXPECT_THAT(told, IsEmpty());
  EXPECT_TRUE(training.network->training());
  expect_equal_progress(trainer, *reference.trainer);

  for (const int steps : {1, 4}) {
    for (const tiny::Training* each : {&training, &reference}) {
      at::manual_seed(8);
      tiny::train(*each, steps);
    }
    expect_equal_progress(trainer, *reference.trainer);  // After the window's update, and after a later one.
    EXPECT_EQ(reference.trainer->progress().guard.in_a_row, is_guarded && steps == 1 ? 1 : 0);
  }
  expect_equal(training.tensors(), reference.tensors());
  EXPECT_EQ(told.front(), StepPart::forward);  // The hook is back.
}

INSTANTIATE_TEST_SUITE_P(BatchPlanner, Unchanged, testing::Values("plain", "momentum", "scaled", "rollback", "guarded"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_F(BatchPlanner, RunningOutIsSurvivedAndLeavesNothingBehind) {
  const tiny::Training training;
  const Named before = clones(training.tensors());
  const std::int64_t held = tensor_bytes(), limit = held + kMiB;
  const BatchPlan plan = plan_batch_size(*training.trainer, batches_for(training),
                                         {.initial_batch_size = 2048, .max_batch_size = 2048, .memory_limit = limit});
  EXPECT_TRUE(plan.probes[0].ran_out);
  EXPECT_EQ(plan.probes[0].step_s, 0);
  EXPECT_FALSE(plan.probes.back().ran_out);
  EXPECT_GT(plan.batch_size, 0);
  EXPECT_LT(plan.batch_size, 2048);
  expect_equal(training.tensors(), before);
  EXPECT_LT(tensor_bytes() - held, 65'536);  // What a trainer keeps from step to step.
  EXPECT_TRUE(fits(training, plan.batch_size, limit + 65'536));
}

TEST_F(BatchPlanner, ABackwardThatRunsOutHalfwayLeavesNothingInTheQueue) {
  Branches network(256, 4);
  network.in_backward = [](std::int64_t n) {
    if (n == 128) throw c10::OutOfMemoryError("wanted 10 bytes, 90 are held, the limit is 95");
  };
  Trainer trainer = network.trainer();
  trainer.step(network.batches()(8), 8);  // What a trainer keeps from step to step.
  const std::int64_t held = tensor_bytes();
  const BatchPlan plan =
      plan_batch_size(trainer, network.batches(), {.initial_batch_size = 128, .memory_limit = held + 64 * kMiB});
  EXPECT_TRUE(plan.probes[0].ran_out);
  EXPECT_LT(plan.batch_size, 128);
  EXPECT_LT(tensor_bytes() - held, 64 * 1024);  // A layer gives 128 KiB.
}

TEST_F(BatchPlanner, KeepsToTheLimitInForceAndLeavesIt) {
  const tiny::Training training;
  const std::int64_t limit = limit_with(2 * kMiB);
  set_tensor_memory_limit(limit);
  EXPECT_EQ(plan_batch_size(*training.trainer, batches_for(training)).memory_limit, limit);
  EXPECT_EQ(tensor_memory_limit(), limit);
  const BatchPlan plan = plan_batch_size(*training.trainer, batches_for(training), {.memory_limit = 100 * limit});
  EXPECT_EQ(plan.memory_limit, limit);
  EXPECT_LE(plan.predicted_peak, limit);
}

TEST_F(BatchPlanner, WithoutALimitItKeepsToWhatTheMachineHasLeft) {
  const tiny::Training training;
  const BatchPlan plan = plan_batch_size(*training.trainer, batches_for(training), {.max_batch_size = 64});
  EXPECT_EQ(plan.largest_batch_size, 64);
  EXPECT_GT(plan.memory_limit, plan.predicted_peak);
  EXPECT_EQ(tensor_memory_limit(), 0);
}

TEST_F(BatchPlanner, KeepsTheGlobalBatchByAccumulation) {
  const tiny::Training training;
  const std::int64_t limit = limit_with(2 * kMiB);
  const BatchPlan plan =
      plan_batch_size(*training.trainer, batches_for(training), {.memory_limit = limit, .global_batch_size = 480});
  EXPECT_GT(plan.gradient_accumulation_steps, 1);
  EXPECT_EQ(plan.batch_size * plan.gradient_accumulation_steps, 480);
  EXPECT_LE(plan.batch_size, plan.largest_batch_size);
  EXPECT_LE(plan.predicted_peak, limit);
  const BatchPlan whole =
      plan_batch_size(*training.trainer, batches_for(training), {.memory_limit = 64 * limit, .global_batch_size = 24});
  EXPECT_EQ(whole.largest_batch_size, 24);  // No size above the global batch is of use.
  EXPECT_EQ(whole.batch_size * whole.gradient_accumulation_steps, 24);
}

TEST_F(BatchPlanner, ALimitBelowWhatIsHeldNamesBoth) {
  const tiny::Training training;
  const Named before = clones(training.tensors());
  const std::string message =
      message_of(*training.trainer, batches_for(training), {.memory_limit = 1000}, ErrorCode::out_of_memory);
  EXPECT_THAT(message, AllOf(HasSubstr("memory_limit: wanted more than the "), HasSubstr("found 1000")));
  EXPECT_EQ(tensor_memory_limit(), 0);
  expect_equal(training.tensors(), before);
}

TEST_F(BatchPlanner, NoRoomForOneSampleTellsWhatWasAsked) {
  const tiny::Training training;
  const BatchPlannerOptions options{.memory_limit = limit_with(16 * 1024)};
  const BatchOf huge = [&training](std::int64_t n) -> BoundForward {
    return [network = training.network.get(), batch = tiny::random_batch(n * 4096)] { return (*network)(batch); };
  };
  EXPECT_THAT(message_of(*training.trainer, huge, options, ErrorCode::out_of_memory),
              AllOf(HasSubstr("for one sample, found "), HasSubstr("bytes for a tensor")));
}

TEST_F(BatchPlanner, WhatForwardThrowsGoesOnAndAllIsPutBack) {
  const tiny::Training training;
  const Named before = clones(training.tensors());
  int calls = 0;
  const BatchOf failing = [&](std::int64_t n) -> BoundForward {
    return [&, n] {
      if (++calls == 3) throw std::logic_error("broken");
      return (*training.network)(tiny::random_batch(n));
    };
  };
  EXPECT_THROW(plan_batch_size(*training.trainer, failing, {.memory_limit = limit_with(4 * kMiB)}), std::logic_error);
  expect_equal(training.tensors(), before);
  EXPECT_EQ(training.trainer->progress().optimizer_steps, 0);
  EXPECT_EQ(tensor_memory_limit(), 0);
}

// As Ctrl-C does, which Python raises in whatever runs.
TEST_F(BatchPlanner, WhereAnExternalOptimizerCannotBePutBackAllElseIs) {
  TrainOptions options;
  options.gradient_accumulation_steps = 2;
  const tiny::Training training(options);
  Trainer& trainer = *training.trainer;
  int calls = 0;
  trainer.external_optimizer = {.name = "torch.optim.Muon",
                                .step = [](const auto&) {},
                                .keep_state =
                                    [&calls] {
                                      return [&calls] {
                                        // Before the search, before its only probe, and behind that.
                                        if (++calls == 3) throw std::runtime_error("interrupted");
                                      };
                                    }};
  tiny::train(training, 1);
  std::vector<StepPart> told;
  trainer.on_part = [&told](StepPart part) { told.push_back(part); };
  const Named before = clones(training.tensors());
  const at::Tensor gradient = trainer.model().parameters[0].second.grad();
  const BatchOf failing = [](std::int64_t) -> BoundForward {
    return []() -> Output { throw std::logic_error("broken"); };
  };
  const auto plan = [&](const BatchOf& batch_of) {
    calls = 0;
    plan_batch_size(trainer, batch_of,
                    {.initial_batch_size = 8, .max_batch_size = 8, .memory_limit = limit_with(4 * kMiB)});
  };
  const auto expect_put_back = [&] {
    EXPECT_EQ(calls, 3);
    expect_equal(training.tensors(), before);
    EXPECT_TRUE(trainer.model().parameters[0].second.grad().is_same(gradient));
    EXPECT_EQ(trainer.progress().window, 1);
    EXPECT_EQ(trainer.progress().optimizer_steps, 0);
    EXPECT_EQ(tensor_memory_limit(), 0);
    EXPECT_THAT(told, IsEmpty());
  };
  EXPECT_THROW(plan(batches_for(training)), std::runtime_error);
  expect_put_back();
  EXPECT_THROW(plan(failing), std::logic_error);  // It comes first.
  expect_put_back();
  tiny::train(training, 1);
  EXPECT_EQ(told.front(), StepPart::forward);  // The hook is back.
}

TEST_F(BatchPlanner, OptionsThatMakeNoSenseAreErrors) {
  const tiny::Training training;
  const auto message = [&](const BatchPlannerOptions& options) {
    return message_of(*training.trainer, batches_for(training), options, ErrorCode::invalid_argument);
  };
  EXPECT_THAT(message({.initial_batch_size = 0}), HasSubstr("initial_batch_size: wanted 1 to max_batch_size"));
  EXPECT_THAT(message({.initial_batch_size = 64, .max_batch_size = 32}), HasSubstr("which is 32, found 64"));
  EXPECT_THAT(message({.memory_limit = -1}), HasSubstr("memory_limit: wanted at least 0, found -1"));
  EXPECT_THAT(message({.target_throughput = -2}), HasSubstr("target_throughput"));
  EXPECT_THAT(message({.global_batch_size = -4}), HasSubstr("global_batch_size"));
  training.trainer->external_optimizer = {.name = "torch.optim.Muon", .step = [](const auto&) {}};
  EXPECT_THAT(message_of(*training.trainer, batches_for(training), {}, ErrorCode::unsupported),
              HasSubstr("torch.optim.Muon: wanted a keep_state"));
}

}  // namespace
}  // namespace headrace
