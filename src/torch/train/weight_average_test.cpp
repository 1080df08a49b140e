#include "torch/train/weight_average.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/trainer.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "core/base/error_of.h"
#include "core/memory/accounts.h"
#include "torch/tensor/tensor_allocations.h"
#include "torch/train/equal_tensors.h"
#include "torch/train/tiny_training.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Not;
using tiny::averaging;

TEST(WeightAverage, IsTheFormulaByHand) {
  for (const bool warmup : {false, true}) {
    const at::Tensor weight = at::full({3}, 1.0).requires_grad_(), statistic = at::full({2}, -4.0);
    const at::Tensor count = at::zeros({}, at::kLong);
    WeightAverage average({{{"weight", weight}}, {{"statistic", statistic}, {"count", count}}, {}}, 0.5, warmup);
    double wanted_weight = 1, wanted_statistic = -4;
    for (int n = 1; n <= 12; ++n) {  // The warm-up's decay is 0.5 at the eighth.
      {
        c10::AutoGradMode no_graph(false);
        weight.fill_(1.0 / (n + 1));
        statistic.fill_(0.25 * n);
        count.fill_(n);
      }
      average.update(n);
      const double decay = warmup ? std::min(0.5, (1.0 + n) / (10.0 + n)) : 0.5;
      wanted_weight = decay * wanted_weight + (1 - decay) / (n + 1);
      wanted_statistic = decay * wanted_statistic + (1 - decay) * 0.25 * n;
      const auto& tensors = average.tensors();
      ASSERT_EQ(tensors.size(), 3U);
      EXPECT_NEAR(tensors[0].second.select(0, 2).item<double>(), wanted_weight, 1e-6) << "update " << n;
      EXPECT_NEAR(tensors[1].second.select(0, 1).item<double>(), wanted_statistic, 1e-5) << "update " << n;
      EXPECT_EQ(tensors[2].second.item<std::int64_t>(), n);
      EXPECT_FALSE(tensors[0].second.requires_grad());
    }
  }
}

TEST(WeightAverage, LeavesThoseToTheUpdateThatItHasGiven) {
  const at::Tensor weight = at::full({3}, 1.0), other = at::full({2}, 1.0), foreign = at::full({1}, 1.0);
  WeightAverage average({{{"weight", weight}, {"tied", weight}, {"other", other}}, {}, {}}, 0.5, false);
  const std::vector<at::Tensor> given = average.averages_of({{"foreign", foreign}, {"weight", weight}});
  ASSERT_EQ(given.size(), 2U);
  EXPECT_FALSE(given[0].defined());
  EXPECT_TRUE(given[1].is_same(average.tensors()[0].second));
  weight.fill_(3);
  other.fill_(3);
  average.update(1, /*all=*/false);
  EXPECT_TRUE(average.tensors()[0].second.eq(1).all().item<bool>());
  for (const std::size_t moved : {1, 2}) EXPECT_TRUE(average.tensors()[moved].second.eq(2).all().item<bool>());
  average.update(2);
  EXPECT_TRUE(average.tensors()[0].second.eq(2).all().item<bool>());
}

TEST(WeightAverage, RefusesADecayBelow0OrNotBelow1) {
  for (const double decay : {1.0, -0.1, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { const WeightAverage average(ModelState{}, decay, false); }),
                HasSubstr("ema_decay"));
  }
}

TEST(WeightAverage, RefusesByItsNameWhatCannotBeWrittenInPlace) {
  const auto refusal = [](const ModelState& model) {
    return error_of(ErrorCode::invalid_argument, [&] { const WeightAverage average(model, 0.9, false); });
  };
  const at::Tensor weight = at::zeros({2}).requires_grad_(), one_for_three = at::zeros({1}).expand({3});
  EXPECT_THAT(refusal({{{"norm.weight", weight}}, {{"norm.running_var", one_for_three}}, {}}),
              AllOf(HasSubstr("norm.running_var"), HasSubstr("share memory")));
  at::Tensor of_inference;
  {
    const c10::InferenceMode inference;
    of_inference = at::zeros({2});
  }
  EXPECT_THAT(refusal({{{"last.weight", of_inference}}, {}, {}}),
              AllOf(HasSubstr("last.weight"), HasSubstr("an inference tensor")));
}

