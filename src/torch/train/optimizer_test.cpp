// Kernels of every instruction set, groups that are updated together, and what an update does beside its arithmetic.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/optimizer.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "core/base/kernel_sets.h"
#include "torch/train/equal_tensors.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

constexpr std::array kNames{OptimizerName::adamw, OptimizerName::adam, OptimizerName::sgd, OptimizerName::rmsprop};
constexpr std::array kImplementations{OptimizerImplementation::for_loop, OptimizerImplementation::foreach_,
                                      OptimizerImplementation::fused};

double difference(const at::Tensor& a, const at::Tensor& b) {
  return a.detach().sub(b.detach()).abs().max().item<double>();
}

OptimizerOptions fused(OptimizerOptions options) {
  options.set_implementation(OptimizerImplementation::fused);
  return options;
}

OptimizerOptions by(OptimizerImplementation implementation, OptimizerOptions options) {
  options.set_implementation(implementation);
  return options;
}

OptimizerOptions plain(OptimizerOptions options) {
  options.set_implementation(OptimizerImplementation::for_loop);
  return options;
}

// Of no element, of less than a vector, of more than one with some left over, and of several parts.
Named odd_parameters() {
  at::manual_seed(7);
  Named parameters;
  for (const std::int64_t size : {1, 3, 16, 67, 0, 100'003}) {
    parameters.emplace_back(fmt::format("p{}", size), at::randn({size}).requires_grad_());
  }
  const at::Tensor image = at::randn({4, 3, 5, 2}).contiguous(at::MemoryFormat::ChannelsLast);
  parameters.emplace_back("image", image.requires_grad_());
  return parameters;
}

void give_gradients(const Named& parameters, std::uint64_t seed) {
  at::manual_seed(seed);
  for (const auto& [name, parameter] : parameters) parameter.mutable_grad() = at::randn_like(parameter.detach());
}

// ATen's kernel over the same tensors, with state of its own.
struct AtenKernel {
  std::vector<at::Tensor> parameters, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps;

  AtenKernel(const Named& named, bool amsgrad) {
    for (const auto& [name, parameter] : named) {
      parameters.push_back(parameter);
      exp_avgs.push_back(at::zeros_like(parameter.detach()));
      exp_avg_sqs.push_back(at::zeros_like(parameter.detach()));
      if (amsgrad) max_exp_avg_sqs.push_back(at::zeros_like(parameter.detach()));
      steps.push_back(at::zeros({}));
    }
  }
  void step(const OptimizerOptions& o, double lr) {
    c10::AutoGradMode no_graph(false);
    std::vector<at::Tensor> gradients;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      gradients.push_back(parameters[i].grad());
      steps[i].add_(1);
    }
    if (o.name == OptimizerName::adamw) {
      at::_fused_adamw_(parameters, gradients, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, lr, o.betas[0],
                        o.betas[1], o.weight_decay, o.eps, o.amsgrad, o.maximize);
    } else {
      at::_fused_adam_(parameters, gradients, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, lr, o.betas[0], o.betas[1],
                       o.weight_decay, o.eps, o.amsgrad, o.maximize);
    }
  }
};

class UpdateKernels : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { use_kernel_set(GetParam()); }
  void TearDown() override { use_kernel_set(""); }
};

TEST_P(UpdateKernels, AgreeWithAtensFusedKernels) {
  for (const OptimizerName name : {OptimizerName::adamw, OptimizerName::adam}) {
    for (const bool other : {false, true}) {
      OptimizerOptions options{.name = name, .weight_decay = other ? 0.0 : 1e-2, .amsgrad = other, .maximize = other};
      if (other) options.betas = {0.4, 0.9};
      const Named ours = odd_parameters(), theirs = odd_parameters();
      Optimizer optimizer(ours, fused(options));
      AtenKernel kernel(theirs, options.amsgrad);
      for (std::uint64_t step = 0; step < 30; ++step) {
        give_gradients(ours, step);
        give_gradients(theirs, step);
        optimizer.step(1e-2);
        kernel.step(options, 1e-2);
      }
      // Without fused multiply-adds within rounding; with them to the bit, in and behind ATen's last whole vector.
      const bool fuses = GetParam() != "SSE4" && GetParam() != "SSSE3" && GetParam() != "SSE2";
      const double limit = fuses && at::get_cpu_capability().starts_with("AVX") ? 0 : 1e-6;
      for (std::size_t i = 0; i < ours.size(); ++i) {
        if (ours[i].second.numel() == 0) continue;
        EXPECT_LE(difference(ours[i].second, theirs[i].second), limit) << ours[i].first;
        EXPECT_LE(difference(optimizer.state_of(i)[0].second, kernel.exp_avgs[i]), limit) << ours[i].first;
        EXPECT_LE(difference(optimizer.state_of(i)[1].second, kernel.exp_avg_sqs[i]), limit) << ours[i].first;
        if (options.amsgrad) {
          EXPECT_LE(difference(optimizer.state_of(i)[3].second, kernel.max_exp_avg_sqs[i]), limit) << ours[i].first;
        }
      }
    }
  }
}

