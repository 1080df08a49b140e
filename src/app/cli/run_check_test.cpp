// doctor RUN: each fault of a run is named, and a whole run has none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/live_tuner.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/cli/doctor.h"
#include "app/cli/test_runs.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using testing::HasSubstr;

TEST_F(DoctorsRun, AWholeRunHasNoFindingAndTellsItsFacts) {
  const RunReport report = checked();
  EXPECT_THAT(codes(report.findings), testing::IsEmpty());
  const std::map<std::string, std::string> facts(report.facts.begin(), report.facts.end());
  EXPECT_EQ(facts.at("Verb"), "train");
  EXPECT_EQ(facts.at("Ended"), "whole");
  EXPECT_EQ(facts.at("Epochs"), "2 of 2");
  EXPECT_EQ(facts.at("Val accuracy"), "0.7500");
  EXPECT_EQ(facts.at("Test accuracy"), "0.6250");
  EXPECT_EQ(facts.at("Checkpoint"), "checkpoint-000000007.safetensors");
  EXPECT_EQ(facts.at("Peak memory"), "unavailable");
}

TEST_F(DoctorsRun, ShowsTop5AccuracyAndThatPatienceEndedTheRun) {
  result_["training"]["stopped_early"] = true;
  result_["training"]["epochs"].erase(std::size_t{1});
  result_["training"]["result"]["val_top5_accuracy"] = 0.9375;
  const RunReport report = checked();
  EXPECT_THAT(codes(report.findings), testing::IsEmpty());
  EXPECT_THAT(report.facts, testing::Contains(testing::Pair("Ended", "whole")));
  EXPECT_THAT(report.facts,
              testing::Contains(testing::Pair("Epochs", "1 of 2, ended by train.early_stopping_patience")));
  EXPECT_THAT(report.facts, testing::Contains(testing::Pair("Val accuracy", "0.7500 (top 5: 0.9375)")));
  EXPECT_THAT(report.facts, testing::Contains(testing::Pair("Test accuracy", "0.6250")));
}

TEST_F(DoctorsRun, AnErrorAtTheEndOfTheLogIsTold) {
  write(run_ / "log.txt", "2026-11-21 10:00:00 UTC  headrace: error: train: loss is nan in epoch 1, batch 3\n");
  const RunReport report = checked();
  EXPECT_THAT(codes(report.findings), testing::ElementsAre("failed"));
  EXPECT_EQ(report.findings[0].sentence, "the run ended with an error: train: loss is nan in epoch 1, batch 3");
  std::ofstream(run_ / "log.txt", std::ios::app) << "2026-11-21 10:05:00 UTC  resuming\n";
  EXPECT_THAT(found(), testing::IsEmpty());
}

TEST_F(DoctorsRun, AKilledRunLacksItsResultAndAStoppedOneSaysItsSignal) {
  result_["training"]["stopped_by"] = 15;
  EXPECT_THAT(found(), testing::ElementsAre("stopped"));
  fs::remove(run_ / "result.json");
  result_ = nullptr;
  texts_["history"] = R"({"epochs": [{"epoch": 1, "test_accuracy": 0.5}]})";
  const RunReport report = checked();
  EXPECT_THAT(codes(report.findings), testing::ElementsAre("missing"));
  EXPECT_THAT(report.facts, testing::Contains(testing::Pair("Epochs", "1 of 2")));         // As its checkpoint knows.
  EXPECT_THAT(report.facts, testing::Contains(testing::Pair("Test accuracy", "0.5000")));  // Of an earlier version.
}

TEST_F(DoctorsRun, ARunThatTunesItselfLacksItsLedgerAndMayHaveSwitchedItsThreads) {
  loaded_.recipe.tune.online = true;
  { RunFolder run{invocation_, loaded_}; }
  EXPECT_THAT(found(), testing::ElementsAre("missing", "missing"));
  for (const char* name : {"ledger.json", "tuned.toml"}) {
    const bool is_ledger = name == std::string("ledger.json");
    write(run_ / name, is_ledger ? json_text(LiveLedger{}) : read(run_ / "recipe.toml"));
  }
  EXPECT_THAT(found(), testing::IsEmpty());
  result_["training"]["stopped_by"] = 15;
  texts_["compute_threads"] = "1000";
  EXPECT_THAT(found(), testing::ElementsAre("stopped", "other_threads"));
  texts_["tuning"] = json_text(LiveLedger{});
  EXPECT_THAT(found(), testing::ElementsAre("stopped"));
}

