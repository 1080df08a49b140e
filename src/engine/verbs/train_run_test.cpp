#include "engine/verbs/train_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <sys/stat.h>

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

}  // namespace
}  // namespace headrace
