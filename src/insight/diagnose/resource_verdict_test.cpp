#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/diagnosis.h>
#include <headrace/error.h>
#include <headrace/resource_verdict.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "insight/diagnose/json.h"
#include "insight/diagnose/sample_loop.h"

namespace headrace {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

TEST(ResourceVerdict, NothingIsWrongWithALoopThatComputes) {
  const ResourceVerdict verdict = healthy_loop().verdict();
  EXPECT_TRUE(verdict.healthy);
  EXPECT_EQ(verdict.first, Resource::compute);
  EXPECT_THAT(verdict.losses, IsEmpty());
  ASSERT_TRUE(verdict.peak_share);
  EXPECT_NEAR(*verdict.peak_share, 0.4, 1e-9);
  EXPECT_THAT(verdict.sentence, StartsWith("nothing is wrong: compute-bound at 40 % or more of this machine's "
                                           "measured peak"));
  EXPECT_LE(verdict.confidence, 0.9);  // Nobody confirmed it.
}

TEST(ResourceVerdict, APeakThatNobodyMeasuredIsUnavailableWithTheReason) {
  SampleLoop loop = healthy_loop();
  loop.figures.flops_per_step.reset();
  loop.figures.why_no_peak = "the model is compiled";
  const ResourceVerdict verdict = loop.verdict();
  EXPECT_FALSE(verdict.peak_share);
  EXPECT_THAT(verdict.sentence, HasSubstr("its share of this machine's peak is unavailable: the model is compiled"));
}

// One rule for every verdict: whether a differential run showed it stands in its sentence, and else how one would.
TEST(ResourceVerdict, WhetherItIsConfirmedStandsInItsSentence) {
  const auto expect_of_one_run = [](const ResourceVerdict& verdict) {
    EXPECT_FALSE(verdict.confirmed);
    EXPECT_THAT(verdict.sentence, HasSubstr("(not confirmed: one run; "));
    EXPECT_THAT(verdict.to_confirm, StartsWith("To confirm it: ")) << verdict.sentence;
  };
  expect_of_one_run(healthy_loop().verdict());
  for (const SampleFault& fault : sample_faults()) {
    SampleLoop loop = healthy_loop();
    fault.plant(loop, loop.step_ms());
    if (!loop.figures.experiments.any()) expect_of_one_run(loop.verdict());
    loop.figures.experiments.idle_compute_wait = 1e-3 * loop.data_wait;
    const ResourceVerdict verdict = loop.verdict();
    EXPECT_EQ(verdict.confirmed, verdict.losses.front().confirmed) << fault.name;
    EXPECT_EQ(verdict.to_confirm.empty(), verdict.confirmed) << fault.name;
    EXPECT_THAT(verdict.sentence, HasSubstr(verdict.confirmed ? "(confirmed by a differential run; "
                                                              : "(not confirmed: no differential run shows it; "));
  }
}

TEST(ResourceVerdict, HowToConfirmItFollowsWhatWasNamed) {
  SampleLoop loop = healthy_loop();
  EXPECT_THAT(loop.verdict().to_confirm, HasSubstr("hr.diagnose_loop"));
  loop.figures.experiments.free_data = {1e-3 * loop.step_ms(), 1e-3 * loop.step_ms(), 1e-3 * loop.step_ms()};
  EXPECT_TRUE(loop.verdict().healthy);
  EXPECT_TRUE(loop.verdict().confirmed);
  EXPECT_EQ(loop.verdict().to_confirm, "");
  loop = healthy_loop();
  slow_down_loading(loop, &LoadingStages::decode_s, 40);
  EXPECT_THAT(loop.verdict().to_confirm, HasSubstr("confirm(loader) of an hr.watch"));
  loop = healthy_loop();
  slow_down(loop, &SampleLoop::optimizer, 40);
  EXPECT_THAT(loop.verdict().to_confirm, HasSubstr("headrace compare"));
  loop.figures.rank_busy_s = {12, 4, 4};
  EXPECT_EQ(loop.verdict().first, Resource::imbalance);
  EXPECT_THAT(loop.verdict().to_confirm, HasSubstr("headrace compare"));
}

class PlantedFault : public testing::TestWithParam<SampleFault> {};

// 15 % of the step that is left with it: what a fault has to cost to be told surely.
TEST_P(PlantedFault, IsTheFirstVerdictWithTheGainThatItsAbsenceHas) {
  for (const double share : {0.15, 0.3, 0.6}) {
    SampleLoop loop = healthy_loop();
    const double ms = loop.step_ms() * share / (1 - share);
    GetParam().plant(loop, ms);
    const ResourceVerdict verdict = loop.verdict();
    ASSERT_EQ(verdict.first, GetParam().resource) << share << ": " << verdict.sentence;
    EXPECT_FALSE(verdict.healthy);
    const ResourceLoss& first = verdict.losses.front();
    EXPECT_NEAR(first.gain, share / (1 - share), 0.15 * share / (1 - share)) << share;
    EXPECT_LE(first.gain_low, first.gain);
    EXPECT_GE(first.gain_high, first.gain);
    EXPECT_GT(first.confidence, 0.5) << share;
    EXPECT_FALSE(first.advice.empty());
    EXPECT_FALSE(first.keys.empty());
    EXPECT_THAT(verdict.sentence, HasSubstr("faster"));
  }
}

TEST_P(PlantedFault, ThatCostsAFiftiethOfAStepIsNoAccusation) {
  SampleLoop loop = healthy_loop();
  GetParam().plant(loop, loop.step_ms() / 50);
  EXPECT_TRUE(loop.verdict().healthy) << loop.verdict().sentence;
}

INSTANTIATE_TEST_SUITE_P(Each, PlantedFault, testing::ValuesIn(sample_faults()),
                         [](const auto& given) { return std::string(given.param.name); });

// What a step is bound by, of loops with a delay in each part.
TEST(ResourceVerdict, SharesOfAStepAddUpToOneAndTheDelayedPartsIsTheLargest) {
  const auto shares_with = [](const char* name) {
    for (const SampleFault& fault : sample_faults()) {
      if (fault.name != std::string(name)) continue;
      SampleLoop loop = healthy_loop();
      fault.plant(loop, 3 * loop.step_ms());
      return loop.verdict().shares.value();
    }
    return BoundShares{};
  };
  const std::vector<std::pair<const char*, double BoundShares::*>> all{
      {"SlowReads", &BoundShares::data},
      {"SlowTransfer", &BoundShares::copy},
      {"NewPagesEachStep", &BoundShares::memory},
      {"ASleepBesideTheParts", &BoundShares::synchronisation},
      {"SlowUpdate", &BoundShares::compute}};
  for (const auto& [name, expected] : all) {
    const BoundShares shares = shares_with(name);
    EXPECT_NEAR(shares.data + shares.copy + shares.memory + shares.synchronisation + shares.compute, 1, 1e-9) << name;
    EXPECT_GT(shares.*expected, 0.7) << name;
  }
  EXPECT_FALSE(SampleLoop{}.verdict().shares);  // Nobody recorded what the thread did.
}

TEST(ResourceVerdict, OfTwoFaultsTheLargerIsFirstAndBothAreTold) {
  SampleLoop loop = healthy_loop();
  loop.optimizer += 40;
  loop.other += 25;
  loop.use(loop.forward, loop.other);
  const ResourceVerdict verdict = loop.verdict();
  ASSERT_EQ(verdict.losses.size(), 2U);
  EXPECT_EQ(verdict.losses[0].resource, Resource::optimizer);
  EXPECT_EQ(verdict.losses[1].resource, Resource::python);
}

TEST(ResourceVerdict, AStageThatTheThreadItselfGoesThroughIsSparedAsItIs) {
  SampleLoop loop = healthy_loop();
  loop.figures.loading->num_workers = 0;
  loop.data_wait = 40;
  loop.figures.loading->read_s = 0.030;
  loop.figures.loading->decode_s = 0.006;
  loop.figures.loading->augment_s = 0.003;
  loop.figures.loading->collate_s = 0.001;
  loop.use(loop.forward, loop.other);
  const ResourceVerdict verdict = loop.verdict();
  ASSERT_EQ(verdict.first, Resource::storage);
  EXPECT_NEAR(verdict.losses.front().lost_s, 0.030, 1e-9);
  EXPECT_THAT(verdict.sentence, HasSubstr("as no worker loads ahead (data.num_workers = 0)"));
  EXPECT_THAT(verdict.losses.front().advice, StartsWith("Let a worker load the next batches while the loop computes"));
  EXPECT_EQ(verdict.losses.front().keys, (std::vector<std::string>{"data.num_workers", "data.cache"}));
}

TEST(ResourceVerdict, ASecondReadingThatIsFasterIsToldOfStorage) {
  SampleLoop loop = healthy_loop();
  slow_down_loading(loop, &LoadingStages::read_s, 40);
  loop.figures.loading->warm_read_s = 0.1 * loop.figures.loading->read_s;
  EXPECT_THAT(loop.verdict().sentence, HasSubstr("a second reading takes 10 % of the first"));
}

TEST(ResourceVerdict, OneCachedBatchConfirmsOrRefutesThatDataIsWaitedFor) {
  SampleLoop loop = healthy_loop();
  slow_down_loading(loop, &LoadingStages::decode_s, 40);
  const double step_s = 1e-3 * loop.step_ms();
  loop.figures.experiments.free_data = {step_s - 0.041, step_s - 0.043, step_s - 0.039};
  const ResourceVerdict confirmed = loop.verdict();
  EXPECT_EQ(confirmed.first, Resource::decode);
  EXPECT_TRUE(confirmed.losses.front().confirmed);
  EXPECT_TRUE(confirmed.confirmed);
  EXPECT_GT(confirmed.confidence, 0.9);
  EXPECT_THAT(confirmed.sentence, HasSubstr("confirmed by a differential run"));
  loop.figures.experiments.free_data = {step_s - 0.001, step_s - 0.002, step_s};
  EXPECT_TRUE(loop.verdict().healthy) << "the wait only moved";
}

TEST(ResourceVerdict, AWaitThatGoesWhenComputeSleepsIsAFightOverCores) {
  SampleLoop loop = healthy_loop();
  slow_down_loading(loop, &LoadingStages::decode_s, 40);
  loop.figures.experiments.idle_compute_wait = 0.002;
  const ResourceVerdict verdict = loop.verdict();
  EXPECT_EQ(verdict.first, Resource::cores);
  EXPECT_NEAR(verdict.losses.front().lost_s, 0.039, 1e-9);
  EXPECT_TRUE(verdict.losses.front().confirmed);
  loop.figures.experiments.idle_compute_wait = 0.041;  // It does not go: it is the loader's own.
  EXPECT_EQ(loop.verdict().first, Resource::decode);
  EXPECT_TRUE(loop.verdict().losses.front().confirmed);
}

TEST(ResourceVerdict, WhatOthersWaitForMemoryIsNobodysFaultHere) {
  SampleLoop loop = healthy_loop();
  loop.forward += 60;  // The thread is blocked so long,
  loop.figures.use->forward.wall_s += kLoopSteps * 0.060;
  loop.figures.memory_stall_s = kLoopSteps * 0.050;  // and some task of the machine waited for memory.
  EXPECT_EQ(loop.verdict().first, Resource::synchronisation);
  loop.figures.use->forward.major_faults = 40;
  const ResourceVerdict verdict = loop.verdict();
  ASSERT_EQ(verdict.first, Resource::memory);
  EXPECT_THAT(verdict.sentence, HasSubstr("come back from a disk"));
  EXPECT_EQ(verdict.losses.size(), 1U);  // The rest of the waiting is small.
}

TEST(ResourceVerdict, WhereTheThreadLoadsByItselfNobodyTakesCoresFromCompute) {
  SampleLoop loop = healthy_loop();
  loop.figures.loading->num_workers = 0;
  const double step_s = 1e-3 * loop.step_ms();
  loop.figures.experiments.free_data = {0.8 * step_s, 0.79 * step_s,
                                        0.81 * step_s};  // The batch lies in the cores' caches.
  loop.figures.experiments.idle_compute_wait = 0;
  EXPECT_TRUE(loop.verdict().healthy) << loop.verdict().sentence;
  loop.figures.loading->num_workers = 2;
  EXPECT_EQ(loop.verdict().first, Resource::cores);
}

TEST(ResourceVerdict, BatchesThatDifferAreAnImbalanceWhereTheirMeanWouldDo) {
  SampleLoop loop = healthy_loop();
  // Of two workers one takes 320 ms and the other 20: with 170 ms each, compute of 99 ms would hide them.
  for (int i = 0; i < 32; ++i) loop.figures.loading->batch_s.push_back(i % 2 == 0 ? 0.32 : 0.02);
  loop.figures.loading->prefetch_batches = 4;
  loop.data_wait += 60;
  loop.use(loop.forward, loop.other);
  const ResourceVerdict verdict = loop.verdict();
  EXPECT_EQ(verdict.first, Resource::imbalance) << verdict.sentence;
  EXPECT_THAT(verdict.losses.front().keys, Contains("data.prefetch_batches"));
}

// Of one worker that is as slow as two together would be fast enough.
TEST(ResourceVerdict, ALoaderOfOneWorkerIsToldToTakeMore) {
  SampleLoop loop = healthy_loop();
  loop.figures.loading->num_workers = 1;
  slow_down_loading(loop, &LoadingStages::decode_s, 40);
  const ResourceVerdict verdict = loop.verdict();
  EXPECT_EQ(verdict.first, Resource::decode) << verdict.sentence;
  EXPECT_THAT(verdict.sentence, Not(HasSubstr("no worker loads ahead")));
  EXPECT_THAT(verdict.losses.front().keys, Contains("data.num_workers"));
}

TEST(ResourceVerdict, WithoutTheLoadersStagesNobodyIsAccusedOfAWait) {
  SampleLoop loop = healthy_loop();
  loop.figures.loading.reset();
  loop.data_wait = 60;
  loop.use(loop.forward, loop.other);
  const ResourceVerdict verdict = loop.verdict();
  EXPECT_FALSE(verdict.first);
  EXPECT_FALSE(verdict.healthy);
  EXPECT_FALSE(verdict.confirmed);
  EXPECT_EQ(verdict.to_confirm, "");  // It names nothing.
  EXPECT_THAT(verdict.sentence, StartsWith("what runs out first is not known: the loop waits for data"));
  EXPECT_THAT(verdict.unavailable, Contains(HasSubstr("nobody timed the loader's stages")));
}

TEST(ResourceVerdict, AThreadThatLoadsByItselfTellsReadingFromDecodingByWhetherItWaits) {
  SampleLoop loop = healthy_loop();
  loop.figures.loading = LoadingStages{};
  loop.data_wait = 60;
  loop.use(loop.forward, loop.other);
  EXPECT_EQ(loop.verdict().first, Resource::storage);
  loop.figures.use->data_wait.cpu_s = loop.figures.use->data_wait.wall_s;
  EXPECT_EQ(loop.verdict().first, Resource::decode);
}

TEST(ResourceVerdict, WithoutTheThreadsUseTimeInNoPartIsNotBlamedOnPython) {
  SampleLoop loop;
  loop.other = 60;
  const ResourceVerdict verdict = loop.verdict();
  EXPECT_FALSE(verdict.first);
  EXPECT_THAT(verdict.sentence, HasSubstr("lies in no part"));
  EXPECT_THAT(verdict.unavailable, Contains(StartsWith("python, synchronisation, memory:")));
}

TEST(ResourceVerdict, AKernelThatCountsNoRunDelayIsSaid) {
  SampleLoop loop = healthy_loop();
  loop.figures.run_delay_known = false;
  EXPECT_THAT(loop.verdict().unavailable, Contains(StartsWith("cores: the kernel does not tell")));
}

TEST(ResourceVerdict, StepsThatScatterMakeItLessSure) {
  SampleLoop loop = healthy_loop();
  loop.optimizer += 11;
  loop.use(loop.forward, loop.other);
  TimeSplit split = loop.split();
  const double steady = judge_resources(split, loop.figures).confidence;
  for (std::size_t i = 0; i < split.parts.size(); ++i) split.parts[i].optimizer_s *= i % 8 < 4 ? 1.9 : 0.1;
  const ResourceVerdict scattered = judge_resources(split, loop.figures);
  EXPECT_LT(scattered.confidence, steady);
  EXPECT_LT(scattered.losses.front().gain_low, judge_resources(loop.split(), loop.figures).losses.front().gain_low);
}

// 7.4 % of a step in the optimizer goes before 7.6 % in each of four stages that share the loader's time.
TEST(ResourceVerdict, ALossBelowTheLimitHidesNoneAboveIt) {
  SampleLoop loop;
  LoadingStages& loading = *loop.figures.loading;
  loading.read_s = loading.decode_s = loading.augment_s = loading.collate_s = 0.05;
  loop.data_wait = 7.6;
  loop.optimizer += 7.4;
  loop.forward = 19;
  loop.use(loop.forward, loop.other);
  const ResourceVerdict verdict = loop.verdict();
  EXPECT_FALSE(verdict.healthy);
  EXPECT_EQ(verdict.first, Resource::storage) << verdict.sentence;
  EXPECT_EQ(verdict.losses.size(), 4U);
}

TEST(ResourceVerdict, RefusesWhatIsNoFigure) {
  const SampleLoop loop = healthy_loop();
  EXPECT_THROW(judge_resources({}, loop.figures), Error);
  for (const auto& spoil : std::vector<std::function<void(ResourceFigures&)>>{
           [](ResourceFigures& figures) { figures.garbage_s = -1; },
           [](ResourceFigures& figures) { figures.loading->decode_s = -1; },
           [](ResourceFigures& figures) { figures.loading->num_workers = -1; },
           [](ResourceFigures& figures) { figures.use->other.cpu_s = std::nan(""); },
           [](ResourceFigures& figures) {
             figures.rank_busy_s = {1, -1};
           },
           [](ResourceFigures& figures) { figures.peak_flops_per_s = INFINITY; },
           [](ResourceFigures& figures) { figures.update_bytes = -1; },
           [](ResourceFigures& figures) { figures.transfer_bytes = -1; },
           [](ResourceFigures& figures) { figures.experiments.idle_compute_wait = -1; }}) {
    ResourceFigures figures = loop.figures;
    spoil(figures);
    EXPECT_THROW(judge_resources(loop.split(), figures), Error);
  }
}

TEST(ResourceVerdict, JsonSaysNullForWhatIsNotKnown) {
  SampleLoop loop = healthy_loop();
  loop.optimizer += 60;
  loop.use(loop.forward, loop.other);
  loop.figures.peak_flops_per_s.reset();
  const ResourceVerdict verdict = loop.verdict();
  const nlohmann::ordered_json json = to_json(verdict);
  EXPECT_EQ(json["first"], "optimizer");
  EXPECT_EQ(json["healthy"], false);
  EXPECT_EQ(json["confirmed"], false);
  EXPECT_EQ(json["to_confirm"], verdict.to_confirm);
  EXPECT_TRUE(json["peak_share"].is_null());
  EXPECT_NEAR(json["shares"]["compute"].get<double>(), verdict.shares->compute, 1e-12);
  EXPECT_EQ(json["losses"][0]["resource"], "optimizer");
  EXPECT_NEAR(json["losses"][0]["gain"]["middle"].get<double>(), verdict.losses[0].gain, 1e-12);
  EXPECT_EQ(nlohmann::ordered_json::parse(json_text(verdict)), json);
}

TEST(ResourceVerdict, IsAFindingOfTheDiagnosisWithTheSettingsToChange) {
  SampleLoop loop = healthy_loop();
  slow_down_loading(loop, &LoadingStages::decode_s, 40);
  DiagnosisInput input;
  input.split = loop.split();
  input.samples_per_step = 32;
  input.cores = 4;
  EXPECT_FALSE(diagnose(input).resources);
  EXPECT_EQ(diagnose(input).verdict(), diagnose(input).sentence);
  input.resources = loop.figures;
  const Diagnosis diagnosis = diagnose(input);
  ASSERT_FALSE(diagnosis.findings.empty());
  EXPECT_EQ(diagnosis.findings.front().code, "decode_limits");
  EXPECT_THAT(diagnosis.findings.front().suggestions.front().keys, Contains("data.cache"));
  EXPECT_EQ(diagnosis.verdict(), diagnosis.resources->sentence);
  EXPECT_EQ(to_json(diagnosis)["resources"]["first"], "decode");
}

}  // namespace
}  // namespace headrace
