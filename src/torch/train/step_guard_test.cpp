#include <headrace/step_guard.h>

#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
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
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "core/base/temporary_folder.h"
#include "core/memory/accounts.h"
#include "torch/tensor/safetensors.h"
#include "torch/train/checkpoint.h"
#include "torch/train/detail/header_checksum.h"
#include "torch/train/equal_tensors.h"
#include "torch/train/finite.h"
#include "torch/train/tiny_training.h"
#include "torch/train/training_state.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int64_t kBadStep = 5;

TrainOptions guarding(GuardPolicy policy) {
  TrainOptions options;
  options.step_guard.policy = policy;
  options.step_guard.keep_every = 2;
  return options;
}

at::Tensor parameter_of(const tiny::Training& training, const std::string& name) {
  for (const auto& [known, tensor] : training.trainer->model().parameters) {
    if (known == name) return tensor;
  }
  ADD_FAILURE() << "no parameter " << name;
  return {};
}

// From now on each update finds a NaN in this parameter's gradient.
void spoil_gradients(const tiny::Training& training, const std::string& name) {
  training.trainer->on_part = [gradient_of = parameter_of(training, name)](StepPart part) {
    if (part == StepPart::optimizer) gradient_of.grad().select(0, 0).fill_(kNan);
  };
}

void spoil_weight(const tiny::Training& training, const std::string& name) {
  parameter_of(training, name).detach().select(0, 0).fill_(kNan);
}

TensorBatch bad_batch() {
  TensorBatch batch = tiny::random_batch(8);
  batch["image"].select(0, 2).fill_(kNan);
  return batch;
}

void expect_goes_on(const tiny::Training& training) {
  training.trainer->on_part = {};
  training.trainer->take_mean_loss();
  const std::int64_t updates = training.trainer->progress().optimizer_steps;
  tiny::train(training, 5);
  EXPECT_EQ(training.trainer->progress().optimizer_steps, updates + 5);
  EXPECT_TRUE(std::isfinite(training.trainer->take_mean_loss().value()));
  for (const auto& [name, tensor] : training.tensors()) EXPECT_TRUE(is_finite(tensor)) << name;
}

// ---- A NaN in the gradient of one layer, at step 5 ----

struct BadGradient : ::testing::Test {
  // Trains up to the bad step and makes it; what it threw.
  std::string run(const TrainOptions& options) {
    training.emplace(options);
    tiny::train(*training, kBadStep);
    spoil_gradients(*training, "conv2.weight");
    before = clones(training->tensors());
    lr = training->trainer->learning_rate();
    try {
      tiny::train(*training, 1);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::numerics);
      return error.what();
    }
    return "";
  }
  const Progress& progress() const { return training->trainer->progress(); }
  void expect_named() const {
    const std::optional<StepFault>& fault = training->trainer->guard().last_fault();
    ASSERT_TRUE(fault.has_value());
    EXPECT_EQ(fault->kind, FaultKind::gradient);
    EXPECT_EQ(fault->tensor, "conv2.weight");
    EXPECT_EQ(fault->module, "conv2");
    EXPECT_EQ(fault->batch, kBadStep);
    EXPECT_TRUE(std::isnan(fault->value));
    EXPECT_EQ(progress().guard.gradients, 1);
    EXPECT_EQ(progress().guard.faults(), 1);
  }

  // All but buffers, which the forward moved on.
  void expect_parameters_and_state_unchanged() const {
    const Named now = training->tensors();
    ASSERT_EQ(now.size(), before.size());
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (now[i].first.find("running") != std::string::npos) continue;
      EXPECT_TRUE(now[i].second.equal(before[i].second)) << now[i].first;
    }
  }

  std::optional<tiny::Training> training;
  Named before;
  double lr = 0;
};

TEST_F(BadGradient, RaiseNamesTheTensorAndChangesNothing) {
  for (const double max_grad_norm : {0.0, 1.0}) {
    TrainOptions options = guarding(GuardPolicy::raise);
    options.max_grad_norm = max_grad_norm;
    EXPECT_EQ(run(options), "train: gradient of conv2.weight is nan in epoch 0, batch 5");
    expect_named();
    expect_parameters_and_state_unchanged();
    expect_goes_on(*training);
  }
}

