#include "engine/verbs/train_run.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/plateau.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/base/temporary_folder.h"
#include "core/exec/stop.h"
#include "engine/assembly/state.h"
#include "engine/assembly/tiny_dataset.h"
#include "torch/tensor/safetensors.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Switches nothing, and notes of each unit whether it was tainted.
class NotedRun final : public OnlineRun {
 public:
  using OnlineRun::OnlineRun;

  void taint(const std::string& /*why*/) override { is_tainted_ = true; }

  std::vector<bool> tainted;
  std::function<void(const Progress&)> on_unit;

 private:
  void after_step(const StepDone& done) override {
    tainted.push_back(std::exchange(is_tainted_, false));
    if (on_unit) on_unit(done.progress);
  }

  bool is_tainted_ = false;
};

// Two epochs of 13 batches, without val.
class TrainToEnd : public ::testing::Test {
 protected:
  TrainToEnd() {
    Recipe recipe = data_.recipe();
    recipe.train.epochs = 2;
    training_ = std::make_unique<Training>(recipe, detect_machine());
    run_ = std::make_unique<NotedRun>(*training_, detect_machine());
  }

  TrainRun train() { return train_to_end(*training_, folder_, console_, {}, run_.get()); }

  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
  const fs::path first_ = folder_ / "checkpoint-000000013.safetensors";  // At the end of the first epoch.
  const TinyDataset data_{400};
  const Invocation invocation_{};
  Console console_{invocation_};
  std::unique_ptr<Training> training_;
  std::unique_ptr<NotedRun> run_;
};

TEST_F(TrainToEnd, EveryUnitBesideWhichACheckpointIsWrittenIsTainted) {
  ASSERT_EQ(::mkfifo(first_.c_str(), 0600), 0);  // Nobody can write to it before somebody reads.
  std::future<std::size_t> bytes;
  run_->on_unit = [&](const Progress& progress) {
    if (progress.epoch == 0 || progress.batch < 13) return;
    bytes = std::async(std::launch::async, [this] {
      std::ifstream pipe(first_, std::ios::binary);
      fs::remove(first_);  // While its writer still writes: the next write looks at all checkpoints of the folder.
      return std::string(std::istreambuf_iterator<char>(pipe), {}).size();
    });
  };
  EXPECT_EQ(train().checkpoints, 3);  // The first, that of the second epoch, and that with the result.
  EXPECT_GT(bytes.get(), 64U << 10) << "more than a pipe holds";
  std::vector<bool> wanted(13, false);
  wanted.resize(26, true);
  EXPECT_EQ(run_->tainted, wanted);
}

