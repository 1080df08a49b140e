#include <ATen/ops/full.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/trainer.h>

#include "core/base/error_of.h"
#include "torch/train/tiny_training.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

// Every sample of 4 classes is taken for class 1, but those of class 2, which are right.
Output guess(const TensorBatch& batch) {
  const at::Tensor guessed = batch["labels"].eq(2).to(at::kLong).add(1);
  return {at::full({}, 0.5), {{"logits", at::one_hot(guessed, 5).to(at::kFloat)}}};
}

TEST(Evaluation, CountsEachClassBySamplesRightAndPredicted) {
  tiny::Training training;
  Loader loader(std::make_shared<tiny::Images>(22), tiny::batches_of(8), 1, false);  // Labels 0 to 3; 22 = 2 x 8 + 6.
  for (const std::int64_t micro_batch : {0, 3}) {
    training.trainer->progress().micro_batch = micro_batch;
    const Evaluation found = evaluate(*training.trainer, loader, guess);
    ASSERT_EQ(found.classes.size(), 5U) << "one a logit";
    const std::vector<ClassCounts> wanted{{6, 0, 0}, {6, 6, 17}, {5, 5, 5}, {5, 0, 0}, {0, 0, 0}};
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_EQ(found.classes[i].samples, wanted[i].samples) << i;
      EXPECT_EQ(found.classes[i].right, wanted[i].right) << i;
      EXPECT_EQ(found.classes[i].predicted, wanted[i].predicted) << i;
    }
    EXPECT_EQ(found.samples, 22);
    EXPECT_EQ(found.accuracy, 11.0 / 22.0);
    EXPECT_EQ(found.loss, 0.5);
  }
}

TEST(Evaluation, ALabelThatIsNoClassIsWrongAndInNone) {
  tiny::Training training;
  Loader loader(std::make_shared<tiny::Images>(8), tiny::batches_of(8), 1, false);
  const Evaluation found = evaluate(*training.trainer, loader, [](const TensorBatch& batch) {
    return Output{at::zeros({}), {{"logits", at::zeros({batch.size(), 2})}}};  // Of 4 classes the first two.
  });
  ASSERT_EQ(found.classes.size(), 2U);
  EXPECT_EQ(found.classes[0].samples + found.classes[1].samples, 4);
  EXPECT_EQ(found.classes[0].predicted, 8);
  EXPECT_EQ(found.accuracy, 0.25);
}

TEST(Evaluation, WantsAsManyLogitsInEachBatch) {
  tiny::Training training;
  Loader loader(std::make_shared<tiny::Images>(16), tiny::batches_of(8), 1, false);
  std::int64_t logits = 3;
  const auto growing = [&logits](const TensorBatch& batch) {
    return Output{at::zeros({}), {{"logits", at::zeros({batch.size(), ++logits})}}};
  };
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { evaluate(*training.trainer, loader, growing); }),
              HasSubstr("evaluation: wanted 4 logits as before, found 5"));
}

}  // namespace
}  // namespace headrace
