#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/swa_average.h>

#include "core/base/error_of.h"
#include "torch/tensor/kept_values.h"
#include "torch/train/equal_tensors.h"
#include "torch/train/tiny_training.h"
#include "torch/train/training_state.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

TEST(SwaAverage, IsThePlainMeanAfterEachEpoch) {
  const at::Tensor weight = at::full({3}, 1.0).requires_grad_(), statistic = at::full({2}, -4.0);
  SwaAverage mean({{{"weight", weight}}, {{"statistic", statistic}}, {}});
  EXPECT_EQ(mean.epochs(), 0);
  EXPECT_TRUE(mean.tensors().empty());
  double sum = 0;
  for (int epoch = 1; epoch <= 5; ++epoch) {
    {
      c10::AutoGradMode no_graph(false);
      weight.fill_(1.0 / epoch);
    }
    sum += 1.0 / epoch;
    mean.add();
    ASSERT_EQ(mean.tensors().size(), 1U) << "no buffer belongs to it yet";
    EXPECT_NEAR(mean.tensors()[0].second.select(0, 1).item<double>(), sum / epoch, 1e-6);
    EXPECT_EQ(mean.epochs(), epoch);
  }
  EXPECT_FALSE(mean.has_buffers());
  mean.keep_buffers();
  EXPECT_TRUE(mean.has_buffers());
  statistic.fill_(7);
  mean.show();
  EXPECT_NEAR(weight.select(0, 0).item<double>(), sum / 5, 1e-6);
  EXPECT_EQ(statistic.select(0, 0).item<double>(), -4);
  EXPECT_TRUE(weight.requires_grad());
  mean.add();
  EXPECT_FALSE(mean.has_buffers()) << "those were of five epochs";
}

TEST(SwaAverage, GoesOnToTheSameBitsInEitherLayout) {
  tiny::Training whole, resumed;
  SwaAverage mean(whole.trainer->model()), first(resumed.trainer->model());
  const auto epoch = [](const tiny::Training& training, std::uint64_t seed) {
    at::manual_seed(seed);
    tiny::train(training, 2);
  };
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    epoch(whole, seed), mean.add();
    epoch(resumed, seed), first.add();
  }
  SwaAverage again(resumed.trainer->model(), 2, clones(first.tensors()));
  for (const tiny::Training* training : {&whole, &resumed}) {
    training->trainer->set_memory_format(MemoryFormat::channels_last);
  }
  epoch(whole, 3), mean.add();
  epoch(resumed, 3), again.add();
  EXPECT_EQ(again.epochs(), 3);
  expect_equal(again.tensors(), mean.tensors());
}

TEST(SwaAverage, RefusesWhatIsNotTheModels) {
  tiny::Training training;
  const ModelState& model = training.trainer->model();
  SwaAverage mean(model);
  mean.add();
  const auto said = [&](const Named& kept, std::int64_t epochs = 1) {
    return error_of(ErrorCode::corrupt_data, [&] { SwaAverage(model, epochs, kept); });
  };
  Named kept = clones(mean.tensors());
  EXPECT_THAT(said(kept, 0), HasSubstr("epochs: wanted at least 1, found 0"));
  kept[0].first = "stem.weight";
  EXPECT_THAT(said(kept), HasSubstr("conv.weight: wanted Float [6, 1, 3, 3], found none"));
  kept = clones(mean.tensors());
  kept[1].second = at::zeros({7});
  EXPECT_THAT(said(kept), HasSubstr("conv.bias: wanted Float [6], found Float [7]"));
  kept.pop_back();
  EXPECT_THAT(said(kept), HasSubstr("tensors: wanted 7 or 9, found 6"));
}

TEST(ForwardEpoch, MovesRunningStatisticsAndNothingElse) {
  for (const std::int64_t micro_batch : {0, 4}) {
    tiny::Training training;
    Loader loader(std::make_shared<tiny::Images>(20), tiny::batches_of(8), 1, true);
    training.trainer->progress().micro_batch = micro_batch;
    const at::Tensor generator = generator_state();
    const Named parameters = clones(training.trainer->model().parameters);
    const Named buffers = clones(training.trainer->model().buffers);
    EXPECT_TRUE(forward_epoch(*training.trainer, loader, 3, {}));
    expect_equal(training.trainer->model().parameters, parameters);
    EXPECT_FALSE(training.trainer->model().buffers[0].second.equal(buffers[0].second));
    EXPECT_TRUE(generator_state().equal(generator)) << "dropout has drawn";
    for (const auto& [name, parameter] : training.trainer->model().parameters) {
      EXPECT_FALSE(parameter.grad().defined()) << name;
    }
    EXPECT_EQ(training.trainer->progress().batch, 0);
    int asked = 0;
    EXPECT_FALSE(forward_epoch(*training.trainer, loader, 3, [&asked] { return ++asked == 2; }));
    EXPECT_TRUE(generator_state().equal(generator));
  }
}

}  // namespace
}  // namespace headrace