// One update, tensor by tensor.
void move_averages(const Named& averages, const Named& weights, double decay) {
  for (std::size_t i = 0; i < averages.size(); ++i) averages[i].second.lerp_(weights[i].second.detach(), 1 - decay);
}

TEST(Trainer, ItsAveragesMoveOnceAnUpdateThoseOfBuffersToo) {
  for (const bool warmup : {false, true}) {
    TrainOptions options = averaging(0.28, warmup);
    options.gradient_accumulation_steps = 2;
    tiny::Training training(options);
    const Named& averages = training.trainer->averages();
    const Named wanted = clones(training.weights());
    expect_equal(averages, wanted);
    for (int n = 1; n <= 3; ++n) {
      tiny::train(training, 1);  // Moves the running statistics of the batch norm alone.
      expect_equal(averages, wanted);
      tiny::train(training, 1);
      move_averages(wanted, training.weights(), warmup ? std::min(0.28, (1.0 + n) / (10.0 + n)) : 0.28);
      expect_equal(averages, wanted);
      for (std::size_t i = 0; i < averages.size(); ++i) {
        EXPECT_EQ(averages[i].first, training.weights()[i].first);
        EXPECT_FALSE(averages[i].second.equal(training.weights()[i].second)) << averages[i].first;
      }
    }
  }
}

TEST(Trainer, OfAFrozenModelIsRefusedItsAverages) {
  const tiny::Cnn network;
  const ModelState state = network.state();
  for (const auto& [name, parameter] : state.parameters) parameter.set_requires_grad(false);
  const auto make = [&state] {
    const Trainer trainer(state, Optimizer(state.parameters, OptimizerOptions{}), {}, averaging(0.9), {}, 1);
  };
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, make),
              HasSubstr("ema_decay: wanted a parameter that requires gradients, found none among 7"));
  state.parameters.back().second.set_requires_grad(true);
  EXPECT_NO_THROW(make());
}

TEST(Trainer, ASkippedUpdateMovesNoAverage) {
  TrainOptions options = averaging(0.9);
  options.loss_scale = 65536;
  tiny::Training training(options);
  Trainer& trainer = *training.trainer;
  const Named wanted = clones(trainer.averages());
  trainer.on_part = [&](StepPart part) {
    if (part != StepPart::optimizer) return;
    trainer.model().parameters[0].second.grad().mul_(std::numeric_limits<float>::infinity());
  };
  tiny::train(training, 2);
  EXPECT_EQ(trainer.progress().skipped_updates, 2);
  const at::Tensor running_mean = trainer.model().buffers[0].second;
  EXPECT_FALSE(running_mean.equal(wanted[trainer.model().parameters.size()].second)) << "forward did move it";
  expect_equal(trainer.averages(), wanted);

  trainer.on_part = {};
  tiny::train(training, 1);
  EXPECT_EQ(trainer.progress().optimizer_steps, 1);
  move_averages(wanted, training.weights(), 2.0 / 11.0);  // The first update of all.
  expect_equal(trainer.averages(), wanted);
}

TEST(Trainer, LendsItsAveragesToTheModelWhichThenHasItsOwnBitsAgain) {
  tiny::Training training(averaging(0.9));
  tiny::train(training, 3);
  Trainer& trainer = *training.trainer;
  const Named weights = training.weights(), own = clones(weights), averages = clones(trainer.averages());
  bool has_run = false;
  trainer.with_averages([&] {
    has_run = true;
    expect_equal(weights, averages);
    trainer.model().buffers[0].second.fill_(7);
  });
  EXPECT_TRUE(has_run);
  expect_equal(weights, own);
  expect_equal(trainer.averages(), averages);

  EXPECT_THROW(trainer.with_averages([] { throw std::runtime_error("of the work"); }), std::runtime_error);
  expect_equal(weights, own);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    EXPECT_TRUE(training.weights()[i].second.is_same(weights[i].second)) << weights[i].first;
  }
}

