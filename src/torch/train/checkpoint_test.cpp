#include "torch/train/checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <sys/resource.h>

#include <csignal>
#include <limits>
#include <map>
#include <optional>

#include "core/base/files.h"
#include "core/base/temporary_folder.h"
#include "torch/tensor/compute.h"
#include "torch/tensor/safetensors.h"
#include "torch/train/detail/header_checksum.h"
#include "torch/train/equal_tensors.h"
#include "torch/train/loop.h"
#include "torch/train/tiny_training.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using tiny::averaging;
using tiny::of_tiny;
using tiny::train;

class Checkpoint : public ::testing::Test {
 protected:
  Checkpoint() { apply_compute_threads(1); }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path_)) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  const TemporaryFolder temporary_;
  const fs::path path_ = temporary_.path();
};

template <class Function>
Error refusal(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error;
  }
  return {ErrorCode::internal, "accepted"};
}

void damage(const fs::path& path) {
  std::string bytes = read_file(path, 10'000'000);
  bytes[bytes.size() - 100] = static_cast<char>(bytes[bytes.size() - 100] ^ 4);
  write_file(path, bytes);
}

TEST_F(Checkpoint, ReturnsEveryBitOfTheStateIntoAnyLayout) {
  tiny::Training saved(averaging(0.9));
  Progress& progress = saved.trainer->progress();
  progress.epoch = 2;
  progress.loss_scale = 0.1;  // No short text but the one that comes back.
  progress.scale_good_updates = 1999;
  progress.skipped_updates = 3;
  progress.guard = {.losses = 1, .gradients = 2, .skipped = 3, .lowered_lr = 4, .lr_factor = 0.1};
  progress.plateau = {.best = 0.3, .num_bad_epochs = 2, .cooldown_counter = 1, .reductions = 5};
  train(saved, 5);
  RunState run = of_tiny();
  run.seed = 77;
  run.data = 0xffffffffffffffffU;
  run.batches_per_epoch = 12;
  run.evaluation_due = true;
  run.history = R"({"epochs": ["\u00e4 \"quoted\""]})";
  run.tensors = {{"0/sum", at::full({3}, 0.1)}};
  run.tuning = R"({"turns": [{"why": "pair 3, \u00e4"}]})";
  const fs::path path = save_checkpoint(path_, *saved.trainer, run, 2);
  EXPECT_EQ(path.filename(), "checkpoint-000000005.safetensors");
  const at::Tensor generator = at::detail::getDefaultCPUGenerator().get_state();

  tiny::Training loaded(averaging(0.9), {}, /*seed=*/9);
  loaded.trainer->set_memory_format(MemoryFormat::channels_last);
  train(loaded, 1);
  const CheckpointInfo info = load_checkpoint(path, *loaded.trainer, "tiny", false);
  EXPECT_EQ(info.path, path);
  EXPECT_EQ(info.run.model, "tiny");
  EXPECT_EQ(info.run.seed, 77);
  EXPECT_EQ(info.run.data, 0xffffffffffffffffU);
  EXPECT_EQ(info.run.batches_per_epoch, 12);
  EXPECT_TRUE(info.run.evaluation_due);
  EXPECT_EQ(info.run.history, run.history);
  EXPECT_EQ(info.run.tuning, run.tuning);
  ASSERT_EQ(info.run.tensors.size(), 1U);
  EXPECT_EQ(info.run.tensors[0].first, "0/sum");
  EXPECT_TRUE(info.run.tensors[0].second.equal(run.tensors[0].second));
  EXPECT_EQ(info.optimizer, "adamw");
  EXPECT_EQ(info.compute_threads, 1);
  expect_equal(loaded.tensors(), saved.tensors());
  EXPECT_TRUE(at::detail::getDefaultCPUGenerator().get_state().equal(generator));
  EXPECT_EQ(loaded.trainer->progress().epoch, 2);
  EXPECT_EQ(loaded.trainer->progress().batch, 5);
  EXPECT_EQ(loaded.trainer->progress().optimizer_steps, 5);
  EXPECT_EQ(loaded.trainer->progress().loss_scale, 0.1);
  EXPECT_EQ(loaded.trainer->progress().scale_good_updates, 1999);
  EXPECT_EQ(loaded.trainer->progress().skipped_updates, 3);
  EXPECT_EQ(loaded.trainer->progress().guard, progress.guard);
  EXPECT_EQ(loaded.trainer->progress().plateau, progress.plateau);
  EXPECT_EQ(loaded.trainer->take_mean_loss(), saved.trainer->take_mean_loss()) << "of the epoch so far, to the bit";
  EXPECT_EQ(loaded.network->state().parameters[2].second.suggest_memory_format(), at::MemoryFormat::ChannelsLast);
}

