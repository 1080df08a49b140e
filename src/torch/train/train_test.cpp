#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/lr_scheduler.h>
#include <headrace/trace.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>
#include <optional>
#include <stdexcept>

#include "core/base/error_of.h"
#include "core/exec/stop.h"
#include "core/memory/accounts.h"
#include "data/source/checkerboards.h"
#include "data/source/fields_source.h"
#include "torch/tensor/compute.h"
#include "torch/tensor/tensor_allocations.h"
#include "torch/train/equal_tensors.h"
#include "torch/train/loop.h"
#include "torch/train/tiny_training.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Throws;
using Implementation = OptimizerImplementation;

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return a.detach().sub(b.detach()).abs().max().item<double>();
}

// ---- Optimizer ----

Named random_parameters() {
  at::manual_seed(5);
  Named parameters;
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{16, 3, 3, 3}, {16}, {40, 33}, {1}}) {
    parameters.emplace_back("p" + std::to_string(parameters.size()), at::randn(shape).requires_grad_());
  }
  return parameters;
}

OptimizerOptions with(Implementation implementation, OptimizerOptions options = {}) {
  options.set_implementation(implementation);
  return options;
}

OptimizerOptions sgd(double momentum, bool nesterov = false, double weight_decay = 1e-2) {
  OptimizerOptions options;
  options.name = OptimizerName::sgd;
  options.momentum = momentum;
  options.nesterov = nesterov;
  options.weight_decay = weight_decay;
  return options;
}

// Every branch of the arithmetic.
std::vector<OptimizerOptions> all_kinds() {
  std::vector<OptimizerOptions> kinds{{}, sgd(0.9), sgd(0.9, true), sgd(0.9, true, 0), sgd(0), sgd(0, false, 0)};
  for (const bool amsgrad : {false, true}) {
    kinds.push_back({.name = OptimizerName::adam, .amsgrad = amsgrad, .maximize = amsgrad});
    kinds.push_back({.weight_decay = 0, .betas = {0.4, 0.9}, .amsgrad = !amsgrad});
  }
  kinds.push_back({.name = OptimizerName::sgd, .momentum = 0.9, .dampening = 0.5, .maximize = true});
  for (const bool centered : {false, true}) {
    for (const double momentum : {0.0, 0.5}) {
      kinds.push_back({.name = OptimizerName::rmsprop, .momentum = momentum, .centered = centered});
    }
  }
  return kinds;
}

// 1e-6 of the largest of them, where that is above 1.
double rounding_of(const at::Tensor& parameter) {
  return 1e-6 * std::max(1.0, parameter.detach().abs().max().item<double>());
}

// 100 steps on gradients drawn from the step's number; each parameter goes without one now and then.
void run_updates(Optimizer& optimizer, const Named& parameters, const std::function<void(int)>& before_step = {}) {
  for (int step = 0; step < 100; ++step) {
    at::manual_seed(static_cast<std::uint64_t>(1000 + step));
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor gradient = at::randn_like(parameters[i].second.detach());
      if ((step + static_cast<int>(i)) % 7 != 0) parameters[i].second.mutable_grad() = gradient;
    }
    if (before_step) before_step(step);
    optimizer.step(1e-2);
    optimizer.zero_gradients();
  }
}

TEST(Optimizer, ImplementationsAgreeOnTheSameGradients) {
  for (const OptimizerOptions& kind : all_kinds()) {
    const Named plain_parameters = random_parameters();
    Optimizer plain(plain_parameters, with(Implementation::for_loop, kind));
    run_updates(plain, plain_parameters);
    for (const Implementation implementation : {Implementation::foreach_, Implementation::fused}) {
      const Named parameters = random_parameters();
      Optimizer other(parameters, with(implementation, kind));
      run_updates(other, parameters);
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_LE(largest_difference(parameters[i].second, plain_parameters[i].second),
                  rounding_of(plain_parameters[i].second));
        EXPECT_GT(largest_difference(parameters[i].second, random_parameters()[i].second), 1e-3) << "it did move";
      }
      const Named found = other.state(), wanted = plain.state();
      ASSERT_EQ(found.size(), wanted.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_LE(largest_difference(found[i].second, wanted[i].second), 10 * rounding_of(wanted[i].second))
            << found[i].first;
      }
    }
  }
}

TEST(Optimizer, SwitchesInMidRunOverTheSameState) {
  for (const OptimizerOptions& kind : all_kinds()) {
    const Named plain_parameters = random_parameters();
    Optimizer plain(plain_parameters, with(Implementation::for_loop, kind));
    run_updates(plain, plain_parameters);
    const Named parameters = random_parameters();
    Optimizer switching(parameters, with(Implementation::for_loop, kind));
    run_updates(switching, parameters, [&](int step) {
      switching.set_implementation(std::array{Implementation::fused, Implementation::for_loop,
                                              Implementation::foreach_}[static_cast<std::size_t>(step / 3 % 3)]);
    });
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_LE(largest_difference(parameters[i].second, plain_parameters[i].second),
                rounding_of(plain_parameters[i].second));
    }
  }
}

TEST(Optimizer, SgdIsTheFormulaByHand) {
  for (const Implementation implementation :
       {Implementation::for_loop, Implementation::foreach_, Implementation::fused}) {
    for (const bool nesterov : {false, true}) {
      const at::Tensor weight = at::ones({3}).requires_grad_();
      Optimizer optimizer({{"weight", weight}}, with(implementation, sgd(0.5, nesterov, 0.1)));
      double wanted = 1, buffer = 0;
      for (const double gradient : {2.0, -1.0, 0.5}) {
        weight.mutable_grad() = at::ones({3}).mul_(gradient);
        optimizer.step(0.25);
        const double decayed = gradient + 0.1 * wanted;
        buffer = 0.5 * buffer + decayed;
        wanted -= 0.25 * (nesterov ? decayed + 0.5 * buffer : buffer);
        EXPECT_NEAR(weight.select(0, 1).item<double>(), wanted, 1e-6);
      }
      EXPECT_EQ(optimizer.state()[0].first, "weight/momentum_buffer");
      EXPECT_NEAR(optimizer.state()[0].second.select(0, 1).item<double>(), buffer, 1e-6);
    }
  }
}

