#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/checkpoint_writer.h>
#include <headrace/error.h>
#include <sys/stat.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>

#include "core/base/error_of.h"
#include "core/base/files.h"
#include "core/base/temporary_folder.h"
#include "core/memory/accounts.h"
#include "torch/tensor/safetensors.h"
#include "torch/train/equal_tensors.h"
#include "torch/train/tiny_training.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;
using tiny::averaging;
using tiny::of_tiny;
using tiny::train;

std::string file_of(std::int64_t steps) {
  return fmt::format("checkpoint-{:09}.safetensors", steps);
}

std::string content_of(const fs::path& path) {
  return read_file(path, 10'000'000);
}

TEST(CheckpointWriter, ItsFilesAreThoseOfSavingWithoutItBitForBit) {
  const TemporaryFolder temporary;
  tiny::Training other, training(averaging(0.9));
  training.trainer->set_memory_format(MemoryFormat::channels_last);
  train(training, 2);
  const fs::path wanted = temporary.path() / "wanted";
  save_checkpoint(wanted, *training.trainer, of_tiny(), 2);
  save_best_checkpoint(wanted, *training.trainer, of_tiny(), 0.5);
  for (const bool beside : {false, true}) {
    const fs::path folder = temporary.path() / (beside ? "beside" : "waited_for");
    CheckpointWriter writer(beside);
    writer.save(temporary.path() / "other", *other.trainer, of_tiny(), 2);  // Tensors of another number.
    writer.save(folder, *training.trainer, of_tiny(), 2);
    EXPECT_TRUE(writer.save_best(folder, *training.trainer, of_tiny(), 0.5));
    writer.finish();
    EXPECT_EQ(writer.written(), 3);
    for (const std::string& name : {file_of(2), std::string(kBestCheckpoint)}) {
      EXPECT_TRUE(content_of(folder / name) == content_of(wanted / name)) << folder / name;
    }
  }
}

TEST(CheckpointWriter, WritesTheStateThatWasSavedWhileTrainingGoesOn) {
  const TemporaryFolder temporary;
  tiny::Training training(averaging(0.9));
  CheckpointWriter writer(/*beside=*/true);
  writer.save(temporary.path() / "earlier", *training.trainer, of_tiny(), 1);  // Its copy is used again.
  train(training, 3);
  const fs::path wanted = save_checkpoint(temporary.path() / "wanted", *training.trainer, of_tiny(), 1);

  const fs::path pipe = temporary.path() / wanted.filename();  // Nobody can write to it before somebody reads.
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  // Read once training has gone on; or, where save() itself waits for it, after a minute.
  std::promise<void> gone_on;
  std::future<std::string> read = std::async(std::launch::async, [&pipe, told = gone_on.get_future()] {
    told.wait_for(std::chrono::minutes(1));
    return content_of(pipe);
  });
  writer.save(temporary.path(), *training.trainer, of_tiny(), 1);
  train(training, 2);
  writer.check();
  EXPECT_TRUE(writer.is_writing());
  EXPECT_EQ(writer.written(), 1);
  gone_on.set_value();
  EXPECT_TRUE(read.get() == content_of(wanted));
  writer.finish();
  EXPECT_FALSE(writer.is_writing());
  EXPECT_EQ(writer.written(), 2);
}

void wait_for(const CheckpointWriter& writer) {
  while (writer.is_writing()) std::this_thread::yield();
}

TEST(CheckpointWriter, ThrowsWhatAWriteThrewAtTheNextCallAndLeavesOlderCheckpoints) {
  const TemporaryFolder temporary;
  const fs::path& folder = temporary.path();
  tiny::Training training;
  CheckpointWriter writer(/*beside=*/true);
  const auto save = [&] { writer.save(folder, *training.trainer, of_tiny(), 1); };
  train(training, 1);
  save();
  writer.finish();
  const std::string first = content_of(folder / file_of(1));

  train(training, 1);
  const fs::path blocked = folder / file_of(2);
  fs::create_directory(blocked);  // In the file's place.
  save();
  EXPECT_THAT(error_of(ErrorCode::io, [&] { writer.finish(); }), HasSubstr(file_of(2)));
  writer.finish();  // Thrown once.
  save();
  wait_for(writer);
  EXPECT_THAT(error_of(ErrorCode::io, [&] { writer.check(); }), HasSubstr(file_of(2)));
  writer.check();
  EXPECT_EQ(writer.written(), 1);
  EXPECT_TRUE(content_of(folder / file_of(1)) == first);
}