TEST_F(Checkpoint, HoldsABestMetricThatIsInfinite) {
  tiny::Training saved, loaded;
  saved.trainer->progress().plateau = {.best = std::numeric_limits<double>::infinity(), .num_bad_epochs = 1};
  const fs::path path = save_checkpoint(path_, *saved.trainer, of_tiny(), 2);
  load_checkpoint(path, *loaded.trainer, "tiny", false);
  EXPECT_EQ(loaded.trainer->progress().plateau, saved.trainer->progress().plateau);
}

TEST_F(Checkpoint, WhoRefusesTheRunsPartKeepsTheTrainerAsItWas) {
  tiny::Training saved, other({}, {}, /*seed=*/9);
  train(saved, 3);
  const fs::path path = save_checkpoint(path_, *saved.trainer, of_tiny(), 2);
  const Named before = clones(other.tensors());
  const at::Tensor generator = at::detail::getDefaultCPUGenerator().get_state();
  const auto refuse = [](const RunState& run) {
    EXPECT_EQ(run.model, "tiny");
    throw Error(ErrorCode::invalid_argument, "another optimizer");
  };
  EXPECT_THROW(load_checkpoint(path, *other.trainer, "tiny", false, refuse), Error);
  expect_equal(other.tensors(), before);
  EXPECT_TRUE(at::detail::getDefaultCPUGenerator().get_state().equal(generator));
  EXPECT_EQ(other.trainer->progress().optimizer_steps, 0);
}

TEST_F(Checkpoint, OfAMomentumThatAScheduleSwitchesOnGoesOnWithTheSameBits) {
  LrSchedulerOptions schedule;
  schedule.name = LrSchedulerName::OneCycleLR;
  for (const OptimizerName name : {OptimizerName::sgd, OptimizerName::rmsprop}) {
    const OptimizerOptions optimizer{.name = name, .momentum = 0};
    tiny::Training whole({}, optimizer, 1, schedule), resumed({}, optimizer, 9, schedule);
    train(whole, 3);
    const fs::path path = save_checkpoint(path_, *whole.trainer, of_tiny(), 2);
    // As a door that makes its optimizer anew, of what the user wrote.
    resumed.trainer->optimizer() = Optimizer(resumed.trainer->model().parameters, optimizer);
    load_checkpoint(path, *resumed.trainer, "tiny", /*weights_only=*/false);
    for (const tiny::Training* training : {&whole, &resumed}) {
      at::manual_seed(77);
      train(*training, 3);
      EXPECT_GT(training->trainer->optimizer().options().momentum, 0.8);
    }
    expect_equal(resumed.tensors(), whole.tensors());
  }
}

TEST_F(Checkpoint, OfAnExternalOptimizerHasItsNameAndLoadsIntoNoOther) {
  tiny::Training saved, other;
  saved.trainer->external_optimizer = {"mine.Optimizer", [](const auto&) {}, [] { return [] {}; }};
  train(saved, 1);
  const fs::path path = save_checkpoint(path_, *saved.trainer, of_tiny(), 2);
  const std::string found =
      refusal([&] { load_checkpoint(path, *other.trainer, "tiny", /*weights_only=*/false); }).what();
  EXPECT_THAT(found, HasSubstr("mine.Optimizer"));
  EXPECT_EQ(load_checkpoint(path, *saved.trainer, "tiny", false).optimizer, "mine.Optimizer");
}