TEST(Optimizer, LeavesTheCallersGradientsAsTheyAre) {
  for (const OptimizerOptions& kind : all_kinds()) {
    for (const Implementation implementation :
         {Implementation::for_loop, Implementation::foreach_, Implementation::fused}) {
      const at::Tensor weight = at::ones({3}).requires_grad_(), gradient = at::ones({3}).mul_(2);
      Optimizer optimizer({{"weight", weight}}, with(implementation, kind));
      weight.mutable_grad() = gradient;
      for (int i = 0; i < 2; ++i) optimizer.step(0.25);
      EXPECT_TRUE(gradient.equal(at::ones({3}).mul_(2)));
    }
  }
}

TEST(Optimizer, MomentumThatIsSwitchedOnLaterFindsItsBuffers) {
  const at::Tensor weight = at::zeros({2}).requires_grad_();
  Optimizer optimizer({{"weight", weight}}, sgd(0, false, 0));
  const auto step = [&] {
    weight.mutable_grad() = at::ones({2});
    optimizer.step(1);
    return weight.select(0, 0).item<double>();
  };
  EXPECT_EQ(step(), -1);
  EXPECT_TRUE(optimizer.state().empty());
  optimizer.set_options(sgd(0.5, false, 0));
  EXPECT_EQ(step(), -2) << "the first step with momentum is the gradient's";
  EXPECT_EQ(step(), -3.5);
  optimizer.set_options(sgd(0, false, 0));
  EXPECT_EQ(step(), -4.5);
  EXPECT_EQ(optimizer.state().size(), 1U);
}

TEST(Optimizer, TakesChangedOptionsAtTheNextStep) {
  const Named first = random_parameters(), second = random_parameters();
  OptimizerOptions changed;
  changed.weight_decay = 0.5;
  changed.betas[0] = 0.5;
  Optimizer from_start(first, changed), later(second, {});
  later.set_options(changed);
  for (const Named* parameters : {&first, &second}) {
    for (const auto& [name, parameter] : *parameters) parameter.mutable_grad() = at::ones_like(parameter);
  }
  from_start.step(1e-3);
  later.step(1e-3);
  expect_equal(second, first);
}

TEST(Optimizer, LeavesParametersWithoutGradientAlone) {
  for (const Implementation implementation :
       {Implementation::for_loop, Implementation::foreach_, Implementation::fused}) {
    const Named parameters = random_parameters();
    const Named before = clones(parameters);
    Optimizer optimizer(parameters, with(implementation));
    optimizer.step(1e-2);
    expect_equal(parameters, before);
    parameters[1].second.mutable_grad() = at::ones({16});
    optimizer.step(1e-2);
    EXPECT_TRUE(parameters[0].second.equal(before[0].second));
    EXPECT_FALSE(parameters[1].second.equal(before[1].second));
    EXPECT_EQ(optimizer.state()[2].second.item<float>(), 0.0F) << "p0/step";
    EXPECT_EQ(optimizer.state()[5].second.item<float>(), 1.0F) << "p1/step";
  }
}