TEST(CheckpointWriter, AFailedWriteDoesNotPreventTheNextOne) {
  const TemporaryFolder temporary;
  const fs::path& folder = temporary.path();
  const fs::path blocked = folder / file_of(0);
  tiny::Training training;
  CheckpointWriter writer(/*beside=*/true);
  const auto save = [&] { writer.save(folder, *training.trainer, of_tiny(), 1); };
  fs::create_directory(blocked);  // In the file's place.
  save();
  EXPECT_THAT(error_of(ErrorCode::io, [&] { writer.save_best(folder, *training.trainer, of_tiny(), 0.5); }),
              HasSubstr(file_of(0)));
  writer.finish();
  EXPECT_EQ(writer.written(), 1);
  EXPECT_TRUE(fs::exists(folder / kBestCheckpoint));

  save();
  wait_for(writer);
  fs::remove(blocked);
  EXPECT_THAT(error_of(ErrorCode::io, save), HasSubstr(file_of(0)));
  writer.finish();
  EXPECT_EQ(writer.written(), 2);
  EXPECT_EQ(load_checkpoint(blocked, *training.trainer, "tiny", false).progress.optimizer_steps, 0);
}

TEST(CheckpointWriter, NamesTheFolderThatCannotBeMade) {
  const TemporaryFolder temporary;
  const fs::path folder = temporary.path() / "file";
  write_file(folder, "no folder");
  tiny::Training training;
  CheckpointWriter writer(/*beside=*/true);
  writer.save(folder, *training.trainer, of_tiny(), 1);
  EXPECT_THAT(error_of(ErrorCode::io, [&] { writer.finish(); }), HasSubstr("cannot make " + folder.string()));
}

TEST(CheckpointWriter, RefusesAtOnceToKeepNoneAndToSaveWithinAWindow) {
  const TemporaryFolder temporary;
  TrainOptions options;
  options.gradient_accumulation_steps = 2;
  tiny::Training training(options);
  CheckpointWriter writer(/*beside=*/true);
  const auto save = [&](std::int64_t keep) { writer.save(temporary.path(), *training.trainer, of_tiny(), keep); };
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { save(0); }), HasSubstr("keep"));
  train(training, 1);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { save(1); }), HasSubstr("window"));
  EXPECT_TRUE(fs::is_empty(temporary.path()));
}

TEST(CheckpointWriter, KeepsTheNewestAndTheBestAlone) {
  const TemporaryFolder temporary;
  const fs::path& folder = temporary.path();
  tiny::Training training;
  {
    CheckpointWriter writer(/*beside=*/true);
    const auto is_best = [&](double accuracy) {
      return writer.save_best(folder, *training.trainer, of_tiny(), accuracy);
    };
    for (int i = 1; i <= 4; ++i) {
      train(training, 1);
      writer.save(folder, *training.trainer, of_tiny(), 2);
      // The one before it counts, though nobody waited for that.
      EXPECT_EQ(is_best(i == 2 ? 0.75 : 0.5), i <= 2) << i;
    }
    train(training, 1);
    writer.save(folder, *training.trainer, of_tiny(), 2);
  }  // Waits for the last.
  for (int i = 1; i <= 5; ++i) EXPECT_EQ(fs::exists(folder / file_of(i)), i > 3) << i;
  EXPECT_EQ(load_checkpoint(folder / file_of(5), *training.trainer, "tiny", false).progress.optimizer_steps, 5);
  EXPECT_EQ(load_checkpoint(folder / kBestCheckpoint, *training.trainer, "tiny", false).progress.optimizer_steps, 2);
}

TEST(CheckpointWriter, ItsCopyHasAnAccount) {
  const TemporaryFolder temporary;
  tiny::Training training;
  const auto generator = static_cast<std::int64_t>(at::detail::getDefaultCPUGenerator().get_state().nbytes());
  const std::int64_t bytes = bytes_of(training.tensors()) + generator;
  CheckpointWriter writer(/*beside=*/true);
  for (int i = 0; i < 2; ++i) writer.save(temporary.path(), *training.trainer, of_tiny(), 1);
  writer.finish();
  EXPECT_THAT(account_bytes(),
              Contains(AllOf(Field(&AccountBytes::name, "checkpoint copy"), Field(&AccountBytes::bytes, bytes))));
}

}  // namespace
}  // namespace headrace