TEST_F(Checkpoint, OfARunThatDoesNotTuneItselfSaysNothingOfTuning) {
  tiny::Training saved, loaded;
  const fs::path path = save_checkpoint(path_, *saved.trainer, of_tiny(), 1);
  EXPECT_FALSE(read_safetensors_metadata(path).contains("tuning"));
  EXPECT_EQ(load_checkpoint(path, *loaded.trainer, "tiny", false).run.tuning, "");
}

// Trains 3 epochs of 5 batches, at most `count` steps, from where the trainer stands; the end like run_steps.
LoopEnd run_epochs(Trainer& trainer, std::int64_t count) {
  Loader loader(std::make_shared<tiny::Images>(38), tiny::batches_of(8), 1, true);
  LoopEnd end = LoopEnd::epoch;
  while (trainer.progress().epoch < 3 && end == LoopEnd::epoch) {
    Epoch epoch = loader.epoch(trainer.progress().epoch, trainer.progress().batch);
    end = run_steps(trainer, epoch, count, {});
  }
  return end;
}

TEST_F(Checkpoint, AResumedRunEndsWithTheBitsOfTheUninterruptedOne) {
  for (const OptimizerName name : {OptimizerName::adamw, OptimizerName::sgd}) {
    TrainOptions options;
    options.gradient_accumulation_steps = 2;
    if (name == OptimizerName::adamw) options.loss_scale = 1024;
    if (name == OptimizerName::sgd) options.ema_decay = 0.99;
    OptimizerOptions optimizer;
    optimizer.name = name;
    tiny::Training whole(options, optimizer);
    EXPECT_EQ(run_epochs(*whole.trainer, 100), LoopEnd::epoch);
    const std::optional<double> loss = whole.trainer->mean_loss();
    const at::Tensor generator = at::detail::getDefaultCPUGenerator().get_state();
    for (const std::int64_t stop_after : {2, 4, 5}) {  // Twice in mid-epoch, once at the end of the first.
      const fs::path folder = path_ / fmt::format("{}-{}", static_cast<int>(name), stop_after);
      {
        tiny::Training interrupted(options, optimizer);
        Loader loader(std::make_shared<tiny::Images>(38), tiny::batches_of(8), 1, true);
        Epoch epoch = loader.epoch(0);
        run_steps(*interrupted.trainer, epoch, stop_after);
        save_checkpoint(folder, *interrupted.trainer, of_tiny(), 2);
      }
      tiny::Training resumed(options, optimizer, /*seed=*/1234);
      std::vector<std::string> warnings;
      ASSERT_TRUE(load_newest_checkpoint(folder, *resumed.trainer, "tiny", false, warnings).has_value());
      EXPECT_TRUE(warnings.empty());
      EXPECT_EQ(run_epochs(*resumed.trainer, 100), LoopEnd::epoch);
      expect_equal(resumed.tensors(), whole.tensors());
      EXPECT_TRUE(at::detail::getDefaultCPUGenerator().get_state().equal(generator));
      EXPECT_EQ(resumed.trainer->take_mean_loss(), loss);
    }
  }
}