TEST(Optimizer, FusedReadsGradientsThatLieOtherwiseThanTheParameter) {
  std::vector<at::Tensor> results;
  for (const Implementation implementation : {Implementation::for_loop, Implementation::fused}) {
    at::manual_seed(6);
    const at::Tensor weight = at::randn({4, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
    const at::Tensor gradient = at::randn({4, 3, 2, 2});
    Optimizer optimizer({{"weight", weight}}, with(implementation));
    weight.mutable_grad() = gradient;
    optimizer.step(1e-2);
    results.push_back(weight);
  }
  EXPECT_LE(largest_difference(results[0], results[1]), 1e-7);
}

TEST(Optimizer, RefusesParametersThatAreNotFloat32) {
  EXPECT_THROW(Optimizer({{"weight", at::zeros({2}, at::kDouble)}}, {}), Error);
}

TEST(Optimizer, GroupsHaveRatesAndOptionsOfTheirOwn) {
  const at::Tensor first = at::zeros({2}).requires_grad_(), second = at::zeros({2}).requires_grad_();
  OptimizerOptions slow = sgd(0, false, 0), heavy = sgd(0.5, false, 0);
  slow.lr = 1;
  heavy.lr = 2;
  Optimizer optimizer(std::vector<ParameterGroup>{{{{"first", first}}, slow}, {{{"second", second}}, heavy}});
  for (int i = 0; i < 2; ++i) {
    for (const at::Tensor& parameter : {first, second}) parameter.mutable_grad() = at::ones({2});
    optimizer.step([](double lr) { return lr / 2; });
  }
  EXPECT_TRUE(first.equal(at::full({2}, -1.0)));
  EXPECT_TRUE(second.equal(at::full({2}, -2.5)));
  ASSERT_EQ(optimizer.state().size(), 1U);
  EXPECT_EQ(optimizer.state()[0].first, "second/momentum_buffer");
  EXPECT_TRUE(optimizer.state_of(0).empty());
  EXPECT_THROW(Optimizer(std::vector<ParameterGroup>{{{{"first", first}}, slow}, {{{"second", second}}, {}}}), Error)
      << "groups of two kinds";
}

TEST(Optimizer, AGroupsLrMultScalesWhateverRateAStepHas) {
  const at::Tensor first = at::zeros({2}).requires_grad_(), second = at::zeros({2}).requires_grad_();
  OptimizerOptions options = sgd(0, false, 0);
  options.lr = 1;
  Optimizer optimizer(
      std::vector<ParameterGroup>{{{{"first", first}}, options}, {{{"second", second}}, options, /*lr_mult=*/0.25}});
  EXPECT_EQ(optimizer.lr_mult(0), 1);
  EXPECT_EQ(optimizer.lr_mult(1), 0.25);
  for (const at::Tensor& parameter : {first, second}) parameter.mutable_grad() = at::ones({2});
  optimizer.step([](double lr) { return lr / 2; });
  EXPECT_TRUE(first.equal(at::full({2}, -0.5)));
  EXPECT_TRUE(second.equal(at::full({2}, -0.125)));
  optimizer.step(2.0);
  EXPECT_TRUE(first.equal(at::full({2}, -2.5)));
  EXPECT_TRUE(second.equal(at::full({2}, -0.625)));
}

TEST(Optimizer, StateOfTheCallersIsReadUpdatedAndLaidAsItsParameter) {
  const at::Tensor weight = at::zeros({4, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
  Optimizer optimizer({{"weight", weight}}, sgd(0.5, false, 0));
  const at::Tensor momentum = at::ones({4, 3, 2, 2});
  optimizer.share_state(0, "momentum_buffer", momentum);
  EXPECT_TRUE(momentum.is_contiguous(at::MemoryFormat::ChannelsLast));
  weight.mutable_grad() = at::ones_like(weight);
  optimizer.step(1);
  EXPECT_TRUE(weight.equal(at::full({4, 3, 2, 2}, -1.5)));
  EXPECT_TRUE(momentum.equal(at::full({4, 3, 2, 2}, 1.5)));
  EXPECT_TRUE(optimizer.state()[0].second.is_same(momentum));
  EXPECT_THROW(optimizer.share_state(0, "exp_avg", momentum), Error);
  EXPECT_THROW(optimizer.share_state(0, "momentum_buffer", at::ones({3})), Error);
}

// ---- Trainer ----

// Two linear layers whose forward has nothing random in it.
struct TinyMlp {
  Named parameters;
  TinyMlp() {
    at::manual_seed(2);
    parameters = {{"fc1.weight", at::randn({16, 64}).mul_(0.1).requires_grad_()},
                  {"fc1.bias", at::zeros({16}).requires_grad_()},
                  {"fc2.weight", at::randn({4, 16}).mul_(0.1).requires_grad_()},
                  {"fc2.bias", at::zeros({4}).requires_grad_()}};
  }
  Output operator()(const TensorBatch& batch) const {
    const at::Tensor hidden = at::linear(batch["image"].flatten(1), parameters[0].second, parameters[1].second).relu_();
    const at::Tensor logits = at::linear(hidden, parameters[2].second, parameters[3].second);
    return {at::cross_entropy_loss(logits, batch["labels"]), {{"logits", logits}}};
  }
  Trainer trainer(const TrainOptions& options, const OptimizerOptions& optimizer = {}) const {
    return {ModelState{parameters, {}, [](bool) {}},
            Optimizer(parameters, optimizer),
            [this](const TensorBatch& batch) { return (*this)(batch); },
            options,
            {},
            100};
  }
  Named gradients(double factor = 1.0) const {
    Named copies;
    for (const auto& [name, parameter] : parameters) copies.emplace_back(name, parameter.grad().mul(factor));
    return copies;
  }
};

TrainOptions accumulating(std::int64_t count) {
  TrainOptions options;
  options.gradient_accumulation_steps = count;
  return options;
}

TensorBatch rows(const TensorBatch& batch, std::int64_t begin, std::int64_t end) {
  return {{"image", batch["image"].slice(0, begin, end)}, {"labels", batch["labels"].slice(0, begin, end)}};
}

TEST(Trainer, FourMicroBatchesOfEightEqualOneBatchOf32) {
  const TensorBatch whole = tiny::random_batch(32);
  Named gradients[2];
  TinyMlp networks[2];
  Trainer at_once = networks[0].trainer({});
  at_once.on_part = [&](StepPart part) {
    if (part != StepPart::optimizer) return;
    gradients[0] = networks[0].gradients(at_once.gradient_factor());
  };
  at_once.step(whole);
  Trainer in_parts = networks[1].trainer(accumulating(4));
  in_parts.on_part = [&](StepPart part) {
    if (part != StepPart::optimizer) return;
    gradients[1] = networks[1].gradients(in_parts.gradient_factor());
  };
  for (std::int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(in_parts.progress().window, i);
    in_parts.step(rows(whole, 8 * i, 8 * i + 8));
  }
  EXPECT_EQ(in_parts.progress().optimizer_steps, 1);
  EXPECT_EQ(in_parts.progress().batch, 4);
  for (std::size_t i = 0; i < gradients[0].size(); ++i) {
    EXPECT_LE(largest_difference(gradients[0][i].second, gradients[1][i].second), 1e-6);
    EXPECT_LE(largest_difference(networks[0].parameters[i].second, networks[1].parameters[i].second), 1e-6);
  }
}

TEST(Trainer, TenBatchesByFourMakeThreeUpdatesTheLastTheMeanOfTwo) {
  TinyMlp network, reference;
  Trainer trainer = network.trainer(accumulating(4));
  const TensorBatch whole = tiny::random_batch(80);
  std::vector<Named> gradients;
  trainer.on_part = [&](StepPart part) {
    if (part != StepPart::optimizer) return;

    gradients.push_back(network.gradients(trainer.gradient_factor()));
    // The reference takes the parameters of the last update, whose gradient is checked below.
    for (std::size_t i = 0; i < reference.parameters.size(); ++i) {
      reference.parameters[i].second.detach().copy_(network.parameters[i].second.detach());
    }
  };
  for (std::int64_t i = 0; i < 10; ++i) trainer.step(rows(whole, 8 * i, 8 * i + 8), /*last_of_window=*/i == 9);
  EXPECT_EQ(trainer.progress().optimizer_steps, 3);
  EXPECT_EQ(trainer.progress().window, 0);
  ASSERT_EQ(gradients.size(), 3);
  reference(rows(whole, 64, 80)).loss.backward();
  for (std::size_t i = 0; i < reference.parameters.size(); ++i) {
    EXPECT_LE(largest_difference(gradients[2][i].second, reference.parameters[i].second.grad()), 1e-6);
  }
}

std::int64_t account(const std::string& name) {
  for (const AccountBytes& known : account_bytes()) {
    if (known.name == name) return known.bytes;
  }
  return -1;
}

TEST(Trainer, ItsAccountsTellWhatParametersGradientsAndOptimizerHold) {
  {
    TinyMlp network;
    Trainer trainer = network.trainer({});
    std::int64_t bytes = 0;
    for (const auto& [name, tensor] : network.parameters) bytes += static_cast<std::int64_t>(tensor.nbytes());
    std::vector<std::int64_t> gradients;
    trainer.on_part = [&](StepPart part) {
      if (part != StepPart::transfer) gradients.push_back(account("gradients"));
    };
    trainer.step(tiny::random_batch(8));
    EXPECT_THAT(gradients, testing::ElementsAre(0, 0, bytes));  // Forward, backward, optimizer.
    EXPECT_EQ(account("gradients"), 0);
    EXPECT_EQ(account("parameters"), bytes);
    EXPECT_EQ(account("optimizer"), trainer.optimizer().state_bytes());
    EXPECT_GE(account("optimizer"), 2 * bytes);  // AdamW.
    EXPECT_EQ(account("activations"), -1);       // Nobody counts tensors.
  }
  EXPECT_EQ(account("parameters"), -1);
}

TEST(Trainer, ActivationsAreTheTensorsOfAStepWhereTensorsAreCounted) {
  const TensorAllocations allocations;
  tiny::Training training;
  const TensorBatch batch = tiny::random_batch(64);
  training.trainer->step(batch);
  std::vector<std::int64_t> seen;
  training.trainer->on_part = [&](StepPart) { seen.push_back(account("activations")); };
  training.trainer->step(batch);
  ASSERT_EQ(seen.size(), 3U);  // Forward, backward, optimizer.
  // The first layer alone keeps 64 x 6 x 8 x 8 numbers for the backward.
  EXPECT_GE(seen[1] - seen[0], 64 * 6 * 8 * 8 * 4);
  EXPECT_LT(seen[2] - seen[0], 64 * 6 * 8 * 8 * 4);
}

TEST(Trainer, StepsOnAForwardThatBringsItsBatch) {
  TinyMlp networks[2];
  Trainer with_forward = networks[0].trainer({});
  Trainer without(ModelState{networks[1].parameters, {}, [](bool) {}}, Optimizer(networks[1].parameters, {}), {}, {},
                  {}, 100);
  const TensorBatch batch = tiny::random_batch(8);
  for (int i = 0; i < 3; ++i) {
    const at::Tensor loss = without.step([&] { return networks[1](batch); }, 8);
    EXPECT_TRUE(loss.equal(with_forward.step(batch)));
  }
  expect_equal(networks[1].parameters, networks[0].parameters);
  EXPECT_EQ(without.take_mean_loss(), with_forward.take_mean_loss());
  EXPECT_THAT([&] { without.step(batch); },
              Throws<Error>(testing::Property(&Error::what, HasSubstr("without a forward"))));
}

TEST(Trainer, AWindowBeginsWithoutTheGradientsThatWereThere) {
  TinyMlp networks[2];
  Trainer clean = networks[0].trainer({}), after_another = networks[1].trainer({});
  const TensorBatch batch = tiny::random_batch(8);
  networks[1](tiny::random_batch(4)).loss.backward();
  clean.step(batch);
  after_another.step(batch);
  expect_equal(networks[1].parameters, networks[0].parameters);
}

TEST(Trainer, FinishesAWindowThatNobodyForesaw) {
  TinyMlp networks[2];
  Trainer foreseen = networks[0].trainer(accumulating(4)), unforeseen = networks[1].trainer(accumulating(4));
  const TensorBatch whole = tiny::random_batch(48);
  for (std::int64_t i = 0; i < 6; ++i) {
    foreseen.step(rows(whole, 8 * i, 8 * i + 8), /*last_of_window=*/i == 5);
    unforeseen.step(rows(whole, 8 * i, 8 * i + 8));
  }
  unforeseen.finish_window();
  unforeseen.finish_window();
  EXPECT_EQ(unforeseen.progress().optimizer_steps, 2);
  expect_equal(networks[1].parameters, networks[0].parameters);
}

TEST(Trainer, TakesALossOfOneNumberInAnyShapeAndNoOther) {
  TinyMlp networks[2];
  Trainer trainer = networks[0].trainer({}), reference = networks[1].trainer({});
  const TensorBatch batch = tiny::random_batch(8);
  const at::Tensor loss = trainer.step([&] { return Output{networks[0](batch).loss.reshape({1, 1}), {}}; }, 8);
  EXPECT_TRUE(loss.equal(reference.step(batch)));
  expect_equal(networks[0].parameters, networks[1].parameters);
  const auto step_on = [&](const at::Tensor& no_loss) {
    return [&trainer, no_loss] { trainer.step([&] { return Output{no_loss, {}}; }, 8); };
  };
  EXPECT_THAT(step_on(at::zeros({8, 4})), Throws<Error>(testing::Property(&Error::what, HasSubstr("of shape [8, 4]"))));
  EXPECT_THAT(step_on({}), Throws<Error>(testing::Property(&Error::what, HasSubstr("found none"))));
  EXPECT_EQ(trainer.progress().batch, 1);
}

TEST(Trainer, AFailedForwardKeepsTheWindowAndAFailedBackwardDropsIt) {
  TinyMlp network;
  Trainer trainer = network.trainer(accumulating(3));
  const TensorBatch batch = tiny::random_batch(8);
  trainer.step(batch);
  const Named before = clones(network.parameters), gradients = network.gradients();
  EXPECT_THROW(trainer.step([]() -> Output { throw std::runtime_error("no batch"); }, 8), std::runtime_error);
  EXPECT_EQ(trainer.progress().window, 1);
  expect_equal(network.gradients(), gradients);

  trainer.on_part = [](StepPart part) {
    if (part == StepPart::backward) throw std::runtime_error("no backward");
  };
  EXPECT_THROW(trainer.step(batch), std::runtime_error);
  EXPECT_EQ(trainer.progress().window, 0);
  EXPECT_EQ(trainer.progress().batch, 1);
  EXPECT_FALSE(network.parameters[0].second.grad().defined());
  expect_equal(network.parameters, before);
}

TEST(Trainer, AtTheUpdateWhatIsCalledMayPutAnotherInItsPlace) {
  TinyMlp network;
  Trainer trainer = network.trainer({});
  std::vector<int> called;
  trainer.on_part = [&trainer, &called, values = std::vector<int>(100, 1)](StepPart part) {
    if (part != StepPart::optimizer) return;
    trainer.on_part = [&called](StepPart next) {
      if (next == StepPart::optimizer) called.push_back(2);
    };
    called.push_back(values.back());  // Which nothing but the one that was replaced has held.
  };
  for (int i = 0; i < 2; ++i) trainer.step(tiny::random_batch(8));
  EXPECT_THAT(called, testing::ElementsAre(1, 2));
}

TEST(Trainer, ClipsTheWholeWindowOnce) {
  TinyMlp network;
  TrainOptions options = accumulating(4);
  options.max_grad_norm = 1.0;
  OptimizerOptions optimizer;
  optimizer.betas[0] = 0;  // exp_avg is then the gradient that the optimizer was given.
  Trainer trainer = network.trainer(options, optimizer);
  double norm_before = 0;
  const auto joint = [](const Named& tensors) {
    double sum = 0;
    for (const auto& [name, tensor] : tensors) sum += tensor.to(at::kDouble).square().sum().item<double>();
    return std::sqrt(sum);
  };
  trainer.on_part = [&](StepPart part) {
    if (part != StepPart::optimizer) return;

    for (const auto& [name, parameter] : network.parameters) parameter.grad().mul_(1e6);
    norm_before = joint(network.gradients());
  };
  for (int i = 0; i < 4; ++i) trainer.step(tiny::random_batch(8));
  EXPECT_GT(norm_before, 100.0);
  Named given;
  for (const auto& [name, tensor] : trainer.optimizer().state()) {
    if (name.size() > 8 && name.compare(name.size() - 8, 8, "/exp_avg") == 0) given.emplace_back(name, tensor);
  }
  ASSERT_EQ(given.size(), 4);
  EXPECT_LE(joint(given), 1.0 + 1e-6);
  EXPECT_GE(joint(given), 1.0 - 1e-5);
}

TEST(Trainer, RunsForwardAndLossUnderAutocastWhenAskedTo) {
  at::ScalarType seen{};
  TinyMlp network;
  Trainer trainer(
      ModelState{network.parameters, {}, [](bool) {}}, Optimizer(network.parameters, {}),
      [&](const TensorBatch& batch) {
        Output output = network(batch);
        seen = output.named.at("logits").scalar_type();
        return output;
      },
      {}, {}, 100);
  const TensorBatch batch = tiny::random_batch(8);
  trainer.step(batch);
  EXPECT_EQ(seen, at::kFloat);
  trainer.set_precision(Precision::bf16);
  trainer.step(batch);
  EXPECT_EQ(seen, at::kBFloat16);
  for (const auto& [name, parameter] : network.parameters) EXPECT_EQ(parameter.scalar_type(), at::kFloat);
  trainer.set_precision(Precision::fp32);
  trainer.step(batch);
  EXPECT_EQ(seen, at::kFloat);
}

TEST(Trainer, NamesEpochAndBatchOfALossThatIsNotFinite) {
  tiny::Training training;
  training.trainer->progress().epoch = 3;
  training.trainer->step(tiny::random_batch(4));
  const Named before = clones(training.trainer->model().parameters);
  TensorBatch bad = tiny::random_batch(4);
  bad["image"].select(0, 2).fill_(std::numeric_limits<float>::quiet_NaN());
  try {
    training.trainer->step(bad);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::numerics);
    EXPECT_STREQ(error.what(), "train: loss is nan in epoch 3, batch 1");
  }
  expect_equal(training.trainer->model().parameters, before);
}

TEST(Trainer, NamesEpochAndBatchOfAGradientNormThatIsNotFinite) {
  TinyMlp network;
  TrainOptions options;
  options.max_grad_norm = 1.0;
  Trainer trainer = network.trainer(options);
  trainer.on_part = [&](StepPart part) {
    if (part != StepPart::optimizer) return;
    network.parameters[0].second.grad().fill_(std::numeric_limits<float>::infinity());
  };
  try {
    trainer.step(tiny::random_batch(4));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::numerics);
    EXPECT_STREQ(error.what(), "train: gradient of fc1.weight is inf in epoch 0, batch 0");
  }
}

TEST(Trainer, ALossScaleChangesNoBitWhereItIsAPowerOfTwo) {
  TrainOptions scaled = accumulating(2);
  scaled.loss_scale = 1024;
  tiny::Training plain(accumulating(2)), other(scaled);
  for (int i = 0; i < 6; ++i) {
    for (const tiny::Training* training : {&plain, &other}) {
      at::manual_seed(static_cast<std::uint64_t>(100 + i));
      training->trainer->step(tiny::random_batch(4));
    }
  }
  expect_equal(other.tensors(), plain.tensors());
  EXPECT_EQ(other.trainer->loss_scale(), 1024);
  EXPECT_EQ(plain.trainer->loss_scale(), 1);
}

TEST(Trainer, ALossScaleLeavesOutAnUpdateWhoseGradientsAreNotFinite) {
  for (const double max_grad_norm : {0.0, 1.0}) {
    TinyMlp network;
    TrainOptions options;
    options.max_grad_norm = max_grad_norm;
    options.loss_scale = 65536;
    Trainer trainer = network.trainer(options);
    const Named before = clones(network.parameters);
    trainer.on_part = [&](StepPart part) {
      if (part == StepPart::optimizer) network.parameters[0].second.grad().mul_(std::numeric_limits<float>::infinity());
    };
    trainer.step(tiny::random_batch(4));
    expect_equal(network.parameters, before);
    EXPECT_EQ(trainer.progress().optimizer_steps, 0);
    EXPECT_EQ(trainer.progress().skipped_updates, 1);
    EXPECT_EQ(trainer.loss_scale(), 32768);
    trainer.on_part = {};
    trainer.step(tiny::random_batch(4));
    EXPECT_EQ(trainer.progress().optimizer_steps, 1);
    EXPECT_GT(largest_difference(network.parameters[0].second, before[0].second), 0);
  }
}

TEST(Trainer, ChangesTheLayoutOfTheSameTensorsAndNoValue) {
  tiny::Training training(accumulating(4));
  Trainer& trainer = *training.trainer;
  for (int i = 0; i < 6; ++i) trainer.step(tiny::random_batch(8));  // Optimizer state, and gradients of an open window.
  const Named shared = training.tensors();
  const Named before = clones(shared);
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : trainer.model().parameters) gradients.push_back(parameter.grad().clone());

  for (const MemoryFormat format : {MemoryFormat::channels_last, MemoryFormat::contiguous}) {
    trainer.set_memory_format(format);
    const auto wanted =
        format == MemoryFormat::channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
    expect_equal(shared, before);  // Through the handles taken before the change.
    for (const auto& [name, tensor] : shared) {
      if (tensor.dim() == 4) {
        EXPECT_EQ(tensor.suggest_memory_format(), wanted) << name;
      }
    }
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const at::Tensor gradient = trainer.model().parameters[i].second.grad();
      EXPECT_TRUE(gradient.equal(gradients[i]));
      if (gradient.dim() == 4) {
        EXPECT_EQ(gradient.suggest_memory_format(), wanted);
      }
    }
  }
}