TEST_F(BadGradient, SkipLeavesTheUpdateOut) {
  EXPECT_EQ(run(guarding(GuardPolicy::skip)), "");
  expect_named();
  EXPECT_EQ(progress().guard.skipped, 1);
  EXPECT_EQ(progress().optimizer_steps, kBadStep);
  EXPECT_EQ(progress().skipped_updates, 1);
  EXPECT_EQ(progress().batch, kBadStep + 1);
  expect_parameters_and_state_unchanged();
  expect_goes_on(*training);
}

TEST_F(BadGradient, ReplaceMakesItsElementsZeroAndUpdates) {
  for (const double max_grad_norm : {0.0, 1.0}) {
    TrainOptions options = guarding(GuardPolicy::replace);
    options.max_grad_norm = max_grad_norm;
    EXPECT_EQ(run(options), "");
    expect_named();
    EXPECT_EQ(progress().guard.replaced, 1);
    EXPECT_EQ(progress().optimizer_steps, kBadStep + 1);
    EXPECT_EQ(progress().skipped_updates, 0);
    EXPECT_FALSE(parameter_of(*training, "conv2.weight").equal(before[2].second)) << "its other elements moved";
    expect_goes_on(*training);
  }
}

TEST_F(BadGradient, LowerLrLeavesTheUpdateOutAndLowersTheRate) {
  TrainOptions options = guarding(GuardPolicy::lower_lr);
  options.step_guard.lr_factor = 0.25;
  EXPECT_EQ(run(options), "");
  expect_named();
  EXPECT_EQ(progress().guard.lowered_lr, 1);
  EXPECT_EQ(progress().optimizer_steps, kBadStep);
  EXPECT_DOUBLE_EQ(training->trainer->learning_rate(), 0.25 * lr);
  expect_goes_on(*training);
}

TEST_F(BadGradient, RollbackReturnsToTheLastGoodState) {
  TrainOptions options = guarding(GuardPolicy::rollback);
  options.ema_decay = 0.9;
  tiny::Training reference(options);
  tiny::train(reference, 4);  // Kept after every second update.
  const Named wanted = clones(reference.tensors());
  const at::Tensor generator = generator_state();

  EXPECT_EQ(run(options), "");
  expect_named();
  EXPECT_EQ(progress().guard.rolled_back, 1);
  EXPECT_EQ(progress().optimizer_steps, kBadStep) << "the schedule goes on";
  expect_equal(training->tensors(), wanted);
  EXPECT_TRUE(generator_state().equal(generator));
  expect_goes_on(*training);
}

// ---- A NaN in a weight ----

TEST(BadWeight, IsNamedByTheLossThatItSpoils) {
  tiny::Training training;
  tiny::train(training, kBadStep);
  spoil_weight(training, "conv2.weight");
  EXPECT_EQ(error_of(ErrorCode::numerics, [&] { tiny::train(training, 1); }),
            "train: loss is nan in epoch 0, batch 5: conv2.weight is not finite");
  EXPECT_EQ(training.trainer->guard().last_fault()->module, "conv2");
}

TEST(BadWeight, IsNotMendedByLeavingOutUpdates) {
  for (const GuardPolicy policy : {GuardPolicy::skip, GuardPolicy::lower_lr}) {
    tiny::Training training(guarding(policy));
    spoil_weight(training, "last.bias");
    EXPECT_THAT(error_of(ErrorCode::numerics, [&] { tiny::train(training, 1); }),
                HasSubstr("wanted replace or rollback"));
  }
}

TEST(BadWeight, IsReplacedOrRolledBack) {
  for (const GuardPolicy policy : {GuardPolicy::replace, GuardPolicy::rollback}) {
    tiny::Training training(guarding(policy));
    tiny::train(training, 4);
    const Named good = clones(training.weights());
    spoil_weight(training, "conv2.weight");
    tiny::train(training, 1);
    EXPECT_EQ(training.trainer->progress().optimizer_steps, 4);
    EXPECT_EQ(training.trainer->progress().guard.losses, 1);
    if (policy == GuardPolicy::rollback) {
      expect_equal(training.weights(), good);
    } else {
      EXPECT_TRUE(parameter_of(training, "conv2.weight").select(0, 0).eq(0).all().item<bool>());
    }
    expect_goes_on(training);
  }
}