TEST_F(Checkpoint, TakesTheOlderOneAndNamesTheCorruptNewest) {
  tiny::Training training;
  train(training, 1);
  save_checkpoint(path_, *training.trainer, of_tiny(), 5);
  const Named wanted = clones(training.tensors());
  train(training, 1);
  damage(save_checkpoint(path_, *training.trainer, of_tiny(), 5));
  train(training, 1);
  fs::resize_file(save_checkpoint(path_, *training.trainer, of_tiny(), 5), 3000);

  std::vector<std::string> warnings;
  const auto info = load_newest_checkpoint(path_, *training.trainer, "tiny", false, warnings);
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->progress.optimizer_steps, 1);
  expect_equal(training.tensors(), wanted);
  ASSERT_EQ(warnings.size(), 2);
  EXPECT_THAT(warnings[0], HasSubstr("checkpoint-000000003.safetensors was left out"));
  EXPECT_THAT(warnings[1], HasSubstr("checkpoint-000000002.safetensors was left out"));
  EXPECT_THAT(warnings[1], HasSubstr("checksum"));
}

TEST_F(Checkpoint, DoesNotStartOverWhenNoneLoads) {
  tiny::Training training;
  std::vector<std::string> warnings;
  EXPECT_EQ(load_newest_checkpoint(path_, *training.trainer, "tiny", false, warnings), std::nullopt);
  EXPECT_EQ(load_newest_checkpoint(path_ / "none", *training.trainer, "tiny", false, warnings), std::nullopt);
  damage(save_checkpoint(path_, *training.trainer, of_tiny(), 2));
  const Named before = clones(training.tensors());
  EXPECT_EQ(refusal([&] { load_newest_checkpoint(path_, *training.trainer, "tiny", false, warnings); }).code(),
            ErrorCode::corrupt_data);
  EXPECT_EQ(warnings.size(), 1);
  expect_equal(training.tensors(), before);
}