// Of 5-D weights channels_last is channels_last_3d, with one channel, too.
TEST(Trainer, LaysOutConvolutionsOverClipsToo) {
  at::manual_seed(4);
  const Named parameters{{"first.weight", at::randn({4, 1, 3, 3, 3}).mul_(0.1).requires_grad_()},
                         {"second.weight", at::randn({2, 4, 3, 3, 3}).mul_(0.1).requires_grad_()}};
  const Named before = clones(parameters);
  Trainer trainer(ModelState{parameters, {}, [](bool) {}}, Optimizer(parameters, {}), {}, {}, {}, 10);
  trainer.set_memory_format(MemoryFormat::channels_last);
  expect_equal(parameters, before);
  for (const auto& [name, parameter] : parameters) {
    EXPECT_EQ(parameter.suggest_memory_format(), at::MemoryFormat::ChannelsLast3d) << name;
  }
  const at::Tensor clip = at::randn({2, 1, 5, 5, 5});
  const BoundForward forward = [&] {
    const at::Tensor hidden = at::conv3d(clip, parameters[0].second).tanh();
    return Output{at::conv3d(hidden, parameters[1].second).square().mean(), {}};
  };
  trainer.step(forward, 2);
  EXPECT_GT(largest_difference(parameters[1].second, before[1].second), 0) << "it trains on";
  for (const auto& [name, tensor] : trainer.optimizer().state()) {
    if (tensor.dim() == 5) {
      EXPECT_EQ(tensor.suggest_memory_format(), at::MemoryFormat::ChannelsLast3d) << name;
    }
  }
  trainer.set_memory_format(MemoryFormat::contiguous);
  for (const auto& [name, parameter] : parameters) EXPECT_TRUE(parameter.is_contiguous()) << name;
}

