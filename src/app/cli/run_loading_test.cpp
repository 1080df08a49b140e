#include "app/cli/run_loading.h"

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

// Of 1,000 samples, in milliseconds of each: what the threads take, and what the loop takes and waits for.
struct Costs {
  double read = 0, decode = 0, augment = 0, own = 0, wait = 0;
};

Json loading_of(const Costs& costs, int num_workers, double cpu_share) {
  const auto stage = [](const char* name, double busy_s, double wait_s) {
    return Json{{"name", name},
                {"records", 1000},
                {"busy_s", busy_s},
                {"wait_for_input_s", wait_s},
                {"wait_for_output_s", 0.0}};
  };
  return {{"num_workers", num_workers},
          {"cpu_share", cpu_share},
          {"stages",
           {stage("read", costs.read, 0), stage("decode", costs.decode, 0), stage("transform", costs.augment, 0),
            stage("consume", costs.own, costs.wait)}}};
}

// A training run of three epochs on a machine of `cores` that computes with one thread.
RunContents run_of(Json loading, int cores = 4) {
  RunContents run;
  run.environment = {{"command", {"headrace", "train", "r.toml"}}, {"machine", {{"cores_usable", cores}}}};
  run.result = {{"loading", std::move(loading)}};
  run.recipe.emplace();
  run.recipe->train.epochs = 3;
  run.recipe->compute.intra_op_threads = 1;
  return run;
}

std::vector<Finding> findings_of(const RunContents& run) {
  return loading_findings(run, Machine{});
}

TEST(RunLoading, ALoopThatHardlyWaitsHasNoFinding) {
  EXPECT_TRUE(findings_of(run_of(loading_of({.read = 1, .decode = 2, .own = 9.1, .wait = 0.9}, 1, 1))).empty());
  EXPECT_EQ(codes(findings_of(run_of(loading_of({.read = 1, .decode = 2, .own = 8.9, .wait = 1.1}, 1, 1)))),
            std::vector<std::string>{"loop_waits_for_data"});
}

TEST(RunLoading, NothingIsSaidOfWhatNobodyMeasured) {
  EXPECT_TRUE(findings_of(RunContents{}).empty());
  EXPECT_TRUE(findings_of(run_of(Json::object())).empty());
  EXPECT_TRUE(findings_of(run_of({{"num_workers", 1}, {"stages", Json::array()}})).empty());
  for (const char* text : {R"({"num_workers": "2", "stages": 3})", R"({"num_workers": -1e300, "stages": [1, {}]})",
                           R"({"num_workers": 1e300, "stages": [{"name": "transform", "records": 1}]})",
                           R"({"num_workers": 1, "stages": [{"name": 1}], "cache": {"hits": "x", "misses": []}})"}) {
    EXPECT_TRUE(findings_of(run_of(Json::parse(text))).empty()) << text;
  }
}

TEST(RunLoading, WhereReadingWaitsMoreThreadsThanCoresHelp) {
  // 10 ms of waiting a sample on one thread, beside a loop of 1 ms: ten threads keep up with it.
  const RunContents run = run_of(loading_of({.read = 10, .own = 1, .wait = 9}, 1, 0.02), 2);
  const std::vector<Finding> findings = findings_of(run);
  ASSERT_EQ(codes(findings), std::vector<std::string>{"loop_waits_for_data"});
  EXPECT_THAT(findings[0].sentence, HasSubstr("for 90 % of its time, with 1 loader thread: reading waits (2 %"));
  EXPECT_THAT(findings[0].advice, HasSubstr("data.num_workers = 10 ("));
  const std::vector<Proposal> proposals = loading_proposals(run, Machine{});
  ASSERT_FALSE(proposals.empty());
  EXPECT_NEAR(*proposals[0].predicted_samples_per_second, 1000, 1);
}

TEST(RunLoading, WhereThreadsComputeTheCoresAreTheBound) {
  // 8 ms of computing a sample beside 1 ms of the loop: four cores give a sample in 9 / 4 ms.
  const RunContents run = run_of(loading_of({.decode = 8, .own = 1, .wait = 7}, 1, 1), 4);
  const std::vector<Proposal> proposals = loading_proposals(run, Machine{});
  ASSERT_EQ(proposals.size(), 2U);  // A cache spares decoding, and is the better one.
  EXPECT_EQ(proposals[0].setting, "data.cache = \"decoded\"");
  EXPECT_EQ(proposals[1].setting, "data.num_workers = 4");
  EXPECT_NEAR(*proposals[1].predicted_samples_per_second, 1000 / 2.25, 1);
  EXPECT_THAT(findings_of(run)[0].sentence, HasSubstr("with 1 loader thread: loading computes"));
}

TEST(RunLoading, WhereNoCoreIsLeftItSaysThatMoreThreadsDoNotHelp) {
  RunContents run = run_of(loading_of({.augment = 8, .own = 1, .wait = 3.5}, 2, 1), 2);
  EXPECT_TRUE(loading_proposals(run, Machine{}).empty());
  const Finding finding = findings_of(run)[0];
  EXPECT_THAT(finding.advice, HasSubstr("More threads alone would not help: 2 cores load and compute."));
  EXPECT_THAT(finding.advice, Not(HasSubstr("data.num_workers =")));
}

TEST(RunLoading, ThreadsThatWaitForEachOtherAreToldApart) {
  const RunContents run = run_of(loading_of({.augment = 2, .own = 1, .wait = 9}, 4, 1));
  EXPECT_TRUE(loading_proposals(run, Machine{}).empty());
  const Finding finding = findings_of(run)[0];
  EXPECT_THAT(finding.sentence, HasSubstr("its 4 loader threads for something else for 95 % of theirs"));
  EXPECT_THAT(finding.advice, HasSubstr("worker_type = \"process\""));
}