TEST_F(Checkpoint, OfAnotherModelIsRefusedByBothNames) {
  tiny::Training training;
  save_checkpoint(path_, *training.trainer, of_tiny(), 2);
  std::vector<std::string> warnings;
  const Error error = refusal([&] { load_newest_checkpoint(path_, *training.trainer, "small_cnn", false, warnings); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(), HasSubstr("model tiny, wanted small_cnn"));
  EXPECT_THAT(error.what(), HasSubstr("checkpoint-000000000"));
}

TEST_F(Checkpoint, WithOtherTensorsIsRefusedByTheirNameAndChangesNothing) {
  tiny::Training training;
  train(training, 2);
  const fs::path path = save_checkpoint(path_, *training.trainer, of_tiny(), 2);
  const Named before = clones(training.tensors());
  const SafetensorsFile whole = read_safetensors(path);
  const auto refused = [&](const Named& tensors, const std::map<std::string, std::string>& changes) {
    std::map<std::string, std::string> metadata = whole.metadata;
    for (const auto& [key, text] : changes) metadata[key] = text;
    metadata["header_xxh3"] = header_checksum(metadata, tensors);
    write_safetensors(path_ / "changed", tensors, metadata);
    const Error error = refusal([&] { load_checkpoint(path_ / "changed", *training.trainer, "tiny", false); });
    expect_equal(training.tensors(), before);
    return error;
  };
  const auto replaced = [&](const std::string& name, const at::Tensor& tensor) {
    Named tensors;
    for (const auto& entry : whole.tensors) {
      if (entry.first != name) tensors.push_back(entry);
    }
    if (tensor.defined()) tensors.emplace_back(name, tensor);
    return tensors;
  };
  EXPECT_THAT(refused(replaced("model/last.bias", {}), {}).what(), HasSubstr("has no model/last.bias"));
  EXPECT_THAT(refused(replaced("model/surplus", at::zeros({1})), {}).what(), HasSubstr("holds model/surplus"));
  EXPECT_THAT(refused(replaced("model/last.bias", at::zeros({5})), {}).what(),
              HasSubstr("model/last.bias is Float [5], the model wants Float [4]"));
  EXPECT_THAT(refused(replaced("model/last.bias", at::zeros({4}, at::kDouble)), {}).what(), HasSubstr("Double"));
  EXPECT_THAT(refused(replaced("optimizer/last.bias/step", {}), {}).what(), HasSubstr("optimizer/last.bias/step"));
  EXPECT_EQ(refused(replaced("generator/cpu", {}), {}).code(), ErrorCode::corrupt_data);
  EXPECT_EQ(refused(replaced("generator/cpu", at::zeros({3}, at::kByte)), {}).code(), ErrorCode::corrupt_data);
  EXPECT_EQ(refused(whole.tensors, {{"version", "3"}}).code(), ErrorCode::unsupported);
  EXPECT_THAT(refused(whole.tensors, {{"version", "1"}}).what(), HasSubstr("checkpoint version 1, this build reads 2"));
  EXPECT_THAT(refused(whole.tensors, {{"optimizer", "sgd"}}).what(), HasSubstr("of optimizer sgd, wanted adamw"));
  EXPECT_EQ(refused(whole.tensors, {{"format", "pt"}}).code(), ErrorCode::corrupt_data);
  EXPECT_EQ(refused(whole.tensors, {{"epoch", "-1"}}).code(), ErrorCode::corrupt_data);
  EXPECT_EQ(refused(whole.tensors, {{"batch", "99999999999999999999"}}).code(), ErrorCode::corrupt_data);
  EXPECT_EQ(refused(whole.tensors, {{"loss_sum", "nan"}}).code(), ErrorCode::corrupt_data);
  EXPECT_EQ(refused(whole.tensors, {{"evaluation_due", "maybe"}}).code(), ErrorCode::corrupt_data);
}

// An earlier version had optimizer state of frozen parameters, too; so has a run whose parameter is frozen later.
TEST_F(Checkpoint, OptimizerStateOfWhatIsFrozenNowIsLeftOut) {
  tiny::Training training;
  train(training, 2);
  const fs::path path = save_checkpoint(path_, *training.trainer, of_tiny(), 2);
  tiny::Training frozen;
  ModelState& model = frozen.trainer->model();
  Named trained = model.parameters;
  std::erase_if(trained, [](const auto& entry) { return entry.first == "conv.weight"; });
  EXPECT_THAT(refusal([&] {
                frozen.trainer->optimizer() = Optimizer(trained, {});
                load_checkpoint(path, *frozen.trainer, "tiny", false);
              }).what(),
              HasSubstr("holds optimizer/conv.weight/"));
  model.parameters[0].second.requires_grad_(false);
  load_checkpoint(path, *frozen.trainer, "tiny", false);
  expect_equal(frozen.weights(), training.weights());
  Named state = training.trainer->optimizer().state();
  std::erase_if(state, [](const auto& entry) { return entry.first.starts_with("conv.weight/"); });
  expect_equal(frozen.trainer->optimizer().state(), state);
}

TEST_F(Checkpoint, OfVersion1IsRefusedByItsNumber) {
  tiny::Training training;
  const SafetensorsFile whole = read_safetensors(save_checkpoint(path_, *training.trainer, of_tiny(), 2));
  std::map<std::string, std::string> texts = whole.metadata;
  for (const char* later : {"header_xxh3", "history", "evaluation_due", "data"}) texts.erase(later);
  texts["version"] = "1";
  write_safetensors(path_ / "checkpoint-000000009.safetensors", whole.tensors, texts);
  std::vector<std::string> warnings;
  const Error error = refusal([&] { load_newest_checkpoint(path_, *training.trainer, "tiny", false, warnings); });
  EXPECT_EQ(error.code(), ErrorCode::unsupported);
  EXPECT_THAT(error.what(), HasSubstr("checkpoint version 1, this build reads 2"));
}

TEST_F(Checkpoint, AFlippedBitAnywhereInTheHeaderIsFound) {
  tiny::Training training;
  train(training, 3);
  const fs::path path = save_checkpoint(path_, *training.trainer, of_tiny(), 2);
  const std::string whole = read_file(path, 10'000'000);
  const Named before = clones(training.tensors());
  const std::size_t header = 8 + static_cast<unsigned char>(whole[0]) + 256UL * static_cast<unsigned char>(whole[1]);
  ASSERT_GT(header, 1000U);
  for (std::size_t i = 0; i < header; ++i) {
    std::string bytes = whole;
    bytes[i] = static_cast<char>(bytes[i] ^ (1 << (i % 8)));
    write_file(path_ / "flipped", bytes);
    const Error error = refusal([&] { load_checkpoint(path_ / "flipped", *training.trainer, "tiny", false); });
    ASSERT_EQ(error.code(), ErrorCode::corrupt_data) << "byte " << i << ": " << error.what();
  }
  expect_equal(training.tensors(), before);
}

TEST_F(Checkpoint, TheBestStaysUntilItIsBeatenAndIsNotCountedAmongTheNewest) {
  tiny::Training training;
  train(training, 1);
  EXPECT_TRUE(save_best_checkpoint(path_, *training.trainer, of_tiny(), 0.5));
  const Named best = clones(training.tensors());
  for (const double accuracy : {0.25, 0.5, 0.499999999999}) {
    train(training, 1);
    save_checkpoint(path_, *training.trainer, of_tiny(), 1);
    EXPECT_FALSE(save_best_checkpoint(path_, *training.trainer, of_tiny(), accuracy));
  }
  EXPECT_THAT(names(), ::testing::ElementsAre("checkpoint-000000004.safetensors", "checkpoint-best.safetensors"));
  load_checkpoint(path_ / "checkpoint-best.safetensors", *training.trainer, "tiny", false);
  expect_equal(training.tensors(), best);
  train(training, 1);
  EXPECT_TRUE(save_best_checkpoint(path_, *training.trainer, of_tiny(), 0.500000000001));
  EXPECT_EQ(
      load_checkpoint(path_ / "checkpoint-best.safetensors", *training.trainer, "tiny", false).progress.optimizer_steps,
      2);
  fs::resize_file(path_ / "checkpoint-best.safetensors", 300);
  EXPECT_TRUE(save_best_checkpoint(path_, *training.trainer, of_tiny(), 0.1)) << "one that is not whole beats nothing";
}

TEST_F(Checkpoint, ABestOfAnEarlierVersionCountsByItsValAccuracy) {
  tiny::Training training;
  const fs::path path = path_ / kBestCheckpoint;
  save_best_checkpoint(path_, *training.trainer, of_tiny(), 0.5);
  const SafetensorsFile best = read_safetensors(path);
  std::map<std::string, std::string> texts = best.metadata;
  texts.erase("score");
  texts["val_accuracy"] = "0.5";
  texts["header_xxh3"] = header_checksum(texts, best.tensors);
  write_safetensors(path, best.tensors, texts);
  const std::string earlier = read_file(path, 10'000'000);

  train(training, 1);
  EXPECT_FALSE(save_best_checkpoint(path_, *training.trainer, of_tiny(), 0.5));
  EXPECT_TRUE(read_file(path, 10'000'000) == earlier);
  EXPECT_TRUE(save_best_checkpoint(path_, *training.trainer, of_tiny(), 0.75));
  EXPECT_EQ(read_safetensors_metadata(path).at("score"), "0.75");
  EXPECT_EQ(load_checkpoint(path, *training.trainer, "tiny", false).progress.optimizer_steps, 1);
}

TEST_F(Checkpoint, TheNewestStepIsTheLargestThatAReadableOneSaysOfItself) {
  tiny::Training training;
  EXPECT_EQ(newest_step(path_), std::nullopt);
  EXPECT_EQ(newest_step(path_ / "none"), std::nullopt);
  const auto save = [&] {
    train(training, 1);
    return save_checkpoint(path_, *training.trainer, of_tiny(), 5);
  };
  const fs::path first = save();
  save();
  EXPECT_EQ(newest_step(path_), 2);
  train(training, 1);
  save_best_checkpoint(path_, *training.trainer, of_tiny(), 0.5);
  EXPECT_EQ(newest_step(path_), 3);
  fs::resize_file(save(), 300);
  fs::copy_file(first, path_ / "checkpoint-000000009.safetensors");
  write_file(path_ / "checkpoint-000000010.safetensors", "no tensors");
  write_safetensors(path_ / "checkpoint-000000011.safetensors", training.tensors(), {{"format", "pt"}});
  EXPECT_EQ(newest_step(path_), 3);
}

TEST_F(Checkpoint, TheBestIsTheLastResort) {
  tiny::Training training;
  train(training, 1);
  save_best_checkpoint(path_, *training.trainer, of_tiny(), 0.5);
  const Named best = clones(training.tensors());
  train(training, 1);
  damage(save_checkpoint(path_, *training.trainer, of_tiny(), 2));
  std::vector<std::string> warnings;
  const auto info = load_newest_checkpoint(path_, *training.trainer, "tiny", false, warnings);
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->path.filename(), "checkpoint-best.safetensors");
  EXPECT_EQ(warnings.size(), 1U);
  expect_equal(training.tensors(), best);
}

