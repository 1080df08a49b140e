#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/operator_category.h>
#include <headrace/operator_steps.h>
#include <headrace/time_split.h>

#include <cstdint>
#include <string>
#include <vector>

#include "insight/diagnose/sample_operators.h"

namespace headrace {
namespace {

TEST(OperatorSteps, PartsAreThoseOfTorchsScopesAndOperatorsBeforeABackwardAreForward) {
  const TimeSplit split = split_time(with_operator_steps(sample_operators()));
  ASSERT_EQ(split.steps, 3);
  EXPECT_NEAR(split.total_s, 3 * 0.100, 1e-12);
  EXPECT_NEAR(split.data_wait_s, 3 * 0.020, 1e-12);
  EXPECT_NEAR(split.forward_s, 3 * 0.030, 1e-12);    // From its first operator to its last one.
  EXPECT_NEAR(split.backward_s, 3 * 0.025, 1e-12);   // Nodes of autograd, and not the operators in them.
  EXPECT_NEAR(split.optimizer_s, 3 * 0.012, 1e-12);  // With the clipping before it.
  EXPECT_NEAR(split.other_s, 3 * 0.013, 1e-12);
}

TEST(OperatorSteps, AScopeOfTheUsersAroundAStepHidesNothingOfIt) {
  TraceRecord record = sample_operators();
  const TimeSplit before = split_time(with_operator_steps(record));
  record.names.push_back({"train_step", "operator"});
  const auto scope = static_cast<std::uint32_t>(record.names.size() - 1);
  for (std::int64_t k = 0; k < 3; ++k) {
    record.events.push_back({scope, 0, k * 100'000'000 + 1, k * 100'000'000 + 99'000'000, 0});
  }
  const TimeSplit split = split_time(with_operator_steps(record));
  EXPECT_EQ(split.forward_s, before.forward_s);
  EXPECT_EQ(split.backward_s, before.backward_s);
  EXPECT_EQ(split.optimizer_s, before.optimizer_s);
}

TEST(OperatorSteps, AStepWithoutABackwardHasNoPartsButItsData) {
  TraceRecord record = sample_operators();
  for (TraceRecord::Name& name : record.names) {
    if (name.text.starts_with("autograd::")) name.text = "aten::other";
  }
  const TimeSplit split = split_time(with_operator_steps(record));
  EXPECT_NEAR(split.data_wait_s, 3 * 0.020, 1e-12);
  EXPECT_EQ(split.forward_s + split.backward_s + split.optimizer_s, 0);
}

TEST(OperatorSteps, ARecordWithStepsOfItsOwnOrWithoutOperatorsComesBackAsItIs) {
  TraceRecord steps = with_operator_steps(sample_operators());
  const std::size_t events = steps.events.size();
  EXPECT_EQ(with_operator_steps(steps).events.size(), events);
  EXPECT_TRUE(with_operator_steps(TraceRecord{}).events.empty());
}

TEST(OperatorSteps, ARecordThatContradictsItselfIsRefused) {
  TraceRecord record = sample_operators();
  record.events.back().name = 1000;
  EXPECT_THROW(with_operator_steps(record), Error);
}

}  // namespace
}  // namespace headrace
