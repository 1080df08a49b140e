// What a window of unequal micro-batches comes to, against one whole batch.

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/trainer.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "torch/train/equal_tensors.h"

namespace headrace {
namespace {

constexpr std::int64_t kClasses = 5, kTokens = 6, kIgnored = -100;

// A linear layer over tokens: of each sample those count whose label is not kIgnored.
struct Tagger {
  explicit Tagger(const TrainOptions& options = {})
      : parameters([] {
          at::manual_seed(4);
          return Named{{"weight", at::randn({kClasses, 8}).requires_grad_()},
                       {"bias", at::zeros({kClasses}).requires_grad_()}};
        }()),
        trainer(ModelState{parameters, {}, [](bool) {}}, Optimizer(parameters, {}), {}, options, {}, 100) {
    trainer.on_part = [this](StepPart part) {
      if (part != StepPart::optimizer) return;
      gradients.clear();
      for (const auto& [name, parameter] : parameters) {
        gradients.emplace_back(name, parameter.grad().mul(trainer.gradient_factor()));
      }
    };
  }

  // The mean over tokens that count; `weighted` says how many those are.
  Output forward(const TensorBatch& batch, bool weighted) const {
    const at::Tensor labels = batch["labels"].flatten();
    const at::Tensor logits = at::linear(batch["tokens"].flatten(0, 1), parameters[0].second, parameters[1].second);
    Output output{at::cross_entropy_loss(logits, labels), {}};
    if (weighted) output.weight = labels.ne(kIgnored).sum().item<double>();
    return output;
  }
  void step(const TensorBatch& batch, bool weighted, bool last_of_window = false) {
    trainer.step([&] { return forward(batch, weighted); }, batch.size(), last_of_window);
  }

  Named parameters, gradients;  // Of the last update, the mean of its window.
  Trainer trainer;
};

TrainOptions accumulating(std::int64_t count) {
  TrainOptions options;
  options.gradient_accumulation_steps = count;
  return options;
}

// Each token counts, or a sample's first 0 to 6 of them.
TensorBatch samples(std::int64_t count, bool ragged) {
  at::manual_seed(11);
  at::Tensor labels = at::randint(kClasses, {count, kTokens}, at::kLong);
  if (ragged) {
    const at::Tensor lengths = at::randint(kTokens + 1, {count, 1}, at::kLong);
    labels = labels.masked_fill(at::arange(kTokens).unsqueeze(0).ge(lengths), kIgnored);
  }
  return {{"tokens", at::randn({count, kTokens, 8})}, {"labels", labels}};
}

TensorBatch part(const TensorBatch& batch, std::int64_t begin, std::int64_t end) {
  return {{"tokens", batch["tokens"].slice(0, begin, end)}, {"labels", batch["labels"].slice(0, begin, end)}};
}

void expect_within(const Named& found, const Named& wanted, double limit) {
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_LE((found[i].second - wanted[i].second).abs().max().item<double>(), limit) << found[i].first;
  }
}

TEST(Accumulation, UnequalPartsCountByTheirSamples) {
  const TensorBatch whole = samples(32, /*ragged=*/false);
  Tagger at_once, in_parts(accumulating(4));
  at_once.step(whole, false);
  std::int64_t begin = 0;
  for (const std::int64_t count : {3, 20, 1, 8}) {
    in_parts.step(part(whole, begin, begin + count), false);
    begin += count;
  }
  EXPECT_EQ(in_parts.trainer.progress().optimizer_steps, 1);
  expect_within(in_parts.gradients, at_once.gradients, 1e-6);
}

TEST(Accumulation, PartsCountByTheWeightThatForwardReturns) {
  const TensorBatch whole = samples(32, /*ragged=*/true);
  Tagger at_once, by_tokens(accumulating(4)), by_samples(accumulating(4));
  at_once.step(whole, true);
  for (std::int64_t begin = 0; begin < 32; begin += 8) {
    by_tokens.step(part(whole, begin, begin + 8), true);
    by_samples.step(part(whole, begin, begin + 8), false);
  }
  expect_within(by_tokens.gradients, at_once.gradients, 1e-6);
  EXPECT_GT((by_samples.gradients[0].second - at_once.gradients[0].second).abs().max().item<double>(), 1e-4)
      << "parts of unequal tokens are what this test is about";
}

TEST(Accumulation, AWindowThatIsCutShortIsThatOfItsOwnBatch) {
  const TensorBatch whole = samples(26, /*ragged=*/true);
  for (const bool foreseen : {false, true}) {
    Tagger in_parts(accumulating(4)), reference;
    for (std::int64_t i = 0; i < 6; ++i) {
      if (i == 4) {  // The parameters that the short window begins with.
        for (std::size_t p = 0; p < 2; ++p) {
          reference.parameters[p].second.detach().copy_(in_parts.parameters[p].second.detach());
        }
      }
      in_parts.step(part(whole, 5 * i, std::min<std::int64_t>(5 * i + 5, 26)), true, foreseen && i == 5);
    }
    in_parts.trainer.finish_window();
    EXPECT_EQ(in_parts.trainer.progress().optimizer_steps, 2);
    reference.step(part(whole, 20, 26), true);
    expect_within(in_parts.gradients, reference.gradients, 1e-6);
  }
}

TEST(Accumulation, EqualPartsHaveTheBitsOfTheirPlainMean) {
  const TensorBatch whole = samples(24, /*ragged=*/false);
  Tagger by_samples(accumulating(3)), by_hand;
  for (std::int64_t begin = 0; begin < 24; begin += 8) {
    by_samples.step(part(whole, begin, begin + 8), false);
    by_hand.forward(part(whole, begin, begin + 8), false).loss.backward();
  }
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(by_samples.gradients[i].second.equal(by_hand.parameters[i].second.grad().mul(1.0 / 3)));
  }
}