TEST(Trainer, TrainsOnAfterAChangeOfLayout) {
  for (const Implementation implementation :
       {Implementation::for_loop, Implementation::foreach_, Implementation::fused}) {
    tiny::Training fixed({}, with(implementation)), changing({}, with(implementation));
    for (int i = 0; i < 3; ++i) {
      changing.trainer->set_memory_format(i == 1 ? MemoryFormat::channels_last : MemoryFormat::contiguous);
      at::manual_seed(static_cast<std::uint64_t>(i));
      const TensorBatch batch = tiny::random_batch(8);
      for (const auto* training : {&fixed, &changing}) {
        at::manual_seed(static_cast<std::uint64_t>(100 + i));  // Of the dropout.
        training->trainer->step(batch);
      }
    }
    const Named a = fixed.trainer->model().parameters, b = changing.trainer->model().parameters;
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_LE(largest_difference(a[i].second, b[i].second), 1e-4) << a[i].first;
    }
  }
}

TEST(Trainer, TransfersBatchesInTheModelsLayout) {
  tiny::Training training;
  for (const int channels : {1, 3}) {
    Loader loader(std::make_shared<tiny::Images>(8, channels), tiny::batches_of(8), 1, false);
    Epoch epoch = loader.epoch(0);
    const Batch batch = *epoch.next();
    training.trainer->set_memory_format(MemoryFormat::contiguous);
    const TensorBatch contiguous = training.trainer->transfer(batch);
    EXPECT_EQ(contiguous["image"].const_data_ptr(), batch.field("image").bytes.data());
    training.trainer->set_memory_format(MemoryFormat::channels_last);
    const TensorBatch last = training.trainer->transfer(batch);
    EXPECT_EQ(last["image"].suggest_memory_format(), at::MemoryFormat::ChannelsLast);
    EXPECT_TRUE(last["image"].equal(contiguous["image"]));
    // One channel: the same bytes serve both layouts.
    EXPECT_EQ(last["image"].const_data_ptr() == contiguous["image"].const_data_ptr(), channels == 1);
    EXPECT_EQ(last["labels"].const_data_ptr(), batch.field("labels").bytes.data());
  }
}

