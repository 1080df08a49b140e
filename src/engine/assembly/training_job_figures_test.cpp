#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <headrace/resource_verdict.h>

#include <cstdint>
#include <filesystem>
#include <iterator>
#include <optional>
#include <vector>

#include "core/base/temporary_folder.h"
#include "core/hardware/machine_peaks.h"
#include "engine/assembly/photo_recipe.h"
#include "engine/assembly/tiny_dataset.h"
#include "engine/assembly/training_job.h"
#include "insight/measure/measure.h"
#include "media/codec/tiny_images.h"

namespace headrace {
namespace {

TEST(TrainingJobFigures, TheUseOfEachPartIsCountedWhileThatIsAskedFor) {
  const TinyDataset data{400};
  TrainingJob job{data.recipe(), detect_machine()};
  job.run(1);
  EXPECT_FALSE(job.part_uses(3));
  job.set_counts_use(true);
  job.run(3);
  const std::optional<PartUses> uses = job.part_uses(3);
  ASSERT_TRUE(uses);
  for (const PartUse* part : {&uses->data_wait, &uses->transfer, &uses->forward, &uses->backward, &uses->optimizer}) {
    EXPECT_GT(part->wall_s, 0);
  }
  EXPECT_GT(uses->forward.cpu_s + uses->backward.cpu_s, 0);
  job.set_counts_use(false);
  job.run(1);
  EXPECT_FALSE(job.part_uses(1));
}

TEST(TrainingJobFigures, PlantedKnobsAreHeardWhileUseIsCountedAndAfterwards) {
  const TinyDataset data{400};
  Recipe recipe = data.recipe();
  recipe.tune.planted = {{.name = "slower", .on_ms = 20}};
  TrainingJob job{recipe, detect_machine()};
  job.configure({{"planted.slower", "true"}});
  job.set_counts_use(true);
  EXPECT_GE(job.run(1).front(), 0.020);
  job.set_counts_use(false);
  EXPECT_GE(job.run(1).front(), 0.020);
}

TEST(TrainingJobFigures, ASleepInThePlaceOfComputeTrainsNothingAndLeavesTheDataWhereItStood) {
  const TinyDataset data{400};
  TrainingJob job{data.recipe(), detect_machine()};
  job.run(2);
  const std::uint64_t before = job.state_hash();
  const Progress stood = job.training().trainer().progress();
  ASSERT_TRUE(job.set_idle_compute(0.002));
  const std::vector<double> seconds = job.run(20);  // An epoch has 13 batches.
  ASSERT_EQ(seconds.size(), 20U);
  for (const double one : seconds) EXPECT_GE(one, 0.002);
  job.set_idle_compute(0);
  EXPECT_EQ(job.state_hash(), before);
  EXPECT_EQ(job.training().trainer().progress().epoch, stood.epoch);
  EXPECT_EQ(job.training().trainer().progress().batch, stood.batch);
  job.run(1);
  EXPECT_NE(job.state_hash(), before);
}

TEST(TrainingJobFigures, TheWorkOfAStepIsCountedAndNothingOfItIsLeft) {
  const TinyDataset data{400};
  TrainingJob job{data.recipe(), detect_machine()};
  job.run(2);
  const std::uint64_t before = job.state_hash();
  const StepWork work = job.step_work();
  EXPECT_EQ(job.state_hash(), before);
  ASSERT_TRUE(work.flops && work.update_bytes);
  std::int64_t bytes = 0, state = 0, weights = 0;
  for (const auto& [name, parameter] : job.training().trainer().model().parameters) {
    bytes += static_cast<std::int64_t>(parameter.nbytes());
    if (parameter.dim() > 1) weights += parameter.numel();
  }
  for (const auto& [name, tensor] : job.training().trainer().optimizer().state()) {
    state += static_cast<std::int64_t>(tensor.nbytes());
  }
  EXPECT_EQ(*work.update_bytes, 3 * bytes + 2 * state);
  EXPECT_EQ(work.update_tensors, std::ssize(job.training().trainer().model().parameters));
  // Forward and gradients of the weights of a network of linear layers, and of inputs, the first layer's aside.
  const double of_weights = 2.0 * 32 * static_cast<double>(weights);
  EXPECT_GE(*work.flops, 2 * of_weights);
  EXPECT_LE(*work.flops, 3 * of_weights);
}

TEST(TrainingJobFigures, FilesAreReadTwiceAndWhatLiesInMemoryIsNot) {
  const TinyDataset in_memory{400};
  TrainingJob plain{in_memory.recipe(), detect_machine()};
  EXPECT_FALSE(plain.read_times());
  const TinyImages images{{.classes = 4, .count = 6}};
  TrainingJob job{photo_recipe(images), detect_machine()};
  const std::optional<ReadTimes> times = job.read_times();
  ASSERT_TRUE(times);
  EXPECT_GT(times->first_s, 0);
  EXPECT_GT(times->again_s, 0);
  job.run(2);
  const std::optional<LoadingTotals> totals = job.loading_totals();
  ASSERT_TRUE(totals);
  EXPECT_GE(totals->batches, 2);
  EXPECT_GT(totals->decode_s, 0);
}

TEST(TrainingJobFigures, MeasuringGivesAVerdictOverResourcesWithTheShareOfThePeak) {
  const TinyDataset data{400};
  TrainingJob job{data.recipe(), detect_machine()};
  const Measured measured = measure(job, detect_machine(), {.steps = 8, .compute_threads = 1, .blocks_s_max = 0});
  ASSERT_TRUE(measured.diagnosis.resources);
  const ResourceVerdict& verdict = *measured.diagnosis.resources;
  EXPECT_FALSE(verdict.sentence.empty());
  ASSERT_TRUE(verdict.peak_share);
  EXPECT_GT(*verdict.peak_share, 0);
  ASSERT_TRUE(verdict.shares);
  EXPECT_NEAR(verdict.shares->data + verdict.shares->copy + verdict.shares->memory + verdict.shares->synchronisation +
                  verdict.shares->compute,
              1, 1e-9);
  EXPECT_TRUE(std::filesystem::exists(peaks_file()));
}

}  // namespace
}  // namespace headrace