TEST_F(Checkpoint, IsToldFromOtherTensorFiles) {
  tiny::Training training;
  EXPECT_TRUE(is_checkpoint(save_checkpoint(path_, *training.trainer, of_tiny(), 2)));
  write_safetensors(path_ / "weights", training.tensors(), {{"format", "pt"}});
  EXPECT_FALSE(is_checkpoint(path_ / "weights"));
  write_file(path_ / "text", "no tensors");
  EXPECT_EQ(refusal([&] { is_checkpoint(path_ / "text"); }).code(), ErrorCode::corrupt_data);
}

TEST_F(Checkpoint, KeepsTheNewestWholeOnes) {
  tiny::Training training;
  for (int i = 0; i < 4; ++i) {
    train(training, 1);
    const fs::path path = save_checkpoint(path_, *training.trainer, of_tiny(), 2);
    if (i == 2) fs::resize_file(path, 500);
  }
  EXPECT_THAT(names(), ::testing::ElementsAre("checkpoint-000000002.safetensors", "checkpoint-000000003.safetensors",
                                              "checkpoint-000000004.safetensors"));
  tiny::Training other;  // A second run in the same folder, at a lower step: what it wrote must stay.
  train(other, 1);
  save_checkpoint(path_, *other.trainer, of_tiny(), 1);
  EXPECT_THAT(names(), ::testing::Contains("checkpoint-000000001.safetensors"));
}

