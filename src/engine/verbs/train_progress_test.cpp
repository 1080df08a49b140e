#include "engine/verbs/train_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/time_split.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/files.h"
#include "core/base/temporary_folder.h"
#include "core/hardware/machine.h"
#include "engine/assembly/run_settings.h"
#include "engine/assembly/tiny_dataset.h"
#include "engine/verbs/data_report.h"
#include "engine/verbs/train_run.h"
#include "torch/train/loop.h"

namespace headrace {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Key;
using testing::Not;

std::vector<nlohmann::json> lines_of(const std::filesystem::path& path) {
  std::vector<nlohmann::json> result;
  std::ifstream lines(path);
  for (std::string line; std::getline(lines, line);) result.push_back(nlohmann::json::parse(line));
  return result;
}

// Two epochs of 13 batches whose figures go where `recipe` says.
TrainRun train(const Recipe& recipe, const std::filesystem::path& folder, Console& console) {
  Training training{recipe, detect_machine()};
  return train_to_end(training, folder, console);
}

Recipe two_epochs(const TinyDataset& data) {
  Recipe recipe = data.recipe();
  recipe.train.epochs = 2;
  return recipe;
}

TraceRecord record_of(const std::vector<std::pair<std::string, std::pair<std::int64_t, std::int64_t>>>& spans) {
  TraceRecord record;
  record.threads = {"main"};
  for (const auto& [name, times] : spans) {
    record.events.push_back(
        {static_cast<std::uint32_t>(record.names.size()), 0, times.first, times.second, /*value=*/0});
    record.names.push_back({name, "step"});
  }
  record.duration_ns = 10'000'000;
  return record;
}

TEST(SplitFigures, AreSecondsAStepAndWhatNoPartCovers) {
  const auto figures = split_figures(
      record_of({{"step", {0, 1'000'000}}, {"data_wait", {0, 250'000}}, {"forward", {250'000, 750'000}}}));
  EXPECT_DOUBLE_EQ(figures.at("time.data_wait_s"), 0.25e-3);
  EXPECT_DOUBLE_EQ(figures.at("time.forward_s"), 0.5e-3);
  EXPECT_DOUBLE_EQ(figures.at("time.backward_s"), 0);
  EXPECT_DOUBLE_EQ(figures.at("time.other_s"), 0.25e-3);
}

TEST(SplitFigures, ThereAreNoneWithoutAWholeStepOrWhereEventsWereLost) {
  EXPECT_TRUE(split_figures({}).empty());
  EXPECT_TRUE(split_figures(record_of({{"forward", {0, 100}}})).empty());
  TraceRecord lost = record_of({{"step", {0, 1'000'000}}});
  lost.dropped = 1;
  EXPECT_TRUE(split_figures(lost).empty());
}

TEST(LoaderFigures, AreOfTheBatchesSinceTheLastLook) {
  LoaderStatistics before, now;
  before.batches = 10;
  before.ready_batches = 10;
  now.batches = 14;
  now.ready_batches = 20;
  now.cache_hits = 3;
  now.cache_misses = 1;
  const auto figures = loader_figures(before, now);
  EXPECT_DOUBLE_EQ(figures.at("loader.queue_depth"), 2.5);
  EXPECT_DOUBLE_EQ(figures.at("cache.hit_rate"), 0.75);
  EXPECT_DOUBLE_EQ(figures.at("cache.lookups"), 4);
}

TEST(LoaderFigures, WhatNothingHappenedForIsLeftOutAndANewLoaderBeginsAnew) {
  LoaderStatistics before;
  before.batches = 10;
  before.ready_batches = 30;
  EXPECT_TRUE(loader_figures(before, before).empty());
  LoaderStatistics other;
  other.batches = 2;
  other.ready_batches = 2;
  EXPECT_DOUBLE_EQ(loader_figures(before, other).at("loader.queue_depth"), 1);
}

TEST(TrainProgress, FiguresAndAppliedSettingsReachTheFilesOfTheRecipe) {
  const TinyDataset data{400};
  const TemporaryFolder folder;
  Recipe recipe = two_epochs(data);
  recipe.data.val_fraction = 0.25;
  recipe.report.json_lines = (folder.path() / "metrics.jsonl").native();
  recipe.report.events = (folder.path() / "events.jsonl").native();
  Invocation invocation;
  invocation.quiet = true;  // Sinks work all the same.
  Console console{invocation};
  const TrainRun run = train(recipe, folder.path(), console);

  std::set<std::string> metrics;
  std::map<std::string, std::vector<double>> values;
  for (const nlohmann::json& line : lines_of(recipe.report.json_lines)) {
    metrics.insert(line["metric"]);
    if (line["value"].is_number()) values[line["metric"]].push_back(line["value"]);
  }
  EXPECT_THAT(metrics, IsSupersetOf({"train.loss", "samples_per_s", "train.epoch_loss", "val.accuracy", "train.lr"}));
  ASSERT_EQ(values["train.epoch_loss"].size(), 2U);
  EXPECT_EQ(values["train.epoch_loss"][0], run.epochs[0].loss);
  EXPECT_EQ(values["train.epoch_loss"][1], run.epochs[1].loss);

  std::map<std::string, nlohmann::json> settings;
  for (const nlohmann::json& line : lines_of(recipe.report.events)) {
    if (line["event"] == "setting") settings[line["fields"]["key"]] = line["fields"];
  }
  EXPECT_EQ(settings.at("monitor.json_lines")["applied"], recipe.report.json_lines);
  Training again{recipe, detect_machine()};
  ASSERT_FALSE(again.applied().empty());
  for (const Applied& applied : again.applied()) {
    ASSERT_THAT(settings, Contains(Key(applied.key)));
    EXPECT_EQ(settings.at(applied.key)["requested"], applied.requested);
  }
}

// What an events file has of a setting.
std::vector<nlohmann::json> told_of(const std::filesystem::path& events, const std::string& key) {
  std::vector<nlohmann::json> told;
  for (const nlohmann::json& line : lines_of(events)) {
    if (line["event"] == "setting" && line["fields"]["key"] == key) told.push_back(line);
  }
  return told;
}

// Of a network with two blocks, which are chosen after the first step.
Recipe with_budget(const TinyDataset& data, double mib) {
  Recipe recipe = data.recipe();
  recipe.model.name = "vit";
  recipe.model.vit = {.patch_size = 4, .num_layers = 2, .num_heads = 2, .hidden_dim = 8, .mlp_dim = 16};
  recipe.model.activation_checkpointing = ActivationCheckpointing::blocks;
  recipe.model.checkpoint_budget_mib = mib;
  return recipe;
}

TEST(TrainProgress, WhatTheTrainingDecidesIsToldOnceAndNotBeforeItIsDecided) {
  const TinyDataset data{400};
  for (const auto& [budget_mib, level] : {std::pair{1024.0, "info"}, std::pair{0.001, "warning"}}) {
    const TemporaryFolder folder;
    Recipe recipe = with_budget(data, budget_mib);
    recipe.report.events = (folder.path() / "events.jsonl").native();
    const auto told = [&] { return told_of(recipe.report.events, "model.checkpoint_budget_mib"); };
    Invocation invocation;
    invocation.quiet = true;
    Console console{invocation};
    console.log_to(folder.path() / "log.txt");
    Training training{recipe, detect_machine()};
    tell_remarks(console, RunSettings{recipe.compute}, training);
    TrainProgress progress{console, training};
    progress.end_run();  // All that was told is in the file.
    EXPECT_TRUE(told().empty());
    EXPECT_EQ(told_of(recipe.report.events, "model.activation_checkpointing").size(), 1U);
    EXPECT_THAT(read_file(folder.path() / "log.txt", 100'000), Not(HasSubstr("checkpoint_budget_mib")));

    for (int index = 0; index < 2; ++index) {
      progress.begin_epoch();  // Whose first step reads the figures.
      Epoch epoch = training.loader().epoch(index, 0);
      run_steps(training.trainer(), epoch, epoch.batches(), [&](const StepDone& done) { progress.step(done); });
    }
    progress.end_run();
    ASSERT_EQ(told().size(), 1U);
    EXPECT_EQ(told()[0]["level"], level);
    EXPECT_NE(told()[0]["fields"]["applied"], "none");
  }
}

// An epoch of 13 batches under a progress; what is taken at its end.
std::optional<TraceRecord> steps_of(const Recipe& recipe) {
  Invocation invocation;
  invocation.quiet = true;
  Console console{invocation};
  Training training{recipe, detect_machine()};
  TrainProgress progress{console, training};
  Epoch epoch = training.loader().epoch(0, 0);
  run_steps(training.trainer(), epoch, epoch.batches(), [&](const StepDone& done) { progress.step(done); });
  std::optional<TraceRecord> steps = progress.take_steps();
  EXPECT_FALSE(progress.take_steps());
  return steps;
}

TEST(TrainProgress, StepsThatWereWatchedAreTakenAtTheEndAndOthersAreNone) {
  const TinyDataset data{400};
  const TemporaryFolder folder;
  Recipe recipe = two_epochs(data);
  EXPECT_FALSE(steps_of(recipe));
  recipe.report.csv = (folder.path() / "metrics.csv").native();
  const std::optional<TraceRecord> steps = steps_of(recipe);
  ASSERT_TRUE(steps);
  const TimeSplit split = split_time(*steps);
  EXPECT_EQ(split.steps, 13);
  EXPECT_GT(split.forward_s, 0);
}

TEST(TrainProgress, ASinkThatCannotBeOpenedIsAWarningAndTheRunGoesOn) {
  const TinyDataset data{400};
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "file") << "";
  Recipe recipe = two_epochs(data);
  recipe.report.csv = (folder.path() / "file" / "metrics.csv").native();
  const Invocation invocation{};
  Console console{invocation};
  console.log_to(folder.path() / "log.txt");
  EXPECT_EQ(train(recipe, folder.path(), console).epochs.size(), 2U);
  EXPECT_THAT(read_file(folder.path() / "log.txt", 100'000), HasSubstr("headrace: warning: monitor: csv: "));
}

TEST(TrainProgress, AnAddressThatIsNoneEndsTheRunBeforeItsFirstStep) {
  const TinyDataset data{400};
  const TemporaryFolder folder;
  Recipe recipe = two_epochs(data);
  recipe.report.prometheus = "no port";
  const Invocation invocation{};
  Console console{invocation};
  EXPECT_THROW(train(recipe, folder.path(), console), Error);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "checkpoint-000000013.safetensors"));
}

}  // namespace
}  // namespace headrace
