#include "insight/compare/run_figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/base/error_of.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

std::string refusal(const std::string& text) {
  return error_of(ErrorCode::corrupt_data, [&] { figures_of_lines(text, "result.jsonl"); });
}

std::string steps(int count) {
  std::string text;
  for (int step = 1; step <= count; ++step) {
    text +=
        "{\"step_s\": " + std::to_string(step) + ", \"samples\": 10, \"stages\": {\"forward\": 2, \"backward\": 4}}\n";
  }
  return text;
}

TEST(RunFigures, OfLinesOfStepsArePercentilesARateAndSecondsAStep) {
  const RunFigures figures = figures_of_lines(steps(101), "result.jsonl");
  EXPECT_DOUBLE_EQ(figures.metrics.at("step_p50_s"), 51);
  EXPECT_DOUBLE_EQ(figures.metrics.at("step_p95_s"), 96);
  EXPECT_DOUBLE_EQ(figures.metrics.at("step_p99_s"), 100);
  EXPECT_DOUBLE_EQ(figures.metrics.at("samples_per_s"), 1010.0 / 5151);
  EXPECT_DOUBLE_EQ(figures.stage_s.at("forward"), 2);
  EXPECT_DOUBLE_EQ(figures.stage_s.at("backward"), 4);
}

TEST(RunFigures, APercentileOfFewStepsIsNotTold) {
  EXPECT_FALSE(figures_of_lines(steps(99), "x").metrics.contains("step_p99_s"));
  EXPECT_FALSE(figures_of_lines(steps(19), "x").metrics.contains("step_p95_s"));
  EXPECT_TRUE(figures_of_lines(steps(20), "x").metrics.contains("step_p95_s"));
}

TEST(RunFigures, OtherNumbersAreMetricsAndTheMeanOfTheirLines) {
  const RunFigures figures = figures_of_lines(
      "{\"accuracy\": 0.5, \"step\": 7, \"note\": \"first\"}\n\n{\"accuracy\": 0.7, \"epoch\": 2, \"ok\": true}\n"
      "{\"version\":1,\"wall_time\":3,\"step\":9,\"metric\":\"gpu.power\",\"value\":61.5}\n"
      "{\"outputs\": [1, 2.5]}\n{\"outputs\": 3}",
      "x");
  EXPECT_EQ(figures.metrics.size(), 2);
  EXPECT_DOUBLE_EQ(figures.metrics.at("accuracy"), 0.6);
  EXPECT_DOUBLE_EQ(figures.metrics.at("gpu.power"), 61.5);
  EXPECT_EQ(figures.outputs, (std::vector<double>{1, 2.5, 3}));
}

TEST(RunFigures, LinesThatMakeNoSenseAreNamed) {
  EXPECT_THAT(refusal("{\"a\": 1}\n{\"accuracy\": NaN}"), HasSubstr("result.jsonl, line 2 is no JSON object (NaN"));
  EXPECT_THAT(refusal("{\"accuracy\": null}"),
              HasSubstr("result.jsonl, line 1, accuracy is null; wanted a finite number"));
  EXPECT_THAT(refusal("{\"step_s\": 0}"), HasSubstr("step_s is 0; wanted a number above 0"));
  EXPECT_THAT(refusal("[1]"), HasSubstr("line 1 is no JSON object"));
  EXPECT_THAT(refusal("{\"stages\": 3}"), HasSubstr("stages is no object"));
  EXPECT_THAT(refusal("{\"a\": 1"), HasSubstr("line 1"));
  EXPECT_THAT(refusal("{\"step_s\": \"x\", \"samples\": 3}"), HasSubstr("step_s is \"x\""));
  EXPECT_THAT(refusal("{\"step_s\": 1, \"samples\": -3}"), HasSubstr("samples is -3; wanted a number above 0"));
  EXPECT_THAT(refusal("{\"a\": " + std::string(100'000, '[') + std::string(100'000, ']') + "}"),
              HasSubstr("a is an array; wanted a finite number"));
  EXPECT_THAT(refusal("{\"a\": 1e308}\n{\"a\": 1e308}"), HasSubstr("result.jsonl: a comes to inf"));
}

Json profile() {
  return Json::parse(
      R"({"format": "headrace-profile", "version": 1, "environment": {"CPU": "a", "GPU": "b", "System": "c"},
      "samples_per_second": 640, "peak_memory_bytes": 1000, "time_split": {"steps": 2, "total_s": 4, "data_wait_s": 1,
      "transfer_s": 0, "forward_s": 1, "backward_s": 1, "optimizer_s": 0.5, "other_s": 0.5, "step_s": [1, 3]}})");
}