TEST_F(Checkpoint, IsNotWrittenWithinAWindow) {
  TrainOptions options;
  options.gradient_accumulation_steps = 2;
  tiny::Training training(options);
  train(training, 3);
  EXPECT_EQ(refusal([&] { save_checkpoint(path_, *training.trainer, of_tiny(), 2); }).code(),
            ErrorCode::invalid_argument);
  EXPECT_TRUE(names().empty());
}

TEST_F(Checkpoint, LoadsWeightsAloneWhenAskedTo) {
  tiny::Training saved;
  train(saved, 3);
  const fs::path path = save_checkpoint(path_, *saved.trainer, of_tiny(), 2);
  tiny::Training loaded;
  train(loaded, 1);
  const Named optimizer = clones(loaded.trainer->optimizer().state());
  const at::Tensor generator = at::detail::getDefaultCPUGenerator().get_state();
  EXPECT_FALSE(load_checkpoint(path, *loaded.trainer, "tiny", /*weights_only=*/true).averages);
  expect_equal(loaded.weights(), saved.weights());
  expect_equal(loaded.trainer->optimizer().state(), optimizer);
  EXPECT_EQ(loaded.trainer->progress().optimizer_steps, 1);
  EXPECT_TRUE(at::detail::getDefaultCPUGenerator().get_state().equal(generator));
}