TEST_P(UpdateKernels, RmspropAgreesWithTheOperators) {
  for (const bool centered : {false, true}) {
    for (const double momentum : {0.0, 0.5}) {
      const OptimizerOptions options{
          .name = OptimizerName::rmsprop, .eps = 1e-4, .momentum = momentum, .centered = centered};
      const Named found = odd_parameters(), wanted = odd_parameters();
      Optimizer ours(found, fused(options)), operators(wanted, plain(options));
      for (std::uint64_t step = 0; step < 30; ++step) {
        give_gradients(found, step);
        give_gradients(wanted, step);
        ours.step(1e-3);
        operators.step(1e-3);
      }
      for (std::size_t i = 0; i < found.size(); ++i) {
        if (found[i].second.numel() == 0) continue;
        EXPECT_LE(difference(found[i].second, wanted[i].second), 1e-6) << found[i].first;
        for (std::size_t kind = 0; kind < ours.state_of(i).size(); ++kind) {
          const auto [name, state] = operators.state_of(i)[kind];
          EXPECT_LE(difference(ours.state_of(i)[kind].second, state), 1e-5) << found[i].first << "/" << name;
        }
      }
    }
  }
}

TEST_P(UpdateKernels, UnscaleAverageAndZeroWithTheUpdate) {
  for (const OptimizerName name : {OptimizerName::adamw, OptimizerName::rmsprop, OptimizerName::sgd}) {
    const OptimizerOptions options{.name = name, .weight_decay = 0.1};
    const Named found = odd_parameters(), wanted = odd_parameters();
    Optimizer at_once(found, fused(options)), in_turns(wanted, plain(options));
    std::vector<at::Tensor> averages, wanted_averages;
    for (const auto& [parameter_name, parameter] : found) {
      averages.push_back(parameter.detach().clone());
      wanted_averages.push_back(parameter.detach().clone());
    }
    std::vector<double> factors;  // As clipping by layers makes them.
    for (std::size_t i = 0; i < found.size(); ++i) factors.push_back(i % 2 == 0 ? 1.0 / 1024 : 1.0 / 256);
    const double decay = 0.3;  // Of which lerp starts at the far end.
    for (std::uint64_t step = 0; step < 10; ++step) {
      give_gradients(found, step);
      give_gradients(wanted, step);
      for (std::size_t i = 0; i < found.size(); ++i) found[i].second.grad().mul_(1 / factors[i]);
      for (const Named* named : {&found, &wanted}) (*named)[2].second.mutable_grad().reset();
      at_once.step(1e-3,
                   {.gradient_factors = factors, .zero_gradients = true, .averages = averages, .average_decay = decay});
      in_turns.step(1e-3);
      for (std::size_t i = 0; i < found.size(); ++i) {
        wanted_averages[i].lerp_(wanted[i].second.detach(), 1 - decay);
        if (i == 2) continue;
        EXPECT_FALSE(found[i].second.grad().any().item<bool>()) << found[i].first << " keeps its gradient";
      }
    }
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (found[i].second.numel() == 0) continue;
      EXPECT_LE(difference(found[i].second, wanted[i].second), 1e-6) << found[i].first;
      EXPECT_LE(difference(averages[i], wanted_averages[i]), 1e-6) << found[i].first;
    }
  }
}

TEST_P(UpdateKernels, PassNanOnAsAtenDoes) {
  const OptimizerOptions options{.amsgrad = true};
  const Named ours = odd_parameters(), theirs = odd_parameters();
  Optimizer optimizer(ours, fused(options));
  AtenKernel kernel(theirs, true);
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (const Named* named : {&ours, &theirs}) {
      give_gradients(*named, step);
      const at::Tensor& gradient = (*named)[3].second.grad();
      for (const std::int64_t place : {2, 66}) {  // In a whole vector, and in what fills none.
        if (step == 1) gradient.select(0, place).fill_(std::numeric_limits<float>::quiet_NaN());
      }
    }
    optimizer.step(1e-2);
    kernel.step(options, 1e-2);
  }
  EXPECT_EQ(ours[3].second.isnan().sum().item<std::int64_t>(), 2);
  EXPECT_TRUE(ours[3].second.isnan().equal(theirs[3].second.isnan()));
  EXPECT_TRUE(optimizer.state_of(3)[3].second.isnan().equal(kernel.max_exp_avg_sqs[3].isnan()));
}

INSTANTIATE_TEST_SUITE_P(Every, UpdateKernels, ::testing::ValuesIn(kernel_sets()),
                         [](const auto& of) { return of.param; });

TEST(Optimizer, FusedIsTheSameBitsWithAnyNumberOfThreads) {
  const int threads = at::get_num_threads();
  for (const OptimizerName name : {OptimizerName::adamw, OptimizerName::rmsprop}) {
    std::vector<Named> results;
    for (const int count : {1, 4}) {
      at::set_num_threads(count);
      const Named parameters = odd_parameters();
      Named& result = results.emplace_back(parameters);
      std::vector<at::Tensor> averages;
      for (const auto& [parameter_name, parameter] : parameters) {
        averages.push_back(parameter.detach().clone());
        result.emplace_back("average of " + parameter_name, averages.back());
      }
      Optimizer optimizer(parameters, fused({.name = name}));
      for (std::uint64_t step = 0; step < 3; ++step) {
        give_gradients(parameters, step);
        optimizer.step(1e-2, {.zero_gradients = true, .averages = averages, .average_decay = 0.9});
      }
      for (const auto& state : optimizer.state()) result.push_back(state);
      for (const auto& [parameter_name, parameter] : parameters) {
        EXPECT_FALSE(parameter.grad().any().item<bool>()) << parameter_name;
      }
    }
    expect_equal(results[0], results[1]);
  }
  at::set_num_threads(threads);
}