TEST(Trainer, TransfersEveryFieldByItsName) {
  const Schema schema{{{.name = "boxes", .dtype = DType::f32, .shape = {kRagged, 4}},
                       {.name = "image", .shape = {4, 5, 3}, .encoding = Encoding::image},
                       {.name = "weight", .dtype = DType::f64, .optional = true}}};
  Loader loader(std::make_shared<FieldsSource>(schema, 16), tiny::batches_of(8), 1, false);
  const Batch host = *loader.epoch(0).next();
  const tiny::Training training;
  TensorBatch batch = training.trainer->transfer(host);
  EXPECT_EQ(batch.fields().size(), 3U);
  EXPECT_EQ(batch.size(), 8);
  EXPECT_EQ(batch.counted(), 8);
  EXPECT_FALSE(batch.valid.defined());
  EXPECT_EQ(batch["boxes"].const_data_ptr(), host.field("boxes").bytes.data());
  EXPECT_EQ(batch.field("boxes").offsets.size(0), 9);
  EXPECT_EQ(batch["image"].sizes(), (std::vector<std::int64_t>{8, 3, 4, 5}));
  EXPECT_EQ(batch.field("weight").present.size(0), 8);
  EXPECT_FALSE(batch.has("labels"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { static_cast<void>(batch["labels"]); }),
              testing::HasSubstr("no field 'labels'; it has boxes, image, weight"));
  error_of(ErrorCode::invalid_argument, [&] { batch.add({.name = "image"}); });
}