TEST_F(DoctorsRun, WhatCanBeResumedIsToldToBeResumedAndOtherVerbsToBeStartedAgain) {
  result_["training"]["stopped_by"] = 2;
  Json environment = Json::parse(read(run_ / "environment.json"));
  const std::map<std::string, std::string> advice = {{"train", "Go on with train --resume."},
                                                     {"tune", "Start it again; ledger.json holds what was decided."}};
  for (const auto& [verb, sentence] : advice) {
    environment["command"] = {"headrace", verb, "job.toml"};
    write(run_ / "environment.json", json_text(environment));
    const RunReport report = checked();
    ASSERT_THAT(codes(report.findings), testing::Contains("stopped"));
    const auto stopped = std::find_if(report.findings.begin(), report.findings.end(),
                                      [](const Finding& finding) { return finding.code == "stopped"; });
    EXPECT_EQ(stopped->advice, sentence) << verb;
  }
}

TEST_F(DoctorsRun, LossesThatAreNotFiniteAreNamed) {
  result_["training"]["epochs"][1]["val_loss"] = nullptr;
  result_["training"]["result"]["test_loss"] = nullptr;
  const RunReport report = checked();
  EXPECT_THAT(codes(report.findings), testing::ElementsAre("loss_not_finite", "loss_not_finite"));
  EXPECT_EQ(report.findings[0].sentence, "val_loss of epoch 2 is not finite");
  EXPECT_EQ(report.findings[1].sentence, "test_loss of the result is not finite");
}

TEST_F(DoctorsRun, SamplesThatCouldNotBeReadAreNamed) {
  result_["corrupt_samples"] = {{"on_corrupt", "replace"}, {"samples", Json::array()}};
  EXPECT_THAT(found(), testing::IsEmpty());
  for (int i = 0; i < 7; ++i) {
    result_["corrupt_samples"]["samples"].push_back({{"reason", "train/one/" + std::to_string(i) + ".jpg: cut short"}});
  }
  const RunReport report = checked();
  EXPECT_THAT(codes(report.findings), testing::ElementsAre("corrupt_samples"));
  EXPECT_THAT(report.findings[0].sentence, HasSubstr("7 samples could not be read (data.on_corrupt = replace): "));
  EXPECT_THAT(report.findings[0].sentence, HasSubstr("train/one/4.jpg: cut short; and 2 more"));
}

TEST_F(DoctorsRun, SlowEpochsAndSlowStepsAreNamed) {
  Json& epochs = result_["training"]["epochs"];
  epochs.push_back(epochs[0]);
  epochs[2]["samples_per_second"] = 500.0;
  Json profile{{"format", "headrace-profile"}, {"version", 1}};
  profile["time_split"]["step_s"] = std::vector<double>(30, 0.01);
  profile["time_split"]["step_s"][20] = 0.2;
  profile["diagnosis"]["findings"] = {{{"code", "data_loading_slow"}, {"sentence", "s"}, {"advice", "a"}}};
  write(run_ / "profile.json", json_text(profile));
  const RunReport report = checked();
  EXPECT_THAT(codes(report.findings), testing::ElementsAre("slow_steps", "slow_epochs", "data_loading_slow"));
  EXPECT_THAT(report.findings[0].sentence, HasSubstr("1 of 30 steps took more than twice the median of 10.0 ms and "
                                                     "cost 39 % of the time; the longest, step 21, took 200.0 ms"));
  EXPECT_THAT(report.findings[1].sentence,
              HasSubstr("1 of 3 epochs ran below 80 % of the median speed of 1000 samples/s and cost "
                        "25 % of the time; the slowest, epoch 3, ran at 500"));
}