TEST(Optimizer, TensorsWithHolesInMemoryAreUpdatedAsOthers) {
  for (const OptimizerName name : kNames) {
    std::vector<at::Tensor> results;
    for (const bool holes : {true, false}) {
      at::manual_seed(8);
      const at::Tensor whole = at::randn({6, 10}), before = whole.clone();
      const at::Tensor half = whole.slice(1, 0, 10, 2);
      const at::Tensor weight = (holes ? half : half.contiguous()).detach().requires_grad_();
      Optimizer optimizer({{"weight", weight}}, fused({.name = name}));
      for (std::uint64_t step = 0; step < 3; ++step) {
        at::manual_seed(step);
        weight.mutable_grad() = at::randn({6, 5});
        optimizer.step(1e-2);
      }
      EXPECT_TRUE(whole.slice(1, 1, 10, 2).equal(before.slice(1, 1, 10, 2))) << "the holes are not the parameter's";
      results.push_back(weight);
    }
    EXPECT_LE(difference(results[0], results[1]), 1e-6) << choice_name(name);
  }
}

TEST(Optimizer, AnotherMemoryFormatBetweenStepsChangesNoNumber) {
  for (const OptimizerName name : kNames) {
    std::vector<at::Tensor> results;
    for (const bool changes : {true, false}) {
      at::manual_seed(8);
      const at::Tensor weight = at::randn({4, 3, 5, 2}).requires_grad_();
      Optimizer optimizer({{"weight", weight}}, fused({.name = name}));
      for (std::uint64_t step = 0; step < 4; ++step) {
        if (changes && step == 2) weight.set_data(weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
        at::manual_seed(step);
        weight.mutable_grad() = at::randn({4, 3, 5, 2});
        optimizer.step(1e-2);
      }
      results.push_back(weight);
    }
    EXPECT_LE(difference(results[0], results[1]), 1e-6) << choice_name(name);
  }
}

TEST(Optimizer, GradientsThatAreNegatedWhenReadAreTakenAsTheyRead) {
  for (const OptimizerName name : kNames) {
    std::vector<at::Tensor> results;
    for (const bool lazily : {true, false}) {
      const at::Tensor weight = at::full({20}, 2.0).requires_grad_();
      Optimizer optimizer({{"weight", weight}}, fused({.name = name}));
      const at::Tensor opposite = at::full({20}, 0.5);
      weight.mutable_grad() = lazily ? at::_neg_view(opposite) : opposite.neg();
      ASSERT_EQ(weight.grad().is_neg(), lazily);
      optimizer.step(1e-2);
      results.push_back(weight);
    }
    EXPECT_LE(difference(results[0], results[1]), 1e-6) << choice_name(name);
  }
}

TEST(Optimizer, AutogradSeesWhatAStepHasWritten) {
  for (const OptimizerName name : kNames) {
    const at::Tensor weight = at::full({20}, 2.0).requires_grad_(), average = at::ones({20});
    Optimizer optimizer({{"weight", weight}}, fused({.name = name}));
    const at::Tensor loss = weight.square().sum();
    loss.backward({}, /*retain_graph=*/true);
    const std::vector<at::Tensor> averages{average};
    const std::int64_t gradient_version = weight.grad()._version(), average_version = average._version();
    optimizer.step(1e-2, {.zero_gradients = true, .averages = averages, .average_decay = 0.5});
    EXPECT_GT(weight.grad()._version(), gradient_version) << choice_name(name);
    EXPECT_GT(average._version(), average_version) << choice_name(name);
    EXPECT_THROW(loss.backward({}, /*retain_graph=*/true), c10::Error) << choice_name(name);
  }
}

// ---- What a step cannot do changes nothing ----

// What the step of an optimizer over `first`, which is fine, and `second` says after this was done to the second.
std::string refusal(const OptimizerOptions& options, const std::function<void(const at::Tensor&)>& spoil,
                    const UpdateExtras& extras = {}) {
  const at::Tensor first = at::ones({3}).requires_grad_(), second = at::ones({6, 4}).requires_grad_();
  Optimizer optimizer({{"first", first}, {"second", second}}, options);
  first.mutable_grad() = at::ones({3});
  second.mutable_grad() = at::ones({6, 4});
  optimizer.step(1e-2);
  spoil(second);
  const at::Tensor first_before = first.detach().clone(), second_before = second.detach().clone();
  const Named before = clones(optimizer.state());
  const std::string said = error_of(ErrorCode::invalid_argument, [&] { optimizer.step(1e-2, extras); });
  EXPECT_TRUE(first.equal(first_before)) << said;
  EXPECT_TRUE(second.equal(second_before)) << said;
  expect_equal(optimizer.state(), before);
  return said;
}

TEST(Optimizer, RefusesGradientsThatItCannotTakeBeforeAnythingChanges) {
  const auto make_sparse = [](const at::Tensor& second) { second.mutable_grad() = second.grad().to_sparse(1); };
  const auto make_double = [](const at::Tensor& second) {
    second.mutable_grad().reset();
    second.set_data(second.detach().to(at::kDouble));
    second.mutable_grad() = at::ones({6, 4}, at::kDouble);
  };
  const auto make_longer = [](const at::Tensor& second) {
    second.mutable_grad().reset();
    second.set_data(at::ones({7, 4}));
    second.mutable_grad() = at::ones({7, 4});
  };
  for (const OptimizerName name : kNames) {
    for (const OptimizerImplementation implementation : kImplementations) {
      const OptimizerOptions options = by(implementation, {.name = name});
      EXPECT_EQ(refusal(options, make_sparse),
                fmt::format("train: parameter second: wanted a dense gradient for {}, float32 [6, 4] on the CPU, found "
                            "sparse Float [6, 4] on cpu",
                            choice_name(name)));
      EXPECT_EQ(refusal(options, make_double),
                "train: parameter second: wanted float32 on the CPU, found Double [6, 4] on cpu");
      EXPECT_THAT(refusal(options, make_longer), HasSubstr("parameter second: wanted the shape [6, 4] of its "));
    }
  }
}

TEST(Optimizer, RefusesAveragesThatFitNoParameterBeforeAnythingChanges) {
  for (const at::Tensor& average : {at::ones({4}), at::ones({6, 4}, at::kDouble)}) {
    const std::vector<at::Tensor> averages{at::Tensor(), average};
    EXPECT_THAT(refusal(fused({}), [](const at::Tensor&) {}, {.averages = averages, .average_decay = 0.5}),
                HasSubstr("parameter second: wanted an average of it, float32 [6, 4] on the CPU, found "));
  }
}

TEST(Optimizer, SparseGradientsOfPlainSgdAreThoseOfDenseOnes) {
  for (const OptimizerImplementation implementation : kImplementations) {
    for (const double momentum : {0.0, 0.9}) {
      std::vector<Named> results;
      for (const bool sparse : {true, false}) {
        at::manual_seed(8);
        const Named parameters{{"other", at::randn({3}).requires_grad_()},
                               {"table", at::randn({6, 4}).requires_grad_()}};
        Optimizer optimizer(parameters,
                            by(implementation, {.name = OptimizerName::sgd, .weight_decay = 0, .momentum = momentum}));
        for (std::uint64_t step = 0; step < 3; ++step) {
          give_gradients(parameters, step);
          at::Tensor& gradient = parameters[1].second.mutable_grad();
          gradient.select(0, 2).zero_();
          if (sparse) gradient = gradient.to_sparse(1);
          optimizer.step(1e-2);
        }
        results.push_back(parameters);
      }
      for (const std::size_t i : {0U, 1U}) EXPECT_LE(difference(results[0][i].second, results[1][i].second), 1e-6);
    }
  }
}

TEST(Optimizer, RefusesOptionsThatNoUpdateCanFollow) {
  const Named parameters{{"weight", at::ones({2}).requires_grad_()}};
  const auto expect_refused = [&parameters](const OptimizerOptions& bad, const std::string& words) {
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { const Optimizer refused(parameters, bad); }),
                HasSubstr(words));
    const OptimizerOptions good{.name = bad.name};
    Optimizer optimizer(parameters, good);
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { optimizer.set_options(bad); }), HasSubstr(words));
    EXPECT_TRUE(optimizer.options() == good);
  };
  expect_refused({.betas = {0.9}}, "train: optimizer.betas: wanted two numbers, found 1");
  expect_refused({.name = OptimizerName::sgd, .momentum = 0, .nesterov = true},
                 "train: optimizer.momentum: wanted a number above 0 with nesterov, found 0");
}

