#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "app/knobs/knob.h"
#include "engine/assembly/process_settings.h"
#include "engine/assembly/tiny_dataset.h"
#include "engine/assembly/training_job.h"
#include "torch/tensor/compute.h"

namespace headrace {
namespace {

constexpr const char* kKey = "compute.flush_denormal";

Applied apply_flush_denormal(bool on) {
  Recipe recipe;
  recipe.compute.flush_denormal = on;
  const auto settings = all_process_settings();
  return std::find_if(settings.begin(), settings.end(), [](const ProcessSetting& one) { return one.key == kKey; })
      ->apply(recipe);
}

class FlushDenormal : public testing::Test {
 protected:
  void TearDown() override {
    apply_flush_denormal(false);
    apply_compute_threads(threads_);
  }

 private:
  const std::int64_t threads_ = compute_threads();
};

// Of so many products that each thread makes half of them.
std::int64_t denormal_products() {
  return at::full({1 << 18}, 1e-20F).mul(1e-20F).ne(0).sum().item<std::int64_t>();
}

TEST_F(FlushDenormal, IsOfEveryComputeThreadAndUndone) {
  apply_compute_threads(2);
  denormal_products();  // The second thread is there now, with the mode of before.
  for (const bool on : {true, false, true, false}) {
    const Applied applied = apply_flush_denormal(on);
    EXPECT_EQ(applied.key, kKey);
    EXPECT_EQ(applied.requested, on ? "true" : "false");
    ASSERT_EQ(applied.applied, applied.requested) << applied.reason;
    EXPECT_EQ(denormal_products(), on ? 0 : 1 << 18);
  }
}

TEST_F(FlushDenormal, IsAppliedByARecipeAndSwitchedLiveWithTheBatchesBytesAsTheyWere) {
  const TinyDataset data{400};
  Recipe recipe = data.recipe();
  TrainingJob job{recipe, detect_machine()};
  const auto pixels = [&] {
    Epoch epoch = job.training().loader().epoch(0);
    const Batch batch = *epoch.next();
    const auto bytes = batch.field("image").bytes;
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  const std::vector<std::byte> plain = pixels();
  EXPECT_EQ(denormal_products(), 1 << 18);
  job.configure({{kKey, "true"}});
  EXPECT_EQ(denormal_products(), 0);
  for (const char* workers : {"0", "2"}) {  // These threads begin with the mode of this one.
    job.configure({{kKey, "true"}, {"data.num_workers", workers}});
    EXPECT_EQ(pixels(), plain);
  }
  const auto& applied = job.training().applied();
  EXPECT_TRUE(std::any_of(applied.begin(), applied.end(),
                          [](const Applied& entry) { return entry.key == kKey && entry.applied == "true"; }));
  job.configure({});
  EXPECT_EQ(denormal_products(), 1 << 18);
  recipe.compute.flush_denormal = true;
  const Training training{recipe, detect_machine()};
  EXPECT_EQ(denormal_products(), 0);
}

TEST_F(FlushDenormal, IsOfferedByBothDoorsUntilItIsInForce) {
  Machine machine;
  machine.cores_usable = 2;
  KnobContext context = context_of(Recipe{}, machine, {});
  for (const Door door : {Door::recipe, Door::python}) {
    context.door = door;
    for (const bool in_force : {false, true}) {
      context.recipe.compute.flush_denormal = in_force;
      const Offer offered = offer(context, "data");
      const auto found = std::count_if(offered.candidates.begin(), offered.candidates.end(), [](const Candidate& one) {
        return one.key == kKey && one.numerics == NumericClass::rounding;
      });
      EXPECT_EQ(found, in_force ? 0 : 1);
    }
  }
}

}  // namespace
}  // namespace headrace