// That of docs/guides/cpp.md, from its read() to weights that know its samples.
TEST(OwnSource, OfTwentyLinesTrains) {
  Loader loader(std::make_shared<Checkerboards>(), tiny::batches_of(12), 1, true);
  tiny::Training training({}, OptimizerOptions{.lr = 1e-2});
  std::vector<float> losses;
  for (std::int64_t i = 0; i < 40; ++i) {
    Epoch epoch = loader.epoch(i);
    while (const auto batch = epoch.next()) losses.push_back(training.trainer->step(*batch).item<float>());
  }
  EXPECT_EQ(losses.size(), 40U);
  EXPECT_LT(losses.back(), losses.front() / 2);
}

TEST(Trainer, EvaluationChangesNothing) {
  tiny::Training training(accumulating(2));
  Trainer& trainer = *training.trainer;
  for (int i = 0; i < 3; ++i) trainer.step(tiny::random_batch(8));  // A window stays open.
  const Named before = clones(training.tensors());
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : trainer.model().parameters) gradients.push_back(parameter.grad().clone());
  const at::Tensor generator = at::detail::getDefaultCPUGenerator().get_state();

  Loader loader(std::make_shared<tiny::Images>(21), tiny::batches_of(8), 1, false);
  const Evaluation first = evaluate(trainer, loader);
  const Evaluation second = evaluate(trainer, loader);

  EXPECT_EQ(first.samples, 21);
  EXPECT_EQ(first.loss, second.loss);
  EXPECT_EQ(first.accuracy, second.accuracy);
  expect_equal(training.tensors(), before);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_TRUE(trainer.model().parameters[i].second.grad().equal(gradients[i]));
  }
  EXPECT_TRUE(at::detail::getDefaultCPUGenerator().get_state().equal(generator));
  EXPECT_EQ(trainer.progress().window, 1);
  EXPECT_TRUE(training.network->training());
}

TEST(Trainer, EvaluationIsTheMeanOverSamplesAlsoWithAShortLastBatch) {
  tiny::Training training;
  const auto images = std::make_shared<tiny::Images>(21);
  Loader by_eight(images, tiny::batches_of(8), 1, false), at_once(images, tiny::batches_of(21), 1, false);
  const Evaluation parts = evaluate(*training.trainer, by_eight), whole = evaluate(*training.trainer, at_once);
  EXPECT_NEAR(parts.loss, whole.loss, 1e-6);
  EXPECT_EQ(parts.accuracy, whole.accuracy);

  Epoch epoch = at_once.epoch(0);
  const TensorBatch batch = training.trainer->transfer(*epoch.next());
  const at::Tensor logits = training.trainer->evaluate(batch).named.at("logits");
  EXPECT_FALSE(logits.requires_grad());
  std::int64_t right = 0;
  for (std::int64_t i = 0; i < 21; ++i) right += logits.select(0, i).argmax().item<std::int64_t>() == i % 4;
  EXPECT_EQ(whole.accuracy, static_cast<double>(right) / 21);
}

TEST(Trainer, EvaluationCountsBatchesByTheWeightThatForwardReturns) {
  tiny::Training training;
  Loader loader(std::make_shared<tiny::Images>(21), tiny::batches_of(8), 1, false);
  int batches = 0;
  const Evaluation found = evaluate(*training.trainer, loader, [&batches](const TensorBatch& batch) {
    const double number = ++batches;
    const bool is_first = batches == 1;  // Of no weight: its mean is that of nothing.
    Output output{at::full({}, is_first ? std::nan("") : number), {{"logits", at::zeros({batch.size(), 4})}}};
    output.weight = is_first ? 0.0 : number;
    return output;
  });
  EXPECT_EQ(batches, 3);
  EXPECT_EQ(found.samples, 21);
  EXPECT_NEAR(found.loss, (2.0 * 2 + 3.0 * 3) / 5, 1e-12);
}

TEST(Trainer, EvaluationSaysWhichOutputItNeeds) {
  TinyMlp network;
  Trainer trainer(
      {network.parameters, {}, [](bool) {}}, Optimizer(network.parameters, {}),
      [&](const TensorBatch& batch) {
        return Output{network(batch).loss, {}};
      },
      {}, {}, 1);
  Loader loader(std::make_shared<tiny::Images>(8), tiny::batches_of(8), 1, false);
  EXPECT_THROW(evaluate(trainer, loader), Error);
}

TEST(Trainer, LeavesTheGradientsOfOneBatchAloneForFingerprints) {
  TinyMlp network;
  Trainer trainer = network.trainer(accumulating(2));
  const TensorBatch batch = tiny::random_batch(8);
  trainer.forward_backward(batch);
  const Named once = network.gradients();
  trainer.step(batch);
  trainer.forward_backward(batch);
  expect_equal(network.gradients(), once);
  EXPECT_EQ(trainer.progress().window, 0);
  EXPECT_EQ(trainer.progress().optimizer_steps, 0);
}

TEST(Trainer, MeansTheLossOverSamplesSinceTheLastCall) {
  TinyMlp network;
  Trainer trainer = network.trainer({});
  EXPECT_EQ(trainer.take_mean_loss(), std::nullopt);
  const double a = trainer.step(tiny::random_batch(8)).item<double>();
  const double b = trainer.step(tiny::random_batch(24)).item<double>();
  EXPECT_NEAR(trainer.take_mean_loss().value(), (8 * a + 24 * b) / 32, 1e-12);
  EXPECT_EQ(trainer.take_mean_loss(), std::nullopt);
}