TEST_F(TrainToEnd, AnotherErrorDoesNotHideThatTheLastCheckpointWasNotWritten) {
  const fs::path log = folder_ / "log.txt";
  console_.log_to(log);
  fs::create_directory(first_);  // In the file's place.
  run_->on_unit = [](const Progress& progress) {
    if (progress.epoch == 1) fail(ErrorCode::numerics, "test: a step of the second epoch");
  };
  EXPECT_THAT(error_of(ErrorCode::numerics, [this] { train(); }), HasSubstr("a step of the second epoch"));
  const std::string said = read_file(log, 100'000);
  EXPECT_THAT(said, HasSubstr("the last checkpoint was not written: "));
  EXPECT_THAT(said, HasSubstr(first_.filename().string() + ": "));
}

TEST(TrainToEndOnAPlateau, TellsItsScheduleOnceAnEpochAlsoWhereItGoesOn) {
  const TinyDataset data{400};
  Recipe recipe = data.recipe();
  recipe.data.val_fraction = 0.25;
  recipe.train.epochs = 3;
  recipe.train.keep_checkpoints = 10;
  recipe.lr_scheduler.name = LrSchedulerName::ReduceLROnPlateau;
  recipe.lr_scheduler.patience = 0;
  recipe.lr_scheduler.threshold = 1;  // A loss would have to be below 0 to be better.
  const Invocation invocation{};
  Console console{invocation};
  const TemporaryFolder whole_folder, resumed_folder;

  Training whole{recipe, detect_machine()};
  train_to_end(whole, whole_folder.path(), console);
  EXPECT_EQ(whole.trainer().progress().plateau.reductions, 3);
  EXPECT_NEAR(whole.trainer().learning_rate(), recipe.optimizer.lr * 1e-3, 1e-15);

  // Killed during the evaluation of the first epoch, of which that checkpoint is the beginning.
  Training resumed{recipe, detect_machine()};
  const std::string name = fmt::format("checkpoint-{:09}.safetensors", whole.batches_per_epoch());
  const CheckpointInfo info =
      load_checkpoint(whole_folder.path() / name, resumed.trainer(), recipe.model.name, /*weights_only=*/false);
  EXPECT_TRUE(info.run.evaluation_due);
  EXPECT_EQ(resumed.trainer().progress().plateau, PlateauState{});
  train_to_end(resumed, resumed_folder.path(), console,
               {parse_history(info.run.history, info.run.evaluation_due, /*tests_were_val=*/false, info.path), {}});
  EXPECT_EQ(resumed.trainer().progress().plateau, whole.trainer().progress().plateau);
}

TEST(TrainToEndOnAPlateau, GoesByTheAccuracyWhereMoreIsBetter) {
  const TinyDataset data{400};
  Recipe recipe = data.recipe();
  recipe.data.val_fraction = 0.25;
  recipe.train.epochs = 2;
  recipe.lr_scheduler.name = LrSchedulerName::ReduceLROnPlateau;
  recipe.lr_scheduler.mode = SchedulerMode::max;
  const Invocation invocation{};
  Console console{invocation};
  const TemporaryFolder folder;
  Training training{recipe, detect_machine()};
  const TrainRun run = train_to_end(training, folder.path(), console);
  ASSERT_EQ(run.epochs.size(), 2U);
  ASSERT_TRUE(run.epochs[0].val && run.epochs[1].val);
  const double best = std::max(run.epochs[0].val->accuracy, run.epochs[1].val->accuracy);
  EXPECT_NEAR(training.trainer().progress().plateau.best.value_or(-1), best, best * recipe.lr_scheduler.threshold);
}

// Five epochs of a network with batch norms, the mean from the third on, and what they leave.
class TrainToEndWithMean : public ::testing::Test {
 protected:
  TrainToEndWithMean() {
    recipe_.model.name = "small_cnn";
    recipe_.data.val_fraction = 0.25;
    recipe_.train.epochs = 5;
    recipe_.train.swa_start = 3;
    recipe_.train.swa_lr = 0.01;
    recipe_.train.keep_checkpoints = 10;
  }

  TrainRun train(Training& training, const fs::path& folder, ResumedRun resumed = {}) {
    return train_to_end(training, folder, console_, std::move(resumed));
  }
  // The weights and what else the newest checkpoint before the end of epoch `epoch`'s evaluation holds.
  CheckpointInfo load(const fs::path& folder, std::int64_t epoch, Training& into) {
    const std::string name = fmt::format("checkpoint-{:09}.safetensors", epoch * into.batches_per_epoch());
    return load_checkpoint(folder / name, into.trainer(), recipe_.model.name, /*weights_only=*/false);
  }
  static ResumedRun resumed(const CheckpointInfo& info) {
    return {parse_history(info.run.history, info.run.evaluation_due, /*tests_were_val=*/false, info.path),
            info.run.tensors};
  }
  static std::string result_in(const fs::path& folder) { return read_file(folder / "model.safetensors", 100'000'000); }

  const TinyDataset data_{120};
  Recipe recipe_ = data_.recipe();
  const Invocation invocation_{};
  Console console_{invocation_};
};

TEST_F(TrainToEndWithMean, IsOfTheWeightsAfterEachOfTheLastEpochsAndLeavesTheTrainerAlone) {
  const TemporaryFolder folder, plain_folder;
  Training training{recipe_, detect_machine()};
  const TrainRun run = train(training, folder.path());
  ASSERT_TRUE(run.result && run.result->val && run.result->test);
  EXPECT_EQ(run.result->swa_epochs, 3);
  EXPECT_EQ(run.result->epoch, 5);
  EXPECT_EQ(choice_text(*run.result),
            fmt::format("The mean of the weights after epochs 3 to 5 is the result, as train.swa_start asks, val "
                        "accuracy {:.4f}.",
                        run.result->val->accuracy));
  const NamedTensors result = read_safetensors(folder.path() / "model.safetensors").tensors;
  Training read{recipe_, detect_machine()};
  std::map<std::string, at::Tensor> sums;
  for (const std::int64_t epoch : {3, 4, 5}) {
    const fs::path path = folder.path() / fmt::format("checkpoint-{:09}.safetensors", epoch * read.batches_per_epoch());
    for (const auto& [name, tensor] : read_safetensors(path).tensors) {
      if (!name.starts_with("model/")) continue;
      at::Tensor& sum = sums[name.substr(6)];
      sum = sum.defined() ? sum.add(tensor) : tensor.clone();
    }
  }
  for (const auto& [name, tensor] : result) {
    if (name.ends_with("weight") || name.ends_with("bias")) {
      EXPECT_LT(sums[name].div(3).sub(tensor).abs().max().item<double>(), 1e-6) << name;
    }
    if (name.ends_with("num_batches_tracked")) {
      EXPECT_EQ(tensor.item<std::int64_t>(), read.batches_per_epoch()) << "one pass";
    }
  }

  // Without a mean the same is trained: rates are the schedule's until epoch 3, and SWA's behind it.
  recipe_.train.swa_start = 0;
  recipe_.train.swa_lr = 0;
  Training plain{recipe_, detect_machine()};
  train(plain, plain_folder.path());
  const auto third = [&](const fs::path& of) {
    Training at_third{recipe_, detect_machine()};
    const std::string name = fmt::format("checkpoint-{:09}.safetensors", 3 * at_third.batches_per_epoch());
    load_checkpoint(of / name, at_third.trainer(), recipe_.model.name, /*weights_only=*/true);
    return copies_of(weights_of(at_third.trainer().model()));
  };
  const NamedTensors of_plain = third(plain_folder.path()), of_mean = third(folder.path());
  for (std::size_t i = 0; i < of_plain.size(); ++i) {
    EXPECT_TRUE(same_bits(of_plain[i].second, of_mean[i].second)) << of_plain[i].first;
  }
}

TEST_F(TrainToEndWithMean, GoesOnToTheSameBitsFromAnyEpoch) {
  const TemporaryFolder whole;
  Training undisturbed{recipe_, detect_machine()};
  const TrainRun wanted = train(undisturbed, whole.path());
  for (const std::int64_t epoch : {2, 3, 4}) {
    const TemporaryFolder folder;
    fs::copy_file(whole.path() / kBestCheckpoint, folder.path() / kBestCheckpoint);
    Training training{recipe_, detect_machine()};
    const CheckpointInfo info = load(whole.path(), epoch, training);
    EXPECT_EQ(info.run.tensors.empty(), epoch <= 3) << "the mean begins behind the evaluation of epoch 3";
    const TrainRun run = train(training, folder.path(), resumed(info));
    EXPECT_EQ(result_in(folder.path()), result_in(whole.path())) << epoch;
    EXPECT_EQ(run.result->val->loss, wanted.result->val->loss);
    EXPECT_EQ(run.result->test->accuracy, wanted.result->test->accuracy);
  }
  // The last checkpoint has the result and the statistics: nothing is read again.
  const std::string before = result_in(whole.path());
  Training training{recipe_, detect_machine()};
  const CheckpointInfo info = load(whole.path(), 5, training);
  EXPECT_EQ(info.run.tensors.size(), weights_of(training.trainer().model()).size());
  const TrainRun again = train(training, whole.path(), resumed(info));
  EXPECT_EQ(again.checkpoints, 0);
  EXPECT_EQ(result_in(whole.path()), before);
}

TEST_F(TrainToEndWithMean, OfAnEarlierEpochThanIsAskedForIsGivenUp) {
  const TemporaryFolder folder, later;
  Training first{recipe_, detect_machine()};
  train(first, folder.path());
  recipe_.train.swa_start = 5;
  Training training{recipe_, detect_machine()};
  const CheckpointInfo info = load(folder.path(), 4, training);
  fs::copy_file(folder.path() / kBestCheckpoint, later.path() / kBestCheckpoint);
  EXPECT_EQ(train(training, later.path(), resumed(info)).result->swa_epochs, 1);
}

TEST_F(TrainToEndWithMean, AStopBeforeTheStatisticsAreRenewedLeavesNoResult) {
  const TemporaryFolder folder, resumed_folder;
  Training training{recipe_, detect_machine()};
  train(training, folder.path());
  Training stopped{recipe_, detect_machine()};
  ResumedRun behind = resumed(load(folder.path(), 5, stopped));
  behind.history.result.reset();
  std::erase_if(behind.tensors, [](const auto& entry) {  // Without buffers, as before the pass.
    return entry.first.find("running_") != std::string::npos || entry.first.ends_with("num_batches_tracked");
  });
  request_stop(SIGTERM);
  const TrainRun run = train(stopped, resumed_folder.path(), std::move(behind));
  request_stop(0);
  EXPECT_EQ(run.stopped_by, SIGTERM);
  EXPECT_FALSE(run.result);
  EXPECT_FALSE(fs::exists(resumed_folder.path() / "model.safetensors"));
}

TEST(RequireVal, IsAskedForByWhateverGoesByIt) {
  const TinyDataset data{400};
  Recipe recipe = data.recipe();
  const auto said = [&recipe] {
    const Training training{recipe, detect_machine()};
    return error_of(ErrorCode::invalid_argument, [&] { require_val(training); });
  };
  recipe.lr_scheduler.name = LrSchedulerName::ReduceLROnPlateau;
  EXPECT_EQ(said(),
            "train: lr_scheduler.name is \"ReduceLROnPlateau\" and the data has no split val to judge by; wanted "
            "data.val_fraction above 0, which holds one out of train, or another schedule");
  recipe.train.early_stopping_patience = 3;
  EXPECT_EQ(said(),
            "train: train.early_stopping_patience is 3 and the data has no split val to judge by; wanted "
            "data.val_fraction above 0, which holds one out of train, or a patience of 0");
  recipe.data.val_fraction = 0.25;
  EXPECT_NO_THROW(require_val(Training(recipe, detect_machine())));
  recipe = data.recipe();
  EXPECT_NO_THROW(require_val(Training(recipe, detect_machine())));
}

}  // namespace
}  // namespace headrace