TEST_F(DoctorsRun, MemoryThatGrowsToTheEndIsTheCachesAndMemoryThatFillsUpOnceIsNone) {
  std::vector<double> grows, fills;
  for (int i = 0; i < 256; ++i) {
    grows.push_back(1e6 * i);
    fills.push_back(1e6 * std::min(i, 60));
  }
  result_["memory"] = memory(grows);
  const RunReport report = checked();
  EXPECT_THAT(codes(report.findings), testing::ElementsAre("memory_growth"));
  EXPECT_THAT(report.findings[0].sentence, HasSubstr("grew by some 128 MB (36 %)"));
  EXPECT_THAT(report.findings[0].advice, HasSubstr("\"cache\""));
  result_["memory"] = memory(fills);
  EXPECT_THAT(found(), testing::IsEmpty());
  result_["memory"]["peak"]["bytes"] = 1e15;
  EXPECT_THAT(found(), testing::ElementsAre("memory_nearly_full"));
}

TEST_F(DoctorsRun, DataThatHasChangedOrIsGoneIsTold) {
  write(folder_ / "data/train/one/c.jpg", "one more");
  EXPECT_THAT(found(), testing::ElementsAre("data_changed"));
  fs::remove_all(folder_ / "data");
  EXPECT_THAT(found(), testing::ElementsAre("data_gone"));
}

TEST_F(DoctorsRun, ACheckpointOfAnotherBuildMachineOrDivisionOfCoresIsToldWhileItIsWanted) {
  texts_["compute_threads"] = "99";
  EXPECT_THAT(found(), testing::IsEmpty());  // Nothing is left to resume.
  result_["training"]["stopped_by"] = 2;
  EXPECT_THAT(found(), testing::ElementsAre("stopped", "other_threads"));
  Machine other = detect_machine();
  other.cpu = "another";
  EXPECT_THAT(codes(check_run(run_, other).findings),
              testing::ElementsAre("stopped", "other_threads", "other_machine"));
  texts_["version"] = "99";
  EXPECT_THAT(found(), testing::ElementsAre("stopped", "unsupported_checkpoint"));
}

TEST_F(DoctorsRun, DocumentsOfAnyFormAreFaultsAndNoCrash) {
  for (const char* text : {R"("training": 1)", R"("training": {"epochs": [1, null, {}]})", R"("memory": [1])",
                           R"("memory": {"resident": ["a"], "at_s": {}, "classes": 3})",
                           R"("corrupt_samples": {"samples": [1, {}]})", R"("training": {"stopped_by": "x"})"}) {
    result_ = nullptr;
    write(run_ / "result.json", std::string(R"({"format": "headrace-train", "version": 1, )") + text + "}");
    EXPECT_NO_THROW(checked()) << text;
  }
}

TEST_F(Run, DoctorNamesWhatIsMissingOrDamaged) {
  invocation_.out = folder_ / "run";
  RunFolder run{invocation_, loaded_};
  const auto findings = [this] { return check_run(folder_ / "run", detect_machine()).findings; };
  EXPECT_THAT(codes(findings()), testing::ElementsAre("in_use", "missing", "missing", "missing", "data_gone"));
  write(folder_ / "run/checkpoint-000000001.safetensors", safetensors("abc").substr(0, 40));
  std::string header = safetensors("abc", {{"header_xxh3", "0123456789abcdef"}});
  write(folder_ / "run/checkpoint-000000002.safetensors", header);
  write(folder_ / "run/ledger.json", R"({"format":"headrace-ledger","version":9})");
  write(folder_ / "run/metrics.json", "{");
  write(folder_ / "run/trace-tuned.json", R"({"otherData":{"format":"headrace-trace","version":7},"traceEvents":[]})");
  write(folder_ / "run/tuned.toml", "seed = ");
  write(folder_ / "run/report.html", "<html><body>");
  write(folder_ / "run/.77-0.headrace-tmp", "x");
  fs::remove(folder_ / "run/recipe.toml");
  std::vector<std::string> sentences;
  for (const Finding& finding : findings()) sentences.push_back(finding.sentence);
  for (const char* text :
       {"checkpoint-000000001.safetensors is damaged: header of", "checkpoint-000000002.safetensors is damaged",
        "and says \"0123456789abcdef\"", "ledger.json has version 9, wanted 1", "metrics.json is no whole JSON",
        "version 7, this build reads 1", "tuned.toml does not load", "report.html ends before",
        ".77-0.headrace-tmp was left", "recipe.toml is missing"}) {
    EXPECT_THAT(sentences, testing::Contains(HasSubstr(text)));
  }
  EXPECT_THROW(check_run(folder_ / "absent", detect_machine()), Error);
}

}  // namespace
}  // namespace headrace
