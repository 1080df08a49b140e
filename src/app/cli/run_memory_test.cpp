#include "app/cli/run_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/cli/run_contents.h"
#include "app/cli/test_runs.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;
using testing::Not;

// A run whose peak is this part of 10 GB, with so many bytes at the peak by class.
RunContents run_of(double peak_share, const Json& bytes_by_class) {
  RunContents run;
  run.environment = {{"machine", {{"memory_limit", 1e10}}}};
  run.result["memory"]["peak"]["bytes"] = peak_share * 1e10;
  run.result["memory"]["classes"] = Json::object();
  for (const auto& [name, bytes] : bytes_by_class.items()) {
    run.result["memory"]["classes"][name] = bytes.is_null() ? Json(nullptr) : Json{{"at_peak", bytes}};
  }
  run.recipe.emplace();
  run.recipe->data.batch_size = 128;
  run.recipe->data.prefetch_batches = 2;
  return run;
}

TEST(RunMemory, IsNearlyFullAbove80PercentAndNotBelow) {
  const Json none = Json::object();
  EXPECT_TRUE(memory_findings(run_of(0.79, none)).empty());
  EXPECT_TRUE(memory_findings(run_of(0.8, none)).empty());
  const std::vector<Finding> findings = memory_findings(run_of(0.81, none));
  ASSERT_EQ(codes(findings), std::vector<std::string>{"memory_nearly_full"});
  EXPECT_EQ(findings[0].sentence, "the run held 8.10 GB of the 10.00 GB that it may use");
}

// Where the words stand in the advice, in this order.
void expect_order(const std::string& advice, const std::vector<std::string>& words) {
  std::size_t last = 0;
  for (const std::string& word : words) {
    const std::size_t place = advice.find(word);
    ASSERT_NE(place, std::string::npos) << word << " in: " << advice;
    EXPECT_GT(place, last) << word << " in: " << advice;
    last = place;
  }
}

TEST(RunMemory, NamesWhatGivesMemoryBackByTheBytesThatWereCounted) {
  const std::string of_cache =
      memory_findings(run_of(0.9, {{"cache", 5e9}, {"activations", 2e9}, {"batches", 4e8}}))[0].advice;
  expect_order(of_cache,
               {"data.cache = \"none\"", "(some 5.00 GB)",
                "data.batch_size = 64 with train.gradient_accumulation_steps = 2", "(some 1.20 GB)",
                "model.activation_checkpointing", "(some 1.00 GB)", "data.prefetch_batches = 1", "(some 100 MB)"});
  const std::string of_activations = memory_findings(run_of(0.9, {{"cache", 1e9}, {"activations", 6e9}}))[0].advice;
  expect_order(of_activations,
               {"data.batch_size = 64", "(some 3.00 GB)", "model.activation_checkpointing", "data.cache"});
}

TEST(RunMemory, ProposesNeitherWhatSavesNothingNorWhatIsInForce) {
  RunContents run = run_of(0.9, {{"cache", 0.0}, {"activations", 2e9}, {"batches", nullptr}});
  run.recipe->model.activation_checkpointing = ActivationCheckpointing::blocks;
  const std::string advice = memory_findings(run)[0].advice;
  EXPECT_THAT(advice, HasSubstr("data.batch_size = 64"));
  for (const char* key : {"data.cache", "activation_checkpointing", "prefetch_batches"}) {
    EXPECT_THAT(advice, Not(HasSubstr(key)));
  }
}

TEST(RunMemory, WhereNobodyCountedItSaysSo) {
  EXPECT_THAT(memory_findings(run_of(0.9, Json::object()))[0].advice, HasSubstr("Nobody counted what holds it"));
}

TEST(RunMemory, TrendsAreThoseOfTheRunOrUnavailable) {
  EXPECT_THAT(memory_trends(RunContents{}).get<std::string>(), HasSubstr("unavailable"));
  RunContents run;
  Json& memory = run.result["memory"];
  for (int i = 0; i < 256; ++i) {
    memory["at_s"].push_back(i);
    memory["resident"].push_back(1e8 + 1e6 * i);
  }
  Json trends = memory_trends(run);
  EXPECT_EQ(trends["cpu_memory_trend"]["trend"], "increasing");
  EXPECT_NEAR(trends["cpu_memory_trend"]["bytes_per_s"].get<double>(), 1e6 * 256 / 255, 1);
  EXPECT_THAT(trends["gpu_memory_trend"].get<std::string>(), HasSubstr("unavailable"));
  memory["resident"][7] = 1e300;
  EXPECT_TRUE(memory_trends(run)["cpu_memory_trend"]["bytes_per_s"].is_null());
  memory["resident"].erase(memory["resident"].begin() + 20, memory["resident"].end());
  trends = memory_trends(run);
  EXPECT_EQ(trends["cpu_memory_trend"]["trend"], "insufficient_data");
  EXPECT_TRUE(trends["cpu_memory_trend"]["bytes_per_s"].is_null());
}

}  // namespace
}  // namespace headrace