// A generator of somebody else's, of which each forward draws a number.
TEST(Rollback, PutsOtherGeneratorsBackToWhereTheyWereWithTheState) {
  TrainOptions options = guarding(GuardPolicy::rollback);  // A state every second update.
  tiny::Training training(options);
  Trainer& trainer = *training.trainer;
  std::int64_t drawn = 0;
  trainer.other_generators = {
      .state = [&drawn] { return at::full({3}, drawn, at::kByte); },
      .set_state = [&drawn](const at::Tensor& state) { drawn = state[2].item<std::int64_t>(); }};
  trainer.on_part = [&drawn](StepPart part) { drawn += part == StepPart::forward ? 1 : 0; };
  tiny::train(training, 5);
  EXPECT_EQ(drawn, 5);
  TensorBatch bad = tiny::random_batch(8);
  bad["image"].fill_(kNan);
  trainer.step(bad);
  EXPECT_EQ(trainer.progress().guard.rolled_back, 1);
  EXPECT_EQ(drawn, 4) << "of the state after four updates";
  const Named kept = trainer.last_good_state();
  EXPECT_TRUE(std::any_of(kept.begin(), kept.end(), [](const auto& named) {
    return named.first == "generator/others";
  })) << "a checkpoint holds it";
}

TEST(BadWeight, IsFoundAfterTheUpdateThatMadeIt) {
  for (const bool weights : {false, true}) {
    OptimizerOptions optimizer;
    optimizer.name = OptimizerName::sgd;
    optimizer.lr = 1e38;
    TrainOptions options = guarding(GuardPolicy::raise);
    options.step_guard.weights = weights;
    tiny::Training training(options, optimizer);
    training.trainer->on_part = [weight = parameter_of(training, "last.bias")](StepPart part) {
      if (part == StepPart::optimizer) weight.grad().fill_(1e30F);
    };
    if (weights) {
      EXPECT_THAT(error_of(ErrorCode::numerics, [&] { tiny::train(training, 1); }),
                  HasSubstr("train: last.bias is -inf in epoch 0, batch 0"));
    } else {
      EXPECT_NO_THROW(tiny::train(training, 1));
    }
  }
}

// ---- A NaN in a batch ----

TEST(BadBatch, LeavesBuffersAsTheyWere) {
  for (const GuardPolicy policy : {GuardPolicy::skip, GuardPolicy::lower_lr, GuardPolicy::replace}) {
    tiny::Training training(guarding(policy));
    tiny::train(training, 2);
    const Named before = clones(training.weights());
    training.trainer->step(bad_batch());
    expect_equal(training.weights(), before);
    EXPECT_EQ(training.trainer->progress().guard.losses, 1);
    EXPECT_EQ(training.trainer->progress().batch, 3);
    expect_goes_on(training);
  }
}

TEST(BadBatch, DropsItsWindowUnlessItIsReplaced) {
  for (const GuardPolicy policy :
       {GuardPolicy::skip, GuardPolicy::replace, GuardPolicy::lower_lr, GuardPolicy::rollback}) {
    TrainOptions options = guarding(policy);
    options.gradient_accumulation_steps = 3;
    tiny::Training training(options);
    tiny::train(training, 1);
    training.trainer->step(bad_batch());
    EXPECT_EQ(training.trainer->progress().window, policy == GuardPolicy::replace ? 2 : 0);
    tiny::train(training, 1);
    EXPECT_EQ(training.trainer->progress().optimizer_steps, policy == GuardPolicy::replace ? 1 : 0);
  }
}

TEST(BadBatch, IsBorneSoOftenInARowAndInAll) {
  TrainOptions options = guarding(GuardPolicy::skip);
  options.step_guard.max_in_a_row = 2;
  options.step_guard.max_faults = 4;
  tiny::Training training(options);
  const auto step_badly = [&] { training.trainer->step(bad_batch()); };
  step_badly();
  step_badly();
  tiny::train(training, 1);
  EXPECT_EQ(training.trainer->progress().guard.in_a_row, 0);
  step_badly();
  step_badly();
  EXPECT_THAT(error_of(ErrorCode::numerics, step_badly), HasSubstr("step_guard.max_in_a_row"));
  tiny::train(training, 1);
  EXPECT_THAT(error_of(ErrorCode::numerics, step_badly), HasSubstr("step_guard.max_faults"));
}

TEST(BadBatch, LeavesBuffersAsTheyWereAlsoWhereALimitIsPassed) {
  TrainOptions options = guarding(GuardPolicy::skip);
  options.step_guard.max_in_a_row = 1;
  tiny::Training training(options);
  tiny::train(training, 2);
  const Named before = clones(training.weights());
  training.trainer->step(bad_batch());
  error_of(ErrorCode::numerics, [&] { training.trainer->step(bad_batch()); });
  expect_equal(training.weights(), before);
}

// ---- Parameters that the optimizer has not ----