TEST(Optimizer, RefusesAParameterThatStandsThereTwice) {
  const at::Tensor weight = at::ones({2}).requires_grad_();
  std::vector<ParameterGroup> groups;
  for (const char* name : {"embedding", "head"}) groups.push_back({{{name, weight}}, {}});
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { const Optimizer refused(groups); }),
            "train: parameter head: wanted each parameter once, found it as embedding before");
}

// ---- Groups ----

TEST(Optimizer, GroupsOfEqualSettingsAreUpdatedAsOne) {
  for (const OptimizerName name : {OptimizerName::adamw, OptimizerName::sgd, OptimizerName::rmsprop}) {
    for (const auto implementation :
         {OptimizerImplementation::for_loop, OptimizerImplementation::foreach_, OptimizerImplementation::fused}) {
      OptimizerOptions options{.name = name};
      options.set_implementation(implementation);
      const Named in_one = odd_parameters(), in_many = odd_parameters();
      std::vector<ParameterGroup> groups;
      for (const auto& parameter : in_many) groups.push_back({{parameter}, options});
      Optimizer one(in_one, options), many(std::move(groups));
      for (std::uint64_t step = 0; step < 3; ++step) {
        give_gradients(in_one, step);
        give_gradients(in_many, step);
        int asked = 0;
        const auto halved = [&](double lr) {
          ++asked;
          return lr / 2;
        };
        one.step(halved);
        EXPECT_EQ(asked, 1);
        many.step(halved);
        EXPECT_EQ(asked, 2) << "the groups have one rate";
      }
      expect_equal(in_many, in_one);
      expect_equal(many.state(), one.state());
    }
  }
}

// Settings that alternate, so that groups that go together do not stand together.
TEST(Optimizer, GroupsOfSeveralSettingsKeepTheirOwn) {
  for (const auto implementation :
       {OptimizerImplementation::for_loop, OptimizerImplementation::foreach_, OptimizerImplementation::fused}) {
    const Named together = odd_parameters(), apart = odd_parameters();
    std::vector<ParameterGroup> groups;
    std::vector<Optimizer> alone;
    for (std::size_t i = 0; i < together.size(); ++i) {
      OptimizerOptions options{.weight_decay = i % 2 == 0 ? 0.5 : 0.0};
      options.set_implementation(implementation);
      const double lr_mult = i % 3 == 0 ? 0.1 : 1.0;
      groups.push_back({{together[i]}, options, lr_mult});
      alone.emplace_back(std::vector<ParameterGroup>{{{apart[i]}, options, lr_mult}});
    }
    Optimizer all(std::move(groups));
    for (std::uint64_t step = 0; step < 4; ++step) {
      give_gradients(together, step);
      give_gradients(apart, step);
      if (step == 2) {  // From now on two groups are alike that were not, and others no more.
        OptimizerOptions options = all.options(1);
        options.weight_decay = 0.5;
        all.set_options(options, 1);
        alone[1].set_options(options);
      }
      all.step(1e-2);
      for (Optimizer& one : alone) one.step(1e-2);
    }
    expect_equal(together, apart);
  }
}