TEST_F(Checkpoint, HoldsWeightsAndAveragesAndALoadOfWeightsAloneTakesTheAverages) {
  tiny::Training saved(averaging(0.9));
  train(saved, 3);
  const Named trained = saved.weights(), averages = saved.trainer->averages();
  for (std::size_t i = 0; i < trained.size(); ++i) {
    EXPECT_FALSE(trained[i].second.equal(averages[i].second)) << trained[i].first;
  }
  const fs::path path = save_checkpoint(path_, *saved.trainer, of_tiny(), 2);
  const SafetensorsFile file = read_safetensors(path);
  const std::map<std::string, at::Tensor> held(file.tensors.begin(), file.tensors.end());
  for (const auto& [name, tensor] : trained) EXPECT_TRUE(held.at("model/" + name).equal(tensor)) << name;
  for (const auto& [name, tensor] : averages) EXPECT_TRUE(held.at("ema/" + name).equal(tensor)) << name;

  for (const double decay : {0.0, 0.5}) {
    tiny::Training loaded(averaging(decay), {}, /*seed=*/9);
    const Named own = clones(loaded.trainer->averages());
    EXPECT_TRUE(load_checkpoint(path, *loaded.trainer, "tiny", /*weights_only=*/true).averages);
    expect_equal(loaded.weights(), averages);
    expect_equal(loaded.trainer->averages(), own);
  }

  Named incomplete = file.tensors;
  std::erase_if(incomplete, [](const auto& tensor) { return tensor.first == "ema/last.bias"; });
  std::map<std::string, std::string> texts = file.metadata;
  texts["header_xxh3"] = header_checksum(texts, incomplete);
  write_safetensors(path_ / "incomplete", incomplete, texts);
  EXPECT_THAT(refusal([&] { load_checkpoint(path_ / "incomplete", *saved.trainer, "tiny", true); }).what(),
              HasSubstr("has no ema/last.bias"));
}

TEST_F(Checkpoint, AveragesInOnlyOneOfFileAndTrainerAreRefused) {
  const auto refused = [this](double saved_decay, double decay) {
    tiny::Training saved(averaging(saved_decay)), other(averaging(decay), {}, /*seed=*/9);
    train(saved, 1);
    const fs::path path = save_checkpoint(path_, *saved.trainer, of_tiny(), 2);
    const Named before = clones(other.tensors());
    const Error error = refusal([&] { load_checkpoint(path, *other.trainer, "tiny", /*weights_only=*/false); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    expect_equal(other.tensors(), before);
    return error;
  };
  EXPECT_THAT(refused(0.5, 0).what(), HasSubstr("with averages of the weights, wanted one without them, as "
                                                "train.ema_decay is 0"));
  EXPECT_THAT(refused(0, 0.5).what(), HasSubstr("without averages of the weights, wanted one with them, as "
                                                "train.ema_decay is 0.5"));
}

// Files of this process may grow to `bytes` and no further, as on a disk that is full.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : signal_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, signal_);
  }

 private:
  rlimit before_{};
  void (*signal_)(int);
};

TEST_F(Checkpoint, OnAFullDiskLeavesTheOlderOneAndNothingElse) {
  tiny::Training training;
  train(training, 1);
  save_checkpoint(path_, *training.trainer, of_tiny(), 1);
  const Named wanted = clones(training.tensors());
  train(training, 1);
  std::optional<Error> error;
  {
    FullDisk full(4096);
    error = refusal([&] { save_checkpoint(path_, *training.trainer, of_tiny(), 1); });
  }
  EXPECT_EQ(error->code(), ErrorCode::io) << error->what();
  EXPECT_THAT(error->what(), HasSubstr("checkpoint-000000002"));
  EXPECT_THAT(names(), ::testing::ElementsAre("checkpoint-000000001.safetensors"));
  std::vector<std::string> warnings;
  ASSERT_TRUE(load_newest_checkpoint(path_, *training.trainer, "tiny", false, warnings).has_value());
  expect_equal(training.tensors(), wanted);
}

}  // namespace
}  // namespace headrace
