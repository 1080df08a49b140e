// Trials on a part of the data: tune.samples_max.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/hardware/machine.h"
#include "engine/assembly/tiny_dataset.h"
#include "engine/assembly/training_job.h"

namespace headrace {
namespace {

const Progress& progress_of(TrainingJob& job) {
  return job.training().trainer().progress();
}

Recipe recipe_of(const TinyDataset& data, std::int64_t samples_max) {
  Recipe recipe = data.recipe();
  recipe.tune.samples_max = samples_max;
  return recipe;
}

TEST(TrialSamples, TheFirstBatchesOfAnEpochTakeTurns) {
  const TinyDataset data{400};  // 13 batches of 32.
  TrainingJob job{recipe_of(data, 100), detect_machine()};
  std::vector<std::int64_t> places;
  for (int i = 0; i < 7; ++i) {
    job.run(1);
    places.push_back(progress_of(job).batch);
  }
  EXPECT_EQ(places, (std::vector<std::int64_t>{1, 2, 3, 1, 2, 3, 1}));
  job.run(8);  // In one go, over two ends.
  EXPECT_EQ(progress_of(job).batch, 3);
  EXPECT_EQ(progress_of(job).epoch, 0);
}

TEST(TrialSamples, AreTheSameEachTime) {
  const TinyDataset data{400};
  Recipe recipe = recipe_of(data, 100);
  recipe.optimizer.lr = 0;  // So that the loss tells which batch it was.
  TrainingJob job{recipe, detect_machine()};
  std::vector<double> losses;
  double before = 0;
  for (int i = 0; i < 6; ++i) {
    job.run(1);
    losses.push_back(progress_of(job).loss_sum - before);
    before = progress_of(job).loss_sum;
  }
  EXPECT_GT(std::abs(losses[0] - losses[1]), 1e-6);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(losses[i], losses[i + 3], 1e-6) << i;
}

TEST(TrialSamples, AreAtLeastABatchAndAtMostTheEpoch) {
  const TinyDataset data{400};
  TrainingJob least{recipe_of(data, 1), detect_machine()};
  least.run(3);
  EXPECT_EQ(progress_of(least).batch, 1);
  TrainingJob most{recipe_of(data, 1'000'000), detect_machine()};
  most.run(14);
  EXPECT_EQ(progress_of(most).epoch, 1);
  EXPECT_EQ(progress_of(most).batch, 1);
}

TEST(TrialSamples, AreWholeUpdates) {
  const TinyDataset data{400};
  Recipe recipe = recipe_of(data, 100);
  recipe.train.gradient_accumulation_steps = 2;
  TrainingJob job{recipe, detect_machine()};
  job.run(4);
  EXPECT_EQ(progress_of(job).batch, 2);
  EXPECT_EQ(progress_of(job).window, 0);
}

}  // namespace
}  // namespace headrace