// From one group to the next rates change, and some of weight decay, betas and step count.
TEST(Optimizer, GroupsWithStepCountsOfTheirOwnAgreeWithAtensFusedKernel) {
  const Named ours = odd_parameters(), theirs = odd_parameters();
  std::vector<ParameterGroup> groups;
  std::vector<AtenKernel> kernels;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    OptimizerOptions options{.weight_decay = i % 4 < 2 ? 0.5 : 0.0};
    if (i >= 4) options.betas = {0.8, 0.99};
    groups.push_back({{ours[i]}, fused(options), 1 + 0.5 * static_cast<double>(i)});
    kernels.emplace_back(Named{theirs[i]}, /*amsgrad=*/false);
  }
  Optimizer all(groups);
  for (std::uint64_t step = 0; step < 12; ++step) {
    give_gradients(ours, step);
    give_gradients(theirs, step);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      if (i % 3 == 2 && step < 5) {  // Begins later.
        ours[i].second.mutable_grad().reset();
      } else {
        kernels[i].step(groups[i].options, 1e-3 * groups[i].lr_mult);
      }
    }
    all.step(1e-3);
  }
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (ours[i].second.numel() == 0) continue;
    EXPECT_LE(difference(ours[i].second, theirs[i].second), 1e-6) << ours[i].first;
  }
}

TEST(Optimizer, StateOfSmallParametersLiesInOneBlock) {
  Named parameters;
  for (int i = 0; i < 20; ++i) parameters.emplace_back(fmt::format("p{}", i), at::ones({4, 3, 2, 2}).requires_grad_());
  parameters[7].second = at::ones({4, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
  Optimizer optimizer(parameters, fused({}));
  for (const std::size_t kind : {0U, 1U, 2U}) {
    const void* block = optimizer.state_of(0)[kind].second.storage().data();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor state = optimizer.state_of(i)[kind].second;
      EXPECT_EQ(state.storage().data(), block);
      EXPECT_FALSE(state.is_view());
      if (kind < 2) {
        EXPECT_EQ(state.strides(), parameters[i].second.strides());
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(state.const_data_ptr()) % 64, 0U);
      }
    }
  }
  EXPECT_EQ(optimizer.state_bytes(), 20 * (2 * 48 + 1) * 4);
  parameters[3].second.mutable_grad() = at::ones({4, 3, 2, 2});
  optimizer.step(1e-2);
  for (const std::size_t i : {2U, 4U}) EXPECT_FALSE(optimizer.state_of(i)[0].second.any().item<bool>());
  EXPECT_TRUE(optimizer.state_of(3)[0].second.all().item<bool>());
}

TEST(Optimizer, FirstStepsAreTheFormulasByHand) {
  for (const auto implementation :
       {OptimizerImplementation::for_loop, OptimizerImplementation::foreach_, OptimizerImplementation::fused}) {
    const auto after_step = [&](OptimizerOptions options) {
      options.set_implementation(implementation);
      const at::Tensor weight = at::full({3}, 2.0).requires_grad_();
      Optimizer optimizer({{"weight", weight}}, options);
      weight.mutable_grad() = at::full({3}, 0.5);
      optimizer.step(0.1);
      return weight.select(0, 2).item<double>();
    };
    const double eps = 0.25;
    EXPECT_NEAR(after_step({.weight_decay = 0.01, .eps = eps}), 2 * (1 - 0.1 * 0.01) - 0.1 * 0.5 / (0.5 + eps), 1e-6);
    EXPECT_NEAR(after_step({.name = OptimizerName::adam, .weight_decay = 0.1, .eps = eps}), 2 - 0.1 * 0.7 / (0.7 + eps),
                1e-6);
    EXPECT_NEAR(after_step({.name = OptimizerName::adam, .weight_decay = 0, .eps = eps, .maximize = true}),
                2 + 0.1 * 0.5 / (0.5 + eps), 1e-6);
    EXPECT_NEAR(after_step({.name = OptimizerName::sgd, .weight_decay = 0, .momentum = 0.9, .dampening = 0.5}),
                2 - 0.1 * 0.5, 1e-6)
        << "the first gradient counts whole";
    const double square = 0.25 * 0.25, mean = 0.25 * 0.5;
    EXPECT_NEAR(
        after_step({.name = OptimizerName::rmsprop, .weight_decay = 0, .eps = eps, .momentum = 0, .alpha = 0.75}),
        2 - 0.1 * 0.5 / (std::sqrt(square) + eps), 1e-6);
    EXPECT_NEAR(after_step({.name = OptimizerName::rmsprop,
                            .weight_decay = 0,
                            .eps = eps,
                            .momentum = 0,
                            .alpha = 0.75,
                            .centered = true}),
                2 - 0.1 * 0.5 / (std::sqrt(square - mean * mean) + eps), 1e-6);
  }
}