TEST(StepGuard, LooksAtNoGradientOfAnotherParameterAndDropsIt) {
  for (const GuardPolicy policy : {GuardPolicy::raise, GuardPolicy::skip}) {
    const at::Tensor backbone = at::full({3}, 2.0).requires_grad_(), head = at::full({3}, 1.0).requires_grad_();
    Trainer trainer(ModelState{{{"backbone", backbone}, {"head", head}}, {}, [](bool) {}},
                    Optimizer({{"head", head}}, {}), {}, guarding(policy), {}, 10);
    for (int i = 0; i < 3; ++i) {
      // The root of 0 has no slope: finite, with a gradient that is not.
      const double factor = i == 0 ? 0.0 : 1.0;
      trainer.step([&] { return Output{at::sqrt(backbone.mul(factor)).sum().add(head.sum()), {}}; }, 1);
      EXPECT_FALSE(backbone.grad().defined());
    }
    EXPECT_EQ(trainer.progress().optimizer_steps, 3);
    EXPECT_EQ(trainer.progress().guard, GuardCounts{});
  }
}

// ---- With a loss scale ----

TEST(StepGuard, AnOverflowThatALossScaleForgivesIsNoFault) {
  for (const double max_grad_norm : {0.0, 1.0}) {
    TrainOptions options = guarding(GuardPolicy::raise);
    options.loss_scale = 65536;
    options.max_grad_norm = max_grad_norm;
    tiny::Training training(options);
    training.trainer->on_part = [weight = parameter_of(training, "conv.weight")](StepPart part) {
      if (part == StepPart::optimizer) weight.grad().mul_(kInfinity);
    };
    tiny::train(training, 1);
    EXPECT_EQ(training.trainer->loss_scale(), 32768);
    EXPECT_EQ(training.trainer->progress().skipped_updates, 1);
    EXPECT_EQ(training.trainer->progress().guard, GuardCounts{});
    EXPECT_FALSE(training.trainer->guard().last_fault().has_value());
  }
}

TEST(StepGuard, AnOverflowThatMakesNanInABackwardIsNoFaultEither) {
  for (const bool detect_anomaly : {false, true}) {
    const at::Tensor weight = at::full({3}, 2.0).requires_grad_();
    TrainOptions options = guarding(GuardPolicy::raise);
    options.loss_scale = 1e38;
    options.step_guard.detect_anomaly = detect_anomaly;
    Trainer trainer(ModelState{{{"weight", weight}}, {}, [](bool) {}}, Optimizer({{"weight", weight}}, {}), {}, options,
                    {}, 10);
    // Backward: 1e38 * 1e30 is infinite, and 0 times that NaN.
    trainer.step([&] { return Output{weight.mul(0).mul(1e30).sum(), {}}; }, 1);
    EXPECT_EQ(trainer.progress().skipped_updates, 1);
    EXPECT_LT(trainer.loss_scale(), 1e38);
    EXPECT_EQ(trainer.progress().guard, GuardCounts{});
  }
}

TEST(StepGuard, AnUpdateThatThrowsLeavesTheLossScale) {
  TrainOptions options = guarding(GuardPolicy::raise);
  options.loss_scale = 1024;
  tiny::Training training(options);
  training.trainer->external_optimizer = {"mine.Optimizer", [](const auto&) { throw std::runtime_error("no update"); }};
  EXPECT_THROW(tiny::train(training, 1), std::runtime_error);
  EXPECT_EQ(training.trainer->progress().scale_good_updates, 0);
  EXPECT_EQ(training.trainer->progress().optimizer_steps, 0);
}

// ---- Rollback ----

TEST(StepGuard, KeepsNoStateWhoseOptimizerIsNotFinite) {
  TrainOptions options = guarding(GuardPolicy::rollback);
  options.step_guard.keep_every = 1;
  tiny::Training training(options);
  tiny::train(training, 1);
  training.trainer->on_part = [weight = parameter_of(training, "conv.weight")](StepPart part) {
    if (part == StepPart::optimizer) weight.grad().fill_(1e25F);  // Its square is infinite, the weight is not.
  };
  tiny::train(training, 1);
  EXPECT_EQ(training.trainer->progress().optimizer_steps, 2);
  EXPECT_EQ(training.trainer->progress().guard, GuardCounts{});
  for (const auto& [name, tensor] : training.trainer->last_good_state()) EXPECT_TRUE(is_finite(tensor)) << name;
}

