#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/diagnosis.h>
#include <headrace/error.h>
#include <headrace/operator_steps.h>
#include <headrace/resource_verdict.h>
#include <headrace/wall_split.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "insight/diagnose/sample_loop.h"
#include "insight/diagnose/sample_operators.h"
#include "insight/diagnose/sample_trace.h"

namespace headrace {
namespace {

using testing::Contains;
using testing::StartsWith;

constexpr std::int64_t kMillisecond = 1'000'000;

ResourceVerdict verdict_of(const TraceRecord& record) {
  return judge_resources(split_time(record), figures_in(record));
}

TEST(ResourceEvidence, WhatForwardAndBackwardSpendInNoOperatorIsTheInterpreters) {
  const TraceRecord record = with_operator_steps(sample_operators(/*between_ms=*/4));
  EXPECT_NEAR(figures_in(record).python_in_compute_s.value(), 3 * 0.004, 1e-12);
  EXPECT_NEAR(figures_in(record, /*skip=*/1).python_in_compute_s.value(), 2 * 0.004, 1e-12);
  const ResourceVerdict verdict = verdict_of(with_operator_steps(sample_operators(/*between_ms=*/15)));
  ASSERT_FALSE(verdict.losses.empty());
  EXPECT_EQ(verdict.losses.front().resource, Resource::python);
  EXPECT_THAT(verdict.losses.front().evidence, StartsWith("between its operators, forward and backward spend 15"));
}

TEST(ResourceEvidence, APartWithoutOperatorsTellsNothingOfTheInterpreter) {
  EXPECT_NEAR(figures_in(sample_trace()).python_in_compute_s.value(), 40 * 0.001, 1e-12);  // Of forward alone.
  TraceRecord record = sample_trace();
  for (TraceRecord::Name& name : record.names) {
    if (name.category == "operator") name.category = "work";
  }
  EXPECT_EQ(figures_in(record).python_in_compute_s, std::nullopt);
}

TEST(ResourceEvidence, StagesOfLoadingAreThoseOfTheirSpansAndAnInnerOneIsNotCountedTwice) {
  TraceRecord record = sample_trace();  // "read" takes 6 ms a step on "loader 0".
  record.names.push_back({"decode", "work"});
  const auto decode = static_cast<std::uint32_t>(record.names.size() - 1);
  std::int64_t begin = 0;
  for (std::int64_t k = 0; k < 40; ++k) {
    record.events.push_back({decode, 1, begin + 3 * kMillisecond, begin + 5 * kMillisecond, 0});
    begin += (20 + k % 5) * kMillisecond;
  }
  const std::optional<LoadingStages> loading = figures_in(record).loading;
  ASSERT_TRUE(loading);
  EXPECT_NEAR(loading->read_s, 0.004, 1e-12);
  EXPECT_NEAR(loading->decode_s, 0.002, 1e-12);
  EXPECT_EQ(loading->num_workers, 1);
}

TEST(ResourceEvidence, AWaitForAStageThatATraceNamesIsTheStages) {
  TraceRecord record = with_operator_steps(sample_operators());
  record.names.push_back({"read", "work"});
  const auto read = static_cast<std::uint32_t>(record.names.size() - 1);
  for (std::int64_t k = 0; k < 3; ++k) {
    record.events.push_back({read, 0, 100 * k * kMillisecond, (100 * k + 19) * kMillisecond, 0});
  }
  const ResourceVerdict verdict = verdict_of(record);
  EXPECT_EQ(verdict.first, Resource::storage) << verdict.sentence;
  EXPECT_EQ(figures_in(record).loading->num_workers, 0);
}

TEST(ResourceEvidence, TimeWithoutACoreIsThatOfTheStepsThatAreNotSkipped) {
  TraceRecord record = sample_trace();
  EXPECT_EQ(figures_in(record).thread_delay_s, std::nullopt);
  record.names.push_back({loop::kCpuTaken.text, loop::kCpuTaken.category});
  const auto taken = static_cast<std::uint32_t>(record.names.size() - 1);
  std::int64_t end = 0;
  for (std::int64_t k = 0; k < 40; ++k) {
    end += (20 + k % 5) * kMillisecond;
    record.events.push_back({taken, 0, end + 10, end + 10, 6 * kMillisecond});
  }
  EXPECT_NEAR(figures_in(record).thread_delay_s.value(), 40 * 0.006, 1e-12);
  EXPECT_NEAR(figures_in(record, 10).thread_delay_s.value(), 30 * 0.006, 1e-12);
  EXPECT_EQ(verdict_of(record).first, Resource::cores);
}

TEST(ResourceEvidence, WhatATraceCannotTellIsUnavailableWithTheReason) {
  TraceRecord record = sample_trace();
  for (TraceRecord::Name& name : record.names) {
    if (name.text == "read") name.text = "something";
  }
  const ResourceVerdict verdict = verdict_of(record);
  EXPECT_FALSE(verdict.peak_share);
  EXPECT_FALSE(verdict.shares);
  EXPECT_THAT(verdict.unavailable, Contains(StartsWith("storage, decode, augment, collate:")));
  EXPECT_THAT(verdict.unavailable, Contains(StartsWith("the loop's own code, synchronisation, memory:")));
  EXPECT_THAT(verdict.unavailable, Contains(StartsWith("cores:")));
}

TEST(ResourceEvidence, AVerdictThatNamesNothingLeavesTheDiagnosisItsSentence) {
  TraceRecord record = sample_operators();
  record = with_operator_steps(std::move(record));
  DiagnosisInput input;
  input.split = split_time(record);
  input.samples_per_step = 32;
  input.resources = figures_in(record);
  const Diagnosis diagnosis = diagnose(input);
  ASSERT_TRUE(diagnosis.resources);
  EXPECT_FALSE(diagnosis.resources->first);  // A fifth of a step is waited for data, and no stage has a name.
  EXPECT_THAT(diagnosis.verdict(), StartsWith("data-bound: 20 % of a step waits for data"));
}

TEST(ResourceEvidence, WithoutTheThreadsUseOnlyWhatWasRecordedIsCalledWell) {
  const ResourceVerdict verdict = SampleLoop{}.verdict();
  EXPECT_EQ(verdict.first, Resource::compute);
  EXPECT_THAT(verdict.sentence, StartsWith("nothing that was recorded is wrong: compute-bound"));
}

TEST(ResourceEvidence, ARecordWithoutStepsIsRefused) {
  EXPECT_THROW(figures_in(TraceRecord{}), Error);
  EXPECT_THROW(figures_in(sample_trace(), 40), Error);
}

}  // namespace
}  // namespace headrace