TEST(Optimizer, DampeningLeavesTheFirstGradientWholeThoughItIsZero) {
  for (const OptimizerImplementation implementation : kImplementations) {
    const OptimizerOptions options =
        by(implementation, {.name = OptimizerName::sgd, .weight_decay = 0, .momentum = 0.9, .dampening = 0.5});
    const Named parameters{{"zero at first", at::full({3}, 2.0).requires_grad_()},
                           {"none at first", at::full({3}, 2.0).requires_grad_()}};
    Optimizer first(parameters, options), resumed(parameters, options);
    parameters[0].second.mutable_grad() = at::zeros({3});
    for (int step = 0; step < 2; ++step) first.step(0.1);
    for (std::size_t i = 0; i < 2; ++i) resumed.state()[i].second.copy_(first.state()[i].second);
    for (const auto& [name, parameter] : parameters) parameter.mutable_grad() = at::ones({3});
    resumed.step(0.1);
    EXPECT_NEAR(parameters[0].second.select(0, 0).item<double>(), 2 - 0.1 * 0.5, 1e-6);
    EXPECT_NEAR(parameters[1].second.select(0, 0).item<double>(), 2 - 0.1, 1e-6);
  }
}

TEST(Optimizer, MomentumIsSetByItself) {
  const at::Tensor weight = at::full({3}, 2.0).requires_grad_();
  weight.mutable_grad() = at::ones({3});
  for (const OptimizerName name : {OptimizerName::adamw, OptimizerName::adam}) {
    Optimizer optimizer({{"weight", weight}}, {.name = name, .weight_decay = 0});
    optimizer.set_momentum(0.5, 0);
    EXPECT_THAT(optimizer.options().betas, ::testing::ElementsAre(0.5, 0.999));
    optimizer.step(1e-2);
    EXPECT_NEAR(optimizer.state_of(0)[0].second.select(0, 0).item<double>(), 0.5, 1e-6);
  }
  for (const OptimizerName name : {OptimizerName::sgd, OptimizerName::rmsprop}) {
    Optimizer optimizer({{"weight", weight}}, {.name = name, .weight_decay = 0, .momentum = 0});
    const std::size_t before = optimizer.state_count();
    optimizer.step(1e-2);
    optimizer.set_momentum(0.5, 0);
    EXPECT_EQ(optimizer.options().momentum, 0.5);
    EXPECT_EQ(optimizer.state_count(), before + 1);
    EXPECT_EQ(optimizer.state().back().first, "weight/momentum_buffer");
    optimizer.step(1e-2);
    EXPECT_TRUE(optimizer.state().back().second.all().item<bool>()) << choice_name(name);
    optimizer.set_momentum(0, 0);
    optimizer.step(1e-2);
    EXPECT_EQ(optimizer.state_count(), before + 1) << "what is switched off stays";
  }
}

TEST(Optimizer, GroupsWhoseMomentumMovesAloneAreNoLongerUpdatedAsOne) {
  const Named together = odd_parameters(), apart = odd_parameters();
  std::vector<ParameterGroup> groups;
  std::vector<Optimizer> alone;
  for (std::size_t i = 0; i < together.size(); ++i) {
    groups.push_back({{together[i]}, fused({})});
    alone.emplace_back(Named{apart[i]}, fused({}));
  }
  Optimizer all(std::move(groups));
  for (std::uint64_t step = 0; step < 3; ++step) {
    give_gradients(together, step);
    give_gradients(apart, step);
    if (step == 1) {
      all.set_momentum(0.5, 1);
      alone[1].set_momentum(0.5, 0);
    }
    all.step(1e-2);
    for (Optimizer& one : alone) one.step(1e-2);
  }
  expect_equal(together, apart);
}

TEST(Optimizer, BytesOfStateAreThoseOfTheMemoryItLiesIn) {
  const Named parameters{{"a", at::ones({3}).requires_grad_()}, {"b", at::ones({3}).requires_grad_()}};
  Optimizer optimizer(parameters, {});
  EXPECT_EQ(optimizer.state_bytes(), (2 * 2 * 16 + 2) * 4) << "each begins in a cache line of its own";
  for (const std::size_t i : {0U, 1U}) optimizer.share_state(i, "exp_avg", at::zeros({3}));
  EXPECT_EQ(optimizer.state_bytes(), (2 * 3 + 2 * 16 + 2) * 4);
}

TEST(Optimizer, SharesAStepCountOfAnotherFloatingType) {
  const at::Tensor weight = at::ones({3}).requires_grad_(), count = at::full({}, 4.0, at::kDouble);
  Optimizer optimizer({{"weight", weight}}, fused({}));
  optimizer.share_state(0, "step", count);
  weight.mutable_grad() = at::ones({3});
  optimizer.step(1e-2);
  EXPECT_EQ(count.scalar_type(), at::kFloat);
  EXPECT_EQ(count.item<double>(), 5.0);
  EXPECT_EQ(
      error_of(ErrorCode::invalid_argument, [&] { optimizer.share_state(0, "exp_avg", at::zeros({3}, at::kDouble)); }),
      "train: parameter weight: wanted exp_avg, float32 [3] on the CPU, found Double [3] on cpu");
}

TEST(Optimizer, StateThatIsSwitchedOnLaterBegins) {
  const at::Tensor weight = at::ones({2}).requires_grad_();
  OptimizerOptions options{.name = OptimizerName::rmsprop, .weight_decay = 0, .momentum = 0};
  Optimizer optimizer({{"weight", weight}}, fused(options));
  const auto names = [&] {
    std::vector<std::string> found;
    for (const auto& [name, tensor] : optimizer.state()) found.push_back(name);
    return found;
  };
  EXPECT_THAT(names(), ::testing::ElementsAre("weight/square_avg", "weight/step"));
  options.centered = true;
  optimizer.set_options(fused(options));
  options.momentum = 0.5;
  optimizer.set_options(fused(options));
  EXPECT_THAT(names(),
              ::testing::ElementsAre("weight/square_avg", "weight/step", "weight/grad_avg", "weight/momentum_buffer"));
  weight.mutable_grad() = at::ones({2});
  optimizer.step(1e-2);
  EXPECT_NEAR(optimizer.state()[2].second.select(0, 0).item<double>(), 0.01, 1e-7) << "grad_avg";
  EXPECT_NEAR(optimizer.state()[3].second.select(0, 0).item<double>(), 1 / std::sqrt(0.01 - 0.0001), 2e-2)
      << "momentum_buffer";
}