TEST(StepGuard, KeepsAnewWhereAnotherOptimizerMakesTheUpdates) {
  tiny::Training training(guarding(GuardPolicy::rollback));
  tiny::train(training, 2);
  int steps = 0;
  training.trainer->external_optimizer = {
      "mine.Optimizer", [&](const auto&) { ++steps; },
      [&] { return std::function<void()>([&steps, kept = steps] { steps = kept; }); }};
  tiny::train(training, 1);
  EXPECT_EQ(steps, 1);
  training.trainer->step(bad_batch());
  EXPECT_EQ(steps, 0);

  training.trainer->external_optimizer = {};
  const Named before = clones(training.tensors());
  training.trainer->step(bad_batch());
  expect_equal(training.tensors(), before);
}

TEST(StepGuard, RollbackWantsAnExternalOptimizerWhoseStateCanBeKept) {
  tiny::Training training(guarding(GuardPolicy::rollback));
  training.trainer->external_optimizer = {"mine.Optimizer", [](const auto&) {}};
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { tiny::train(training, 1); }), HasSubstr("keep_state"));
}

TEST(StepGuard, RollbackReturnsToTheLossScaleToo) {
  TrainOptions options = guarding(GuardPolicy::rollback);
  options.loss_scale = 1024;
  tiny::Training training(options);
  tiny::train(training, 2);
  training.trainer->progress().loss_scale = 4;
  training.trainer->step(bad_batch());
  EXPECT_EQ(training.trainer->loss_scale(), 1024);
  EXPECT_EQ(training.trainer->progress().scale_good_updates, 2);
}

TEST(StepGuard, RollbackReturnsToTheStateOfAnExternalOptimizer) {
  tiny::Training training(guarding(GuardPolicy::rollback));
  int steps = 0;
  training.trainer->external_optimizer = {
      "mine.Optimizer",
      [&](const std::function<double(double)>& scheduled) {
        EXPECT_GT(scheduled(1.0), 0.0);
        ++steps;
      },
      [&] { return std::function<void()>([&steps, kept = steps] { steps = kept; }); }};
  const Named before = clones(training.trainer->model().parameters);
  tiny::train(training, 3);
  EXPECT_EQ(steps, 3);
  EXPECT_EQ(training.trainer->progress().optimizer_steps, 3);
  expect_equal(training.trainer->model().parameters, before);
  training.trainer->step(bad_batch());
  EXPECT_EQ(steps, 2) << "kept after every second update";
}

TEST(StepGuard, AStateThatCannotBeKeptLeavesTheOneBefore) {
  tiny::Training training(guarding(GuardPolicy::rollback));
  bool fails = false;
  const auto keep = [&]() -> std::function<void()> {
    if (fails) throw std::runtime_error("no memory");
    return [] {};
  };
  training.trainer->external_optimizer = {"mine.Optimizer", [](const auto&) {}, keep};
  tiny::train(training, 1);
  const Named before = clones(training.trainer->last_good_state());
  training.trainer->model().parameters[0].second.detach().add_(1);
  fails = true;
  EXPECT_THROW(tiny::train(training, 1), std::runtime_error);  // After the second update.
  expect_equal(training.trainer->last_good_state(), before);
}

TEST(StepGuard, TheEndOfAWindowHasAStateToRollBackToAndNamesTheLastBatch) {
  TrainOptions options = guarding(GuardPolicy::rollback);
  options.gradient_accumulation_steps = 4;
  tiny::Training training(options);
  tiny::train(training, 2);
  training.trainer->set_last_good_state({});
  const Named before = clones(training.tensors());
  training.trainer->model().parameters[0].second.mutable_grad().fill_(kNan);
  training.trainer->finish_window();
  expect_equal(training.tensors(), before);
  EXPECT_EQ(training.trainer->progress().guard.rolled_back, 1);
  ASSERT_TRUE(training.trainer->guard().last_fault());
  EXPECT_EQ(training.trainer->guard().last_fault()->batch, 1);
}

TEST(StepGuard, KeptStateIsAnAccountOfItsOwn) {
  const auto account = [](const std::string& name) {
    for (const AccountBytes& known : account_bytes()) {
      if (known.name == name) return known.bytes;
    }
    return std::int64_t{-1};
  };
  tiny::Training plain;
  EXPECT_EQ(account("last good state"), -1);
  tiny::Training training(guarding(GuardPolicy::rollback));
  EXPECT_EQ(account("last good state"), 0);
  tiny::train(training, 1);
  EXPECT_GT(account("last good state"), bytes_of(training.tensors()));
}