TEST(Accumulation, APartOfNoWeightAddsNothingWhateverItsLoss) {
  const TensorBatch whole = samples(16, /*ragged=*/false);
  TensorBatch none = part(whole, 0, 4);
  none["labels"] = at::full({4, kTokens}, kIgnored, at::kLong);
  Tagger with_empty(accumulating(3)), at_once;
  with_empty.step(none, true);  // Its loss is the mean of nothing.
  with_empty.step(part(whole, 0, 6), true);
  with_empty.step(part(whole, 6, 16), true);
  at_once.step(whole, true);
  expect_within(with_empty.gradients, at_once.gradients, 1e-6);

  const Named before = clones(with_empty.parameters);
  for (int i = 0; i < 3; ++i) with_empty.step(none, true);
  expect_equal(with_empty.parameters, before);
  EXPECT_EQ(with_empty.trainer.progress().optimizer_steps, 1);
  EXPECT_EQ(with_empty.trainer.progress().skipped_updates, 1);
  EXPECT_EQ(with_empty.trainer.progress().batch, 6);
}

TEST(Accumulation, OrderOfUnequalPartsDecidesOfNoOverflow) {
  const TensorBatch whole = samples(16, /*ragged=*/false);
  TrainOptions options = accumulating(2);
  options.loss_scale = 0x1p120;  // Times 2048 is beyond float32.
  Tagger light_first(options), heavy_first(options);
  const auto step = [&](Tagger& tagger, bool heavy) {
    const TensorBatch batch = part(whole, heavy ? 8 : 0, heavy ? 16 : 8);
    tagger.trainer.step(
        [&] {
          Output output = tagger.forward(batch, false);
          output.weight = heavy ? 2048.0 : 1.0;
          return output;
        },
        8);
  };
  for (const bool heavy : {false, true}) {
    step(light_first, heavy);
    step(heavy_first, !heavy);
  }
  for (Tagger* tagger : {&light_first, &heavy_first}) {
    EXPECT_EQ(tagger->trainer.progress().skipped_updates, 0);
    EXPECT_EQ(tagger->trainer.progress().optimizer_steps, 1);
    EXPECT_EQ(tagger->trainer.loss_scale(), 0x1p120);
  }
  ASSERT_EQ(light_first.gradients.size(), 2U);
  expect_within(light_first.gradients, heavy_first.gradients, 1e-6);
}

TEST(Accumulation, RefusesAWeightThatIsNone) {
  const TensorBatch batch = samples(4, /*ragged=*/false);
  for (const double weight : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    Tagger tagger;
    const auto step = [&] {
      tagger.trainer.step(
          [&] {
            Output output = tagger.forward(batch, false);
            output.weight = weight;
            return output;
          },
          4);
    };
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, step), testing::HasSubstr("wanted a weight of at least 0"));
  }
}

}  // namespace
}  // namespace headrace