TEST(Optimizer, WantsAFactorAndAnAverageForEachParameter) {
  const Named parameters = odd_parameters();
  Optimizer optimizer(parameters, fused({}));
  const std::vector<at::Tensor> few(2);
  const std::vector<double> many(8);
  EXPECT_THAT(
      [&] { optimizer.step(1e-2, {.gradient_factors = many}); },
      ::testing::ThrowsMessage<Error>(HasSubstr("wanted one gradient factor for each of 7 parameters, found 8")));
  EXPECT_THAT([&] { optimizer.step(1e-2, {.averages = few}); },
              ::testing::ThrowsMessage<Error>(HasSubstr("wanted one average for each of 7 parameters, found 2")));
}

// ---- Updates at rates that lie in a tensor ----

std::vector<OptimizerOptions> with_given_rates() {
  OptimizerOptions amsgrad{.name = OptimizerName::adam, .amsgrad = true};
  OptimizerOptions nesterov{.name = OptimizerName::sgd};
  nesterov.nesterov = true;
  OptimizerOptions no_momentum{.name = OptimizerName::sgd, .momentum = 0};
  return {fused({.name = OptimizerName::adamw}), fused(amsgrad), fused(nesterov), fused(no_momentum)};
}

// Two groups that differ in their rates alone, which are float32 as they stand.
Optimizer of_two_groups(const Named& parameters, OptimizerOptions options, double second_mult) {
  const auto middle = parameters.begin() + 3;
  options.lr = 0x1p-7;
  ParameterGroup first{Named(parameters.begin(), middle), options};
  options.lr = 0x1p-5;
  ParameterGroup second{Named(middle, parameters.end()), options, second_mult};
  return Optimizer(std::vector<ParameterGroup>{first, second});
}

void expect_near(const Named& found, const Named& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i].second.numel() == 0) continue;
    const double size = std::max(1.0, wanted[i].second.detach().abs().max().item<double>());
    EXPECT_LE(difference(found[i].second, wanted[i].second), 1e-6 * size) << found[i].first;
  }
}

TEST(OptimizerRates, MakeTheStepsOfEqualRatesThatAreScheduled) {
  for (const OptimizerOptions& options : with_given_rates()) {
    for (const double second_mult : {1.0, 0.5}) {
      SCOPED_TRACE(fmt::format("{}, {}", choice_name(options.name), second_mult));
      const Named ours = odd_parameters(), theirs = odd_parameters();
      Optimizer given = of_two_groups(ours, options, second_mult), plain = of_two_groups(theirs, options, second_mult);
      const at::Tensor rates = at::zeros({2}), found_inf = at::zeros({});
      for (std::uint64_t step = 0; step < 6; ++step) {
        give_gradients(ours, step);
        give_gradients(theirs, step);
        const double scale = step < 3 ? 1.0 : 0.25;
        rates.select(0, 0).fill_(scale * 0x1p-7);
        rates.select(0, 1).fill_(scale * 0x1p-5 * second_mult);
        if (step % 2 == 0) {
          given.step(1.0, {.rates = rates});
        } else {
          given.step(1.0, {.rates = rates, .found_inf = found_inf});
        }
        plain.step([scale](double lr) { return scale * lr; });
      }
      expect_near(ours, theirs);
      expect_near(given.state(), plain.state());
    }
  }
}

TEST(OptimizerRates, FoundInfLeavesParametersStateAndStepCounts) {
  for (const OptimizerOptions& options : with_given_rates()) {
    SCOPED_TRACE(choice_name(options.name));
    const Named parameters = odd_parameters();
    Optimizer optimizer(parameters, options);
    give_gradients(parameters, 1);
    optimizer.step(1e-2);
    const Named before = clones(parameters), state_before = clones(optimizer.state());
    const std::vector<at::Tensor> averages = [&] {
      std::vector<at::Tensor> copies;
      for (const auto& [name, parameter] : parameters) copies.push_back(parameter.detach().clone().add_(1));
      return copies;
    }();
    std::vector<at::Tensor> averages_before;
    for (const at::Tensor& average : averages) averages_before.push_back(average.clone());
    give_gradients(parameters, 2);
    parameters[3].second.mutable_grad().select(0, 5).fill_(std::numeric_limits<float>::quiet_NaN());
    const at::Tensor rates = at::full({1}, 1e-2), found_inf = at::ones({});
    optimizer.step(1.0,
                   {.averages = averages, .rates = rates, .average_weight = at::zeros({}), .found_inf = found_inf});
    expect_equal(parameters, before);
    expect_equal(optimizer.state(), state_before);
    for (std::size_t i = 0; i < averages.size(); ++i) EXPECT_TRUE(averages[i].equal(averages_before[i])) << i;
  }
}