// ---- In a loop of one's own ----

TEST(StepGuard, NamesTheGradientThatABackwardReachedFirst) {
  const tiny::Training training;
  const ModelState model = training.network->state();
  StepGuard guard(model, {});
  EXPECT_FALSE(guard.check_gradients().has_value()) << "there are none";
  for (const auto& [name, parameter] : model.parameters) parameter.mutable_grad() = at::zeros_like(parameter);
  EXPECT_FALSE(guard.check_gradients().has_value());
  for (const char* name : {"conv.weight", "conv2.weight", "norm.bias"}) {
    parameter_of(training, name).grad().select(0, 0).fill_(-kInfinity);
  }
  const std::optional<StepFault> fault = guard.check_gradients();
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->text(), "gradient of norm.bias is -inf in epoch 0, batch 0");
  guard.replace();
  EXPECT_FALSE(guard.check_gradients().has_value());
}

TEST(StepGuard, ChecksLossesAndBuffers) {
  const tiny::Training training;
  const ModelState model = training.network->state();
  StepGuard guard(model, {});
  EXPECT_FALSE(guard.check_loss(at::full({}, 3.0)).has_value());
  EXPECT_EQ(guard.check_loss(at::full({}, kInfinity))->text(), "loss is inf in epoch 0, batch 0");
  EXPECT_FALSE(guard.check_weights().has_value());
  model.buffers[0].second.select(0, 0).fill_(kNan);
  EXPECT_EQ(guard.check_weights()->tensor, "norm.running_mean");
  GuardCounts counts;
  EXPECT_THROW(guard.decide(*guard.check_weights(), counts), Error);
  EXPECT_EQ(counts.weights, 1);
}

// ---- Anomaly detection ----

// A trainer of one weight of three elements, whose loss is what `loss_of` makes of it.
struct OneWeight {
  OneWeight(bool detect_anomaly, std::function<at::Tensor(const at::Tensor&)> loss_of)
      : weight(at::full({3}, 2.0).requires_grad_()),
        trainer(ModelState{{{"weight", weight}}, {}, [](bool) {}}, Optimizer({{"weight", weight}}, {}), {},
                options(detect_anomaly), {}, 10),
        forward([this, loss = std::move(loss_of)] {
          return Output{loss(weight), {}};
        }) {}
  static TrainOptions options(bool detect_anomaly) {
    TrainOptions options;
    options.step_guard.detect_anomaly = detect_anomaly;
    return options;
  }
  std::string error() {
    return error_of(ErrorCode::numerics, [this] { trainer.step(forward, 1); });
  }

  at::Tensor weight;
  Trainer trainer;
  BoundForward forward;
};

TEST(Anomaly, ASquareRootOfANegativeNumberIsTracedToIt) {
  const auto loss_of = [](const at::Tensor& weight) { return at::sqrt(weight.sub(5)).mul(2).mean(); };
  EXPECT_THAT(OneWeight(true, loss_of).error(), HasSubstr("loss is nan in epoch 0, batch 0; first so was a result of "
                                                          "aten::sqrt"));
  EXPECT_THAT(OneWeight(false, loss_of).error(), Not(HasSubstr("aten")));
}

TEST(Anomaly, ANanThatNothingCameOfIsNamed) {
  const auto loss_of = [](const at::Tensor& weight) {
    const at::Tensor hidden = at::sqrt(weight.detach().sub(5));
    return at::where(hidden.eq(hidden), hidden, weight).mean();
  };
  EXPECT_EQ(OneWeight(true, loss_of).error(), "train: result of aten::sqrt is nan in epoch 0, batch 0");
  OneWeight plain(false, loss_of);
  EXPECT_NO_THROW(plain.trainer.step(plain.forward, 1));
}

// Two layers with a root between them, of a number that is negative where `spoils`.
struct RootBetween {
  Named parameters{{"first.weight", at::full({3, 3}, 0.5).requires_grad_()},
                   {"block.second.weight", at::full({2, 3}, 0.5).requires_grad_()}};
  Trainer trainer{
      ModelState{parameters, {}, [](bool) {}}, Optimizer(parameters, {}), {}, OneWeight::options(true), {}, 10};

  std::string error(bool between, double size) {
    const BoundForward forward = [&] {
      at::Tensor hidden = at::linear(at::full({1, 3}, size), parameters[0].second);
      if (between) hidden = hidden.sqrt();
      at::Tensor output = at::linear(hidden, parameters[1].second);
      if (!between) output = output.sqrt();
      return Output{output.mean(), {}};
    };
    return error_of(ErrorCode::numerics, [&] { trainer.step(forward, 1); });
  }
};