TEST(Trainer, WithoutAveragesRunsTheWorkAlone) {
  tiny::Training training;
  EXPECT_TRUE(training.trainer->averages().empty());
  const Named own = clones(training.weights());
  bool has_run = false;
  training.trainer->with_averages([&] {
    has_run = true;
    expect_equal(training.weights(), own);
  });
  EXPECT_TRUE(has_run);
}

TEST(Trainer, ItsAveragesTakeTheModelsLayoutAndKeepTheirValues) {
  tiny::Training training(averaging(0.5, /*warmup=*/false));
  tiny::train(training, 3);
  Trainer& trainer = *training.trainer;
  const Named shared = trainer.averages();
  for (const MemoryFormat format : {MemoryFormat::channels_last, MemoryFormat::contiguous}) {
    const Named before = clones(shared);
    trainer.set_memory_format(format);
    expect_equal(shared, before);  // Through the handles taken before the change.
    const Named weights = training.weights(), wanted = clones(shared);
    for (std::size_t i = 0; i < shared.size(); ++i) {
      EXPECT_TRUE(shared[i].second.strides() == weights[i].second.strides()) << shared[i].first;
    }
    EXPECT_EQ(shared[2].second.suggest_memory_format(),
              format == MemoryFormat::channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
    tiny::train(training, 1);
    move_averages(wanted, weights, 0.5);
    expect_equal(trainer.averages(), wanted);
  }
}

TEST(Trainer, ItsAveragesHaveAnAccountAndAreNoActivations) {
  const TensorAllocations allocations;
  {
    const tiny::Training training(averaging(0.9));
    std::int64_t bytes = 0;
    for (const auto& [name, weight] : training.weights()) bytes += static_cast<std::int64_t>(weight.nbytes());
    const std::vector<AccountBytes> accounts = account_bytes();
    EXPECT_THAT(accounts, Contains(AllOf(Field(&AccountBytes::name, "averages"), Field(&AccountBytes::bytes, bytes))));
    EXPECT_THAT(accounts, Contains(AllOf(Field(&AccountBytes::name, "activations"), Field(&AccountBytes::bytes, 0))));
  }
  const tiny::Training training;
  EXPECT_THAT(account_bytes(), Not(Contains(Field(&AccountBytes::name, "averages"))));
}

TEST(Evaluation, CountsLabelsAmongTheFiveLargestOfMoreThanFiveLogits) {
  tiny::Training training;
  Loader loader(std::make_shared<tiny::Images>(21), tiny::batches_of(8), 1, false);
  // 3 + label logits of 7 are larger than the label's: it is the fourth to the seventh.
  const auto forward_of = [](std::int64_t classes) {
    return [classes](const TensorBatch& batch) {
      const at::Tensor logits = at::zeros({batch.size(), 7});
      const at::Tensor& labels = batch["labels"];
      auto values = logits.accessor<float, 2>();
      for (std::int64_t i = 0; i < batch.size(); ++i) {
        const auto label = labels.select(0, i).item<std::int64_t>();
        for (std::int64_t c = 0; c < 7; ++c) values[i][c] = static_cast<float>((c - label + 7) % 7);
        values[i][label] = 3.5F - static_cast<float>(label);
      }
      return Output{at::zeros({}), {{"logits", logits.slice(1, 0, classes)}}};
    };
  };
  const Evaluation seven = evaluate(*training.trainer, loader, forward_of(7));
  EXPECT_EQ(seven.accuracy, 0);
  EXPECT_EQ(seven.top5_accuracy, 11.0 / 21.0) << "6 of label 0 and 5 of label 1";
  EXPECT_EQ(evaluate(*training.trainer, loader, forward_of(5)).top5_accuracy, std::nullopt);
}

}  // namespace
}  // namespace headrace