TEST(Trainer, TakesTheEpochsOfAScheduleFromItsOptions) {
  TinyMlp network;
  TrainOptions options = accumulating(2);
  options.epochs = 3;
  LrSchedulerOptions schedule;
  schedule.name = LrSchedulerName::StepLR;
  schedule.step_size = 1;
  Trainer trainer(
      ModelState{network.parameters, {}, [](bool) {}}, Optimizer(network.parameters, {}),
      [&network](const TensorBatch& batch) { return network(batch); }, options, schedule, /*optimizer_steps_total=*/6);
  std::vector<double> lrs;
  for (int batch = 0; batch < 12; ++batch) {
    if (batch % 2 == 0) lrs.push_back(trainer.learning_rate());
    trainer.step(tiny::random_batch(4));
  }
  EXPECT_THAT(lrs, ::testing::Pointwise(::testing::DoubleEq(), {1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5}));
}

TEST(Trainer, AScheduleMovesTheFirstBetaFromTheStart) {
  LrSchedulerOptions schedule;
  schedule.name = LrSchedulerName::OneCycleLR;
  tiny::Training training({}, {}, 1, schedule);
  const RunLength run{100, training.trainer->options().epochs};
  for (std::int64_t step = 0; step < 4; ++step) {
    if (step > 0) tiny::train(training, 1);
    const std::int64_t of_update = std::max<std::int64_t>(0, step - 1);
    EXPECT_EQ(training.trainer->optimizer().options().betas[0], scheduled_momentum(schedule, of_update, run));
  }
}

TEST(Trainer, RefusesASchedulePrecisionOrRunThatCannotBe) {
  LrSchedulerOptions no_step;
  no_step.name = LrSchedulerName::StepLR;
  no_step.step_size = 0;
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { const tiny::Training training({}, {}, 1, no_step); }),
              HasSubstr("step_size"));
  TrainOptions no_epoch, half;
  no_epoch.epochs = 0;
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { const tiny::Training training(no_epoch); }),
              HasSubstr("epochs: wanted at least 1, found 0"));
  half.precision = Precision::fp16;
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { const tiny::Training training(half); }),
              HasSubstr("loss_scale"));
  const tiny::Training training;
  error_of(ErrorCode::invalid_argument, [&] { training.trainer->set_precision(Precision::fp16); });
  error_of(ErrorCode::invalid_argument, [&] { training.trainer->set_run_length(100, 0); });
}

TEST(Trainer, TellsWhichPartOfAStepBegins) {
  TinyMlp network;
  Trainer trainer = network.trainer(accumulating(2));
  std::vector<StepPart> parts;
  trainer.on_part = [&](StepPart part) { parts.push_back(part); };
  Loader loader(std::make_shared<tiny::Images>(16), tiny::batches_of(8), 1, false);
  Epoch epoch = loader.epoch(0);
  while (const std::optional<Batch> batch = epoch.next()) trainer.step(*batch);
  using enum StepPart;
  EXPECT_THAT(parts, ::testing::ElementsAre(transfer, forward, backward, transfer, forward, backward, optimizer));
}

// ---- Loop ----

TEST(Loop, RecordsEveryPartOfEveryStepOnceAndNeverTwoAtATime) {
  tiny::Training training(accumulating(4));
  Loader loader(std::make_shared<tiny::Images>(80), tiny::batches_of(8), 1, true);
  Trace trace;
  {
    Epoch epoch = loader.epoch(0);
    EXPECT_EQ(run_steps(*training.trainer, epoch, 100), LoopEnd::epoch);
  }
  const TraceRecord record = trace.stop();
  std::map<std::string, int> counts;
  std::int64_t step_end = 0, part_end = 0;
  for (const TraceEvent& event : record.events) {
    if (record.names[event.name].category != "step") continue;
    const std::string& name = record.names[event.name].text;
    ++counts[name];
    if (name == "step") {
      EXPECT_GE(event.begin_ns, step_end);
      step_end = event.end_ns;
    } else {
      EXPECT_GE(event.begin_ns, part_end) << name;
      EXPECT_LE(event.end_ns, step_end) << name;
      part_end = event.end_ns;
    }
  }
  const std::map<std::string, int> wanted{{"step", 10},    {"data_wait", 10}, {"transfer", 10},
                                          {"forward", 10}, {"backward", 10},  {"optimizer", 3}};
  EXPECT_EQ(counts, wanted);
}

TEST(Loop, MovesOnToTheNextEpochAndStopsAtTheCount) {
  tiny::Training training;
  Loader loader(std::make_shared<tiny::Images>(40), tiny::batches_of(8), 1, true);
  std::int64_t samples = 0, calls = 0;
  const auto on_step = [&](const StepDone& done) {
    samples += done.samples;
    EXPECT_EQ(done.progress.batch, ++calls);
    EXPECT_GT(done.step_ns, 0);
    EXPECT_FALSE(done.loss.requires_grad());
  };
  Epoch epoch = loader.epoch(0);
  EXPECT_EQ(run_steps(*training.trainer, epoch, 3, on_step), LoopEnd::count);
  EXPECT_EQ(training.trainer->progress().batch, 3);
  EXPECT_EQ(run_steps(*training.trainer, epoch, 2, on_step), LoopEnd::epoch);
  EXPECT_EQ(training.trainer->progress().epoch, 1);
  EXPECT_EQ(training.trainer->progress().batch, 0);
  EXPECT_EQ(samples, 40);
}

TEST(Loop, HearsAStopBetweenWindows) {
  tiny::Training training(accumulating(4));
  Loader loader(std::make_shared<tiny::Images>(80), tiny::batches_of(8), 1, true);
  Epoch epoch = loader.epoch(0);
  const auto stop_in_the_fifth = [](const StepDone& done) {
    if (done.progress.batch == 5) request_stop(SIGTERM);
  };
  EXPECT_EQ(run_steps(*training.trainer, epoch, 100, stop_in_the_fifth), LoopEnd::stopped);
  request_stop(0);
  EXPECT_EQ(training.trainer->progress().batch, 8);
  EXPECT_EQ(training.trainer->progress().window, 0);
}

}  // namespace
}  // namespace headrace