TEST(Anomaly, ANanWithFiniteWeightsNamesTheModuleAtOrAfterWhichItCame) {
  EXPECT_THAT(RootBetween().error(true, -1.0),
              testing::EndsWith("first so was a result of aten::sqrt, at or after module first"));
  RootBetween behind;
  EXPECT_THAT(behind.error(false, -1.0),
              testing::EndsWith("first so was a result of aten::sqrt, at or after module block.second"));
  EXPECT_EQ(behind.trainer.guard().last_fault()->module, "block.second");
  EXPECT_EQ(behind.trainer.guard().last_fault()->tensor, "") << "no weight is bad";
}

TEST(Anomaly, ABackwardsOperatorIsNamedWithItsFunction) {
  const auto loss_of = [](const at::Tensor& weight) { return at::sqrt(weight.mul(0)).sum(); };
  EXPECT_THAT(OneWeight(true, loss_of).error(), HasSubstr(" in MulBackward1 is nan"));
}

TEST(Anomaly, InfinitiesOfAMaskAreNoFault) {
  OneWeight masked(true, [](const at::Tensor& weight) {
    const at::Tensor mask = at::full({3}, -kInfinity);
    mask.select(0, 1).fill_(0);
    return weight.add(mask).softmax(0).square().sum();
  });
  EXPECT_NO_THROW(masked.trainer.step(masked.forward, 1));
  EXPECT_EQ(masked.trainer.progress().guard, GuardCounts{});
}

// ---- Checkpoints ----

Named by_name(Named tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return tensors;
}

TEST(StepGuardCheckpoint, AResumedRunRollsBackToTheSameBits) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "one.safetensors";
  TrainOptions options = guarding(GuardPolicy::rollback);
  options.ema_decay = 0.9;
  options.loss_scale = 1024;
  tiny::Training whole(options);
  tiny::train(whole, 2);
  whole.trainer->step(bad_batch());
  tiny::train(whole, 3);
  write_checkpoint(path, *whole.trainer, tiny::of_tiny());

  tiny::Training resumed(options, {}, /*seed=*/9);
  const CheckpointInfo info = load_checkpoint(path, *resumed.trainer, "tiny", /*weights_only=*/false);
  EXPECT_EQ(info.progress.guard.rolled_back, 1);
  EXPECT_EQ(resumed.trainer->progress().guard, whole.trainer->progress().guard);
  expect_equal(by_name(resumed.trainer->last_good_state()), by_name(whole.trainer->last_good_state()));
  for (const tiny::Training* training : {&whole, &resumed}) {
    at::manual_seed(77);
    training->trainer->step(bad_batch());
    EXPECT_EQ(training->trainer->progress().guard.rolled_back, 2);
    tiny::train(*training, 2);
  }
  expect_equal(resumed.tensors(), whole.tensors());
  EXPECT_EQ(resumed.trainer->progress().scale_good_updates, whole.trainer->progress().scale_good_updates);

  options.step_guard = {};
  for (const bool weights_only : {false, true}) {
    tiny::Training other(options);  // As whoever goes on after a rollback was no help.
    load_checkpoint(path, *other.trainer, "tiny", weights_only);
    EXPECT_TRUE(other.trainer->last_good_state().empty());
  }
}

TEST(StepGuardCheckpoint, ALoweredRateIsThatOfAResumedRunToo) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "one.safetensors";
  tiny::Training whole(guarding(GuardPolicy::lower_lr));
  tiny::train(whole, 2);
  whole.trainer->step(bad_batch());
  write_checkpoint(path, *whole.trainer, tiny::of_tiny());
  tiny::Training resumed(guarding(GuardPolicy::lower_lr), {}, /*seed=*/9);
  load_checkpoint(path, *resumed.trainer, "tiny", /*weights_only=*/false);
  for (const tiny::Training* training : {&whole, &resumed}) {
    at::manual_seed(77);
    tiny::train(*training, 2);
  }
  EXPECT_EQ(resumed.trainer->learning_rate(), whole.trainer->learning_rate());
  expect_equal(resumed.tensors(), whole.tensors());
}