TEST(OptimizerRates, MoveAveragesByAWeightInATensor) {
  for (const OptimizerOptions& options : with_given_rates()) {
    SCOPED_TRACE(choice_name(options.name));
    const Named ours = odd_parameters(), theirs = odd_parameters();
    Optimizer given(ours, options), plain(theirs, options);
    std::vector<at::Tensor> of_ours, of_theirs;
    Named named_ours, named_theirs;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      of_ours.push_back(i == 1 ? at::Tensor() : at::zeros_like(ours[i].second.detach()));
      of_theirs.push_back(i == 1 ? at::Tensor() : at::zeros_like(theirs[i].second.detach()));
      if (i == 1) continue;
      named_ours.emplace_back(ours[i].first, of_ours.back());
      named_theirs.emplace_back(theirs[i].first, of_theirs.back());
    }
    const at::Tensor rates = at::full({1}, 0x1p-7), weight = at::zeros({});
    for (std::uint64_t step = 0; step < 4; ++step) {
      give_gradients(ours, step);
      give_gradients(theirs, step);
      ours[2].second.mutable_grad().reset();  // Its average moves all the same.
      theirs[2].second.mutable_grad().reset();
      const double decay = step < 2 ? 0.5 : 0.75;
      weight.fill_(1 - decay);
      given.step(1.0, {.averages = of_ours, .rates = rates, .average_weight = weight});
      plain.step(0x1p-7, {.averages = of_theirs, .average_decay = decay});
    }
    expect_near(ours, theirs);
    expect_near(named_ours, named_theirs);
    EXPECT_GT(of_ours[2].abs().max().item<double>(), 0);
  }
}

TEST(OptimizerRates, TellAutogradOfWhatTheyHaveWritten) {
  for (const OptimizerOptions& options : with_given_rates()) {
    const at::Tensor weight = at::full({20}, 2.0).requires_grad_();
    Optimizer optimizer({{"weight", weight}}, options);
    const at::Tensor loss = weight.square().sum();
    loss.backward({}, /*retain_graph=*/true);
    optimizer.step(1.0, {.rates = at::full({1}, 1e-2)});
    EXPECT_THROW(loss.backward({}, /*retain_graph=*/true), c10::Error) << choice_name(options.name);
  }
}

TEST(OptimizerRates, RefuseWhatTheyCannotDoBeforeAnythingChanges) {
  const auto nothing = [](const at::Tensor&) {};
  for (const at::Tensor& rates : {at::ones({2}), at::ones({}), at::ones({1, 1})}) {
    EXPECT_THAT(refusal(fused({}), nothing, {.rates = rates}), HasSubstr("train: wanted a rate for each of 1 groups"));
  }
  const auto make_sparse = [](const at::Tensor& second) { second.mutable_grad() = second.grad().to_sparse(1); };
  const OptimizerOptions sgd = fused({.name = OptimizerName::sgd, .weight_decay = 0});
  EXPECT_THAT(refusal(sgd, make_sparse, {.rates = at::ones({1})}), HasSubstr("wanted a dense gradient for sgd"));

  const UpdateExtras extras{.rates = at::full({1}, 1e-2)};
  const auto refused = [&](const at::Tensor& weight, const OptimizerOptions& options) {
    Optimizer optimizer({{"weight", weight}}, options);
    weight.mutable_grad() = at::zeros_like(weight.detach()).add_(1);
    const at::Tensor before = weight.detach().clone();
    const std::string said = error_of(ErrorCode::unsupported, [&] { optimizer.step(1.0, extras); });
    EXPECT_TRUE(weight.equal(before)) << said;
    return said;
  };
  EXPECT_THAT(refused(at::ones({3}).requires_grad_(), fused({.name = OptimizerName::rmsprop})),
              HasSubstr("RMSprop has no update with given rates"));
  OptimizerOptions damped{.name = OptimizerName::sgd};
  damped.dampening = 0.5;
  EXPECT_THAT(refused(at::ones({3}).requires_grad_(), fused(damped)),
              HasSubstr("SGD with dampening has no update with given rates"));
  const at::Tensor with_holes = at::ones({3, 8}).slice(1, 0, 4).detach().requires_grad_();
  EXPECT_THAT(refused(with_holes, fused({})),
              HasSubstr("train: parameter weight: wanted one that fills its memory, found strides [8, 1]"));
}

TEST(OptimizerRates, AreThereForAdamAndUndampedSgd) {
  EXPECT_EQ(Optimizer::why_not_on_device({.name = OptimizerName::adamw}), "");
  EXPECT_EQ(Optimizer::why_not_on_device({.name = OptimizerName::adam}), "");
  EXPECT_EQ(Optimizer::why_not_on_device({.name = OptimizerName::rmsprop}), "RMSprop");
  OptimizerOptions sgd{.name = OptimizerName::sgd};
  EXPECT_EQ(Optimizer::why_not_on_device(sgd), "");
  sgd.dampening = 0.1;
  EXPECT_EQ(Optimizer::why_not_on_device(sgd), "SGD with dampening");
  sgd.momentum = 0;
  EXPECT_EQ(Optimizer::why_not_on_device(sgd), "") << "there is nothing to dampen";
}

TEST(Optimizer, IsAnotherAfterAssignmentAndAfterStateWasShared) {
  const at::Tensor weight = at::ones({3}).requires_grad_();
  Optimizer optimizer({{"weight", weight}}, fused({}));
  const std::uint64_t first = optimizer.identity();
  OptimizerOptions options = optimizer.options();
  options.lr = 0.5;
  optimizer.set_options(options);
  EXPECT_EQ(optimizer.identity(), first);
  optimizer.share_state(0, "exp_avg", at::zeros({3}));
  const std::uint64_t second = optimizer.identity();
  EXPECT_NE(second, first);
  optimizer = Optimizer({{"weight", weight}}, fused({}));
  EXPECT_NE(optimizer.identity(), first);
  EXPECT_NE(optimizer.identity(), second);
}

}  // namespace
}  // namespace headrace
