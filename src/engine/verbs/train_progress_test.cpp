#include "engine/verbs/train_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/time_split.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
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

// A console keeps a reference to it.
const Invocation& quiet() {
  static const Invocation kQuiet = [] {
    Invocation invocation;
    invocation.quiet = true;
    return invocation;
  }();
  return kQuiet;
}

// An epoch of 13 batches under a progress; what is taken at its end.
std::optional<TraceRecord> steps_of(const Recipe& recipe) {
  Console console{quiet()};
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

// A training that shows nothing in a terminal, and what it tells in the file `log`.
struct Watched {
  Watched(const Recipe& recipe, const std::filesystem::path& log) : training{recipe, detect_machine()} {
    console.log_to(log);
    progress.emplace(console, training);
  }

  // An epoch of 13 batches, and its end.
  void train(const std::function<void(std::int64_t)>& after_batch = [](std::int64_t) {}) {
    Epoch epoch = training.loader().epoch(0, 0);
    run_steps(training.trainer(), epoch, epoch.batches(), [&](const StepDone& done) {
      progress->step(done);
      after_batch(done.progress.batch);
    });
    progress->end_run();
  }

  Console console{quiet()};
  Training training;
  std::optional<TrainProgress> progress;
};

// What was told as events of this name: a text of each.
std::vector<std::string> told_as(const std::string& event, const std::filesystem::path& events,
                                 const std::function<std::string(const nlohmann::json&)>& text) {
  std::vector<std::string> told;
  for (const nlohmann::json& line : lines_of(events)) {
    if (line["event"] == event) told.push_back(text(line));
  }
  return told;
}

TEST(TrainProgress, ASignalWritesTheStepsBeforeItIntoTheFolderOfFlights) {
  const TinyDataset data{400};
  const TemporaryFolder folder;
  Recipe recipe = data.recipe();
  recipe.report.flights = (folder.path() / "flights").native();
  recipe.report.events = (folder.path() / "events.jsonl").native();
  Watched run{recipe, folder.path() / "log.txt"};
  run.train([](std::int64_t batch) {
    if (batch == 5) std::raise(SIGUSR2);
  });
  ASSERT_EQ(run.progress->watched().flights.size(), 1U);
  const FlightRecorder::Status::Dump& flight = run.progress->watched().flights[0];
  EXPECT_EQ(flight.reason, "signal");
  std::set<std::string> spans;
  for (const TraceRecord::Name& name : read_chrome_trace(flight.path).names) spans.insert(name.text);
  EXPECT_THAT(spans, IsSupersetOf({"step", "forward", "optimizer"}));
  EXPECT_THAT(read_file(folder.path() / "log.txt", 100'000), HasSubstr("flight recorder: signal: " + flight.path));
  EXPECT_EQ(told_of(recipe.report.events, "report.flights").at(0)["fields"]["applied"], recipe.report.flights);
  EXPECT_THAT(told_as("flight", recipe.report.events, [](const auto& line) { return line["fields"]["path"]; }),
              testing::ElementsAre(flight.path));
  const std::optional<TraceRecord> steps = run.progress->take_steps();
  ASSERT_TRUE(steps);
  EXPECT_EQ(split_time(*steps).steps, 13);
  for (const TraceEvent& event : steps->events) EXPECT_EQ(steps->names[event.name].category, "step");
}

TEST(TrainProgress, AnErrorThatEndsTheRunIsAFlightThatRecordedIt) {
  const TinyDataset data{400};
  const TemporaryFolder folder;
  Recipe recipe = data.recipe();
  recipe.report.flights = (folder.path() / "flights").native();
  const auto train_badly = [&] {
    Watched(recipe, folder.path() / "log.txt").train([](std::int64_t batch) {
      if (batch == 5) throw std::runtime_error("planted");
    });
  };
  EXPECT_THROW(train_badly(), std::runtime_error);
  const std::filesystem::path flight = folder.path() / "flights" / "flight-00-exception.json";
  ASSERT_TRUE(std::filesystem::exists(flight));
  EXPECT_FALSE(read_chrome_trace(flight.string()).events.empty());
}

TEST(TrainProgress, AFolderOfFlightsThatCannotBeMadeIsAWarningAndTheRunGoesOn) {
  const TinyDataset data{400};
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "file") << "";
  Recipe recipe = two_epochs(data);
  recipe.report.flights = (folder.path() / "file" / "flights").native();
  const Invocation invocation{};
  Console console{invocation};
  console.log_to(folder.path() / "log.txt");
  EXPECT_EQ(train(recipe, folder.path(), console).epochs.size(), 2U);
  EXPECT_THAT(read_file(folder.path() / "log.txt", 100'000),
              HasSubstr("headrace: warning: report.flights: requested " + recipe.report.flights + ", applied off: "));
}

TEST(TrainProgress, AnAlertOfTheRecipeIsAWarningAnEventAndKnownAtTheEnd) {
  const TinyDataset data{400};
  const TemporaryFolder folder;
  Recipe recipe = data.recipe();
  recipe.report.alerts.memory_mib_max = 1;  // Which every process is above, from the first reading on.
  recipe.report.alerts.hit_rate_min = 0.5;  // Of a job without a cache.
  recipe.report.events = (folder.path() / "events.jsonl").native();
  Watched run{recipe, folder.path() / "log.txt"};
  run.train();
  const WatchedRun& watched = run.progress->watched();
  EXPECT_TRUE(watched.any_raised);
  ASSERT_EQ(watched.alerts.size(), 1U);
  EXPECT_THAT(watched.alerts[0].sentence, HasSubstr("memory: process.resident_bytes is "));
  const std::string log = read_file(folder.path() / "log.txt", 100'000);
  EXPECT_THAT(log, HasSubstr("headrace: warning: " + watched.alerts[0].sentence));
  EXPECT_THAT(log, HasSubstr("report.alerts.hit_rate_min: requested 0.5, applied unavailable: data.cache is none"));
  EXPECT_THAT(told_as("alert", recipe.report.events, [](const auto& line) { return line["sentence"]; }),
              testing::ElementsAre(watched.alerts[0].sentence));
  EXPECT_EQ(told_of(recipe.report.events, "report.alerts.memory_mib_max").at(0)["level"], "info");
}

TEST(TrainProgress, AlertsAloneNeedNoSink) {
  const TinyDataset data{400};
  const TemporaryFolder folder;
  Recipe recipe = data.recipe();
  recipe.report.alerts.memory_mib_max = 1;
  Watched run{recipe, folder.path() / "log.txt"};
  run.train();
  EXPECT_TRUE(run.progress->watched().any_raised);
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