TEST(StepGuardCheckpoint, ALoadOfWeightsAloneIsNotUndoneByARollback) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "one.safetensors";
  tiny::Training saved({}, {}, /*seed=*/9), loaded(guarding(GuardPolicy::rollback));
  write_checkpoint(path, *saved.trainer, tiny::of_tiny());
  tiny::train(loaded, 2);
  load_checkpoint(path, *loaded.trainer, "tiny", /*weights_only=*/true);
  loaded.trainer->step(bad_batch());
  EXPECT_EQ(loaded.trainer->progress().guard.rolled_back, 1);
  expect_equal(loaded.weights(), saved.weights());
}

TEST(StepGuardCheckpoint, HoldsNoStateToRollBackToOfAnExternalOptimizer) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "one.safetensors";
  tiny::Training training(guarding(GuardPolicy::rollback));
  training.trainer->external_optimizer = {"mine.Optimizer", [](const auto&) {},
                                          [] { return std::function<void()>([] {}); }};
  tiny::train(training, 2);
  write_checkpoint(path, *training.trainer, tiny::of_tiny());
  const SafetensorsFile file = read_safetensors(path);
  for (const auto& [name, tensor] : file.tensors) EXPECT_FALSE(name.starts_with("last_good/")) << name;
}

TEST(StepGuardCheckpoint, WithoutAWholeStateToRollBackToIsRefused) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "one.safetensors";
  tiny::Training training(guarding(GuardPolicy::rollback));
  tiny::train(training, 2);
  write_checkpoint(path, *training.trainer, tiny::of_tiny());
  const SafetensorsFile file = read_safetensors(path);
  for (const std::string missing : {"last_good/model/last.bias", "last_good/generator/cpu", "last_good/loss_scale"}) {
    Named incomplete = file.tensors;
    ASSERT_EQ(std::erase_if(incomplete, [&](const auto& tensor) { return tensor.first == missing; }), 1U);
    std::map<std::string, std::string> texts = file.metadata;
    texts["header_xxh3"] = header_checksum(texts, incomplete);
    write_safetensors(folder.path() / "incomplete", incomplete, texts);
    EXPECT_THAT(error_of(ErrorCode::corrupt_data,
                         [&] { load_checkpoint(folder.path() / "incomplete", *training.trainer, "tiny", false); }),
                HasSubstr("has no " + missing));
  }
}

TEST(StepGuardCheckpoint, ACheckpointOfAnotherPolicyIsTheFirstGoodState) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "one.safetensors";
  tiny::Training plain;
  tiny::train(plain, 3);
  write_checkpoint(path, *plain.trainer, tiny::of_tiny());
  tiny::Training resumed(guarding(GuardPolicy::rollback), {}, /*seed=*/9);
  tiny::train(resumed, 1);
  load_checkpoint(path, *resumed.trainer, "tiny", /*weights_only=*/false);
  resumed.trainer->step(bad_batch());
  expect_equal(resumed.weights(), plain.weights());
}

// ---- The pass over memory ----

TEST(IsFinite, FindsOneBadElementWhereverItIs) {
  for (const std::int64_t count : {1, 7, 4095, 4096, 4097, 200'000}) {
    const at::Tensor values = at::full({count}, std::numeric_limits<float>::max());
    EXPECT_TRUE(is_finite(values));
    for (const std::int64_t place : {std::int64_t{0}, count / 2, count - 1}) {
      for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
        values.select(0, place).fill_(bad);
        EXPECT_FALSE(is_finite(values)) << count << " " << place << " " << bad;
        EXPECT_EQ(std::isnan(value_not_finite(values)), std::isnan(bad));
        values.select(0, place).fill_(-std::numeric_limits<float>::max());
      }
    }
    EXPECT_TRUE(is_finite(values));
  }
}

TEST(IsFinite, TakesAnyLayoutAndType) {
  EXPECT_TRUE(is_finite({}));
  EXPECT_TRUE(is_finite(at::zeros({0})));
  EXPECT_TRUE(is_finite(at::zeros({3}, at::kLong)));
  const at::Tensor every_other = at::full({4, 6}, kNan).slice(1, 0, 6, 2);
  EXPECT_FALSE(is_finite(every_other));
  every_other.zero_();
  EXPECT_TRUE(is_finite(every_other)) << "the elements between are not its own";
  for (const at::ScalarType type : {at::kDouble, at::kHalf, at::kBFloat16}) {
    EXPECT_TRUE(is_finite(at::full({5}, 2.0, type)));
    EXPECT_FALSE(is_finite(at::full({5}, kInfinity, type)));
  }
}

}  // namespace
}  // namespace headrace
