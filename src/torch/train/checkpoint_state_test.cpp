// A checkpoint in memory, and what a run says of its rate behind SWA's first epoch when it begins.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/checkpoint.h>

#include <string>
#include <utility>

#include "core/base/error_of.h"
#include "core/base/temporary_folder.h"
#include "torch/tensor/compute.h"
#include "torch/train/checkpoint.h"
#include "torch/train/equal_tensors.h"
#include "torch/train/tiny_training.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using tiny::averaging;
using tiny::of_tiny;
using tiny::train;

SafetensorsFile copied(const SafetensorsFile& state) {
  return {clones(state.tensors), state.metadata};
}

class CheckpointState : public testing::Test {
 protected:
  CheckpointState() { apply_compute_threads(1); }
};

TEST_F(CheckpointState, GoesOnToTheBitsOfTheFileOfThatMoment) {
  const TemporaryFolder folder;
  tiny::Training saved(averaging(0.9));
  train(saved, 3);
  RunState run = of_tiny();
  run.history = R"({"epochs": []})";
  run.tensors = {{"0/sum", at::full({3}, 0.1)}};
  const SafetensorsFile state = copied(checkpoint_state(*saved.trainer, run));
  write_checkpoint(folder.path() / "c.safetensors", *saved.trainer, run);
  train(saved, 2);

  tiny::Training of_file(averaging(0.9), {}, /*seed=*/8), of_state(averaging(0.9), {}, /*seed=*/9);
  load_checkpoint(folder.path() / "c.safetensors", *of_file.trainer, "tiny");
  train(of_file, 2);
  const at::Tensor generator = at::detail::getDefaultCPUGenerator().get_state();
  const CheckpointInfo info = load_checkpoint_state("memory", copied(state), *of_state.trainer, "tiny");
  EXPECT_EQ(info.run.history, run.history);
  ASSERT_EQ(info.run.tensors.size(), 1U);
  EXPECT_TRUE(info.run.tensors[0].second.equal(run.tensors[0].second));
  EXPECT_EQ(of_state.trainer->progress().optimizer_steps, 3);
  train(of_state, 2);
  expect_equal(of_state.tensors(), of_file.tensors());
  expect_equal(of_state.tensors(), saved.tensors());
  EXPECT_TRUE(at::detail::getDefaultCPUGenerator().get_state().equal(generator));
}

TEST_F(CheckpointState, SharesTensorsAndALoadKeepsNoneOfThem) {
  TrainOptions options;
  options.step_guard.policy = GuardPolicy::rollback;
  options.step_guard.keep_every = 1;
  tiny::Training saved(options);
  train(saved, 2);
  const SafetensorsFile shared = checkpoint_state(*saved.trainer, of_tiny());
  EXPECT_EQ(shared.tensors[0].first, "model/conv.weight");
  EXPECT_EQ(shared.tensors[0].second.data_ptr(), saved.network->state().parameters[0].second.data_ptr());
  const SafetensorsFile state = copied(shared), before = copied(shared);
  tiny::Training loaded(options, {}, /*seed=*/9);
  load_checkpoint_state("memory", state, *loaded.trainer, "tiny");
  ASSERT_FALSE(loaded.trainer->last_good_state().empty());
  train(loaded, 2);
  expect_equal(state.tensors, before.tensors);
}

TEST_F(CheckpointState, IsRefusedAsAFileIsAndChangesNothing) {
  tiny::Training training;
  train(training, 1);
  const SafetensorsFile state = copied(checkpoint_state(*training.trainer, of_tiny()));
  const Named before = clones(training.tensors());
  const auto refusal = [&](ErrorCode code, const SafetensorsFile& given, const char* model = "tiny") {
    const std::string told = error_of(code, [&] { load_checkpoint_state("memory", given, *training.trainer, model); });
    expect_equal(training.tensors(), before);
    return told;
  };
  SafetensorsFile changed = copied(state);
  changed.metadata["version"] = "99";
  EXPECT_THAT(refusal(ErrorCode::unsupported, changed), HasSubstr("memory: checkpoint version 99, this build reads"));
  changed.metadata.erase("format");
  EXPECT_THAT(refusal(ErrorCode::corrupt_data, changed), HasSubstr("the header has no \"format\""));
  changed = copied(state);
  changed.tensors.erase(changed.tensors.begin());
  EXPECT_THAT(refusal(ErrorCode::invalid_argument, changed), HasSubstr("memory: has no model/conv.weight"));
  EXPECT_THAT(refusal(ErrorCode::invalid_argument, state, "other"),
              HasSubstr("a checkpoint of model tiny, wanted other"));
  EXPECT_EQ(load_checkpoint_state("memory", state, *training.trainer, "tiny").progress.optimizer_steps, 1);
}

TEST(SwaLr, IsWhatTheRunSaysWhenItBegins) {
  apply_compute_threads(1);
  OptimizerOptions optimizer;
  optimizer.lr = 0.25;
  tiny::Training training({}, optimizer, /*seed=*/1, LrSchedulerOptions{});
  training.trainer->set_run_length(/*optimizer_steps_total=*/4, /*epochs=*/4);
  TrainOptions swa;
  swa.swa_start = 1;
  swa.swa_lr = 0.5;
  swa.swa_anneal_epochs = 0;
  training.trainer->set_swa_lr(swa);
  EXPECT_EQ(training.trainer->learning_rate(), 0.25);
  train(training, 1);
  EXPECT_EQ(training.trainer->learning_rate(), 0.5);
  training.trainer->set_swa_lr(TrainOptions{});
  EXPECT_EQ(training.trainer->learning_rate(), 0.25);
}

}  // namespace
}  // namespace headrace
