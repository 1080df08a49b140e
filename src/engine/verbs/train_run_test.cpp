#include "engine/verbs/train_run.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/plateau.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/base/temporary_folder.h"
#include "engine/assembly/tiny_dataset.h"

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
               parse_history(info.run.history, info.run.evaluation_due, /*tests_were_val=*/false, info.path));
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