TEST(RunFigures, OfAProfileAreItsStepsStagesAndMemory) {
  const RunFigures figures = figures_of_document(profile(), "profile.json");
  EXPECT_DOUBLE_EQ(figures.metrics.at("step_p50_s"), 2);
  EXPECT_DOUBLE_EQ(figures.metrics.at("samples_per_s"), 640);
  EXPECT_DOUBLE_EQ(figures.metrics.at("peak_memory_bytes"), 1000);
  EXPECT_DOUBLE_EQ(figures.stage_s.at("data_wait"), 0.5);
  EXPECT_EQ(figures.machine, (std::vector<std::pair<std::string, std::string>>{{"CPU", "a"}, {"GPU", "b"}}));
}

TEST(RunFigures, WhatNobodyCouldMeasureIsLeftOutAndNotZero) {
  Json document = profile();
  document["peak_memory_bytes"] = nullptr;
  EXPECT_FALSE(figures_of_document(document, "x").metrics.contains("peak_memory_bytes"));
}

TEST(RunFigures, OfACacheIsTheShareOfItsHits) {
  Json document = profile();
  document["loading"]["cache"] = {{"applied", "decoded"}, {"hits", 30}, {"misses", 10}};
  const RunFigures figures = figures_of_document(document, "profile.json");
  EXPECT_DOUBLE_EQ(figures.metrics.at("hit_rate"), 0.75);
  EXPECT_TRUE(figures.not_applicable.empty());
}

TEST(RunFigures, ALoaderWithoutACacheHasNoHitRateAndSaysSo) {
  Json document = profile();
  EXPECT_TRUE(figures_of_document(document, "x").not_applicable.empty()) << "nobody knows";
  document["loading"]["cache"] = {{"applied", "none"}, {"hits", 0}, {"misses", 0}};
  const RunFigures figures = figures_of_document(document, "x");
  EXPECT_FALSE(figures.metrics.contains("hit_rate"));
  EXPECT_EQ(why_not_compared("hit_rate", {}, figures), "hit_rate is not compared: NEW looked for no sample in a cache");
  EXPECT_EQ(why_not_compared("hit_rate", {}, {}), "");
  document["loading"]["cache"] = {{"hits", "many"}, {"misses", 0}};
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { figures_of_document(document, "a.json"); }),
              HasSubstr("a.json, loading.cache.hits is \"many\""));
}

TEST(RunFigures, OfATrainingAreItsAccuracyAndLastEpoch) {
  const Json document = Json::parse(R"({"format": "headrace-train", "version": 1, "training": {"seconds": 9, "epochs": [
      {"loss": 2, "samples_per_second": 10}, {"loss": 1, "samples_per_second": 20}]}, "val_accuracy": 0.75,
      "test_accuracy": null, "memory": {"peak": {"at_s": 1, "bytes": 77}}})");
  const std::map<std::string, double> wanted{
      {"train_s", 9}, {"loss", 1}, {"samples_per_s", 20}, {"val_accuracy", 0.75}, {"peak_memory_bytes", 77}};
  EXPECT_EQ(figures_of_document(document, "x").metrics, wanted);
}

TEST(RunFigures, DocumentsOfAnotherKindOrVersionAreRefusedByName) {
  const auto refused = [](const Json& document) {
    return error_of(ErrorCode::corrupt_data, [&] { figures_of_document(document, "a.json"); });
  };
  Json document = profile();
  document["version"] = 2;
  EXPECT_THAT(refused(document), HasSubstr("a.json has version 2, wanted 1"));
  document = profile();
  document.erase("time_split");
  EXPECT_THAT(refused(document), HasSubstr("a.json has no time_split"));
  document = profile();
  document["time_split"]["forward_s"] = "x";
  EXPECT_THAT(refused(document), HasSubstr("forward_s"));
  EXPECT_THAT(refused(Json::array()), HasSubstr("no result of headrace"));
}

TEST(RunFigures, AreReadBackAsTheyWereWritten) {
  RunFigures figures{.metrics = {{"a", 1.5}}, .stage_s = {{"forward", 0.25}}, .outputs = {3, 4}};
  figures.not_applicable = {{"hit_rate", "has no cache"}};
  const RunFigures again = figures_from_json(to_json(figures), "x");
  EXPECT_EQ(again.metrics, figures.metrics);
  EXPECT_EQ(again.stage_s, figures.stage_s);
  EXPECT_EQ(again.outputs, figures.outputs);
  EXPECT_EQ(again.not_applicable, figures.not_applicable);
}

TEST(RunFigures, OfABaselineFromBeforeThereWereReasonsNoneIsWanted) {
  Json document = to_json({.metrics = {{"a", 1}}, .stage_s = {}, .outputs = {}});
  document.erase("not_applicable");
  EXPECT_EQ(figures_from_json(document, "x").metrics.at("a"), 1);
  document["not_applicable"] = {{"hit_rate", 3}};
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { figures_from_json(document, "x"); }),
              HasSubstr("x, not_applicable.hit_rate is no text"));
}

}  // namespace
}  // namespace headrace