TEST(RunLoading, ALoopThatLoadsItselfIsToldToLetAThreadDoIt) {
  const RunContents run = run_of(loading_of({.augment = 1, .own = 1}, 0, 1));
  const std::vector<Finding> findings = findings_of(run);
  ASSERT_EQ(codes(findings), std::vector<std::string>{"loop_waits_for_data"});
  EXPECT_THAT(findings[0].sentence, HasSubstr("for 50 % of its time, as it loads its batches itself"));
  EXPECT_THAT(findings[0].advice, HasSubstr("data.num_workers = 1 (1000 samples/s predicted, now 500: 2.00 times"));
}

TEST(RunLoading, AProfileThatHasAVerdictOverResourcesIsNotJudgedTwice) {
  RunContents run = run_of(loading_of({.read = 10, .own = 1, .wait = 9}, 1, 0.02));
  run.profile["diagnosis"]["resources"] = nullptr;
  EXPECT_EQ(findings_of(run).size(), 1U);
  run.profile["diagnosis"]["resources"]["first"] = "storage";
  EXPECT_TRUE(findings_of(run).empty());
  EXPECT_FALSE(loading_proposals(run, Machine{}).empty());
}

TEST(RunLoading, AVerdictThatNamesNoResourceSilencesNothing) {
  RunContents run = run_of(loading_of({.read = 10, .own = 1, .wait = 9}, 1, 0.02));
  run.profile["diagnosis"]["resources"]["first"] = nullptr;
  run.profile["diagnosis"]["resources"]["sentence"] = "what runs out first is not known";
  EXPECT_EQ(codes(findings_of(run)), std::vector<std::string>{"loop_waits_for_data"});
}

// Seven of eight threads give 98 % of what all cores would.
TEST(RunLoading, CoresAreThoseOfTheRunsMachineAndElseOfThisOne) {
  RunContents run = run_of(loading_of({.decode = 8, .own = 1, .wait = 7}, 1, 1), 8);
  run.recipe->data.cache = Cache::decoded;  // Leaves the threads as the one proposal.
  EXPECT_EQ(loading_proposals(run, Machine{})[0].setting, "data.num_workers = 7");
  run.environment["machine"] = nullptr;
  Machine here;
  here.cores_usable = 2;
  EXPECT_EQ(loading_proposals(run, here)[0].setting, "data.num_workers = 2");
}

Json with_cache(double hits, double misses, double bytes, double samples_per_epoch) {
  Json loading = loading_of({.read = 1, .own = 10}, 1, 1);
  loading["cache"] = {{"hits", hits}, {"misses", misses}, {"bytes", bytes}, {"samples_per_epoch", samples_per_epoch}};
  return loading;
}

TEST(RunLoading, ALowHitRateSaysWhetherTheCacheIsTooSmall) {
  // Three epochs of 100: of 200 that came again 50 were there, a quarter, in 26 MB.
  const RunContents run = run_of(with_cache(50, 250, 26e6, 100));
  const std::vector<Finding> findings = findings_of(run);
  ASSERT_EQ(codes(findings), std::vector<std::string>{"low_hit_rate"});
  EXPECT_THAT(findings[0].sentence, HasSubstr("17 % of 300 look-ups"));
  EXPECT_THAT(findings[0].sentence, HasSubstr("too small, as its 26 MB hold 25 % of the samples"));
  EXPECT_THAT(findings[0].advice, HasSubstr("data.cache_mib = 105"));
  const Json stats = cache_stats(run);
  EXPECT_NEAR(stats["cache_hit_rate"].get<double>(), 1.0 / 6, 1e-9);
  EXPECT_EQ(stats["hits"], 50);
}

TEST(RunLoading, ACacheThatCannotHoldAllOnThisMachineIsNotAskedToGrow) {
  RunContents run = run_of(with_cache(50, 250, 26e6, 100));
  run.environment["machine"]["memory_limit"] = 150 << 20;
  EXPECT_THAT(findings_of(run)[0].advice, HasSubstr("All of them would take 109 MB of the 157 MB that there are"));
}

TEST(RunLoading, KeysThatNeverRepeatAndACacheThatHoldsNothingAreToldApart) {
  EXPECT_THAT(findings_of(run_of(with_cache(0, 300, 1e6, 300)))[0].sentence, HasSubstr("nothing was asked for twice"));
  EXPECT_THAT(findings_of(run_of(with_cache(0, 300, 0, 100)))[0].sentence, HasSubstr("is never there"));
}

TEST(RunLoading, AHitRateIsJudgedBelowAHalfOfAHundredLookUpsOfATrainingRun) {
  EXPECT_TRUE(findings_of(run_of(with_cache(100, 100, 1e6, 100))).empty());
  EXPECT_TRUE(findings_of(run_of(with_cache(10, 89, 1e6, 33))).empty());
  EXPECT_EQ(findings_of(run_of(with_cache(10, 90, 1e6, 33))).size(), 1U);
  RunContents profile = run_of(with_cache(0, 300, 1e6, 300));
  profile.environment["command"][1] = "profile";  // Of a part of an epoch.
  EXPECT_TRUE(findings_of(profile).empty());
  EXPECT_EQ(cache_stats(run_of(with_cache(0, 0, 0, 100))), "unavailable: no sample was looked for in a cache");
}

}  // namespace
}  // namespace headrace
