#include "torch/train/operator_spans.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sum.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/operator_category.h>
#include <headrace/trace.h>

#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headrace {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

// Name and category of the operators of a record, in the order in which they began.
std::vector<std::pair<std::string, std::string>> operators_of(const TraceRecord& record) {
  std::vector<std::pair<std::string, std::string>> found;
  for (const TraceEvent& event : record.events) {
    const TraceRecord::Name& name = record.names[event.name];
    if (name.category.starts_with(operators::kCategory)) found.emplace_back(name.text, name.category);
  }
  return found;
}

at::Tensor multiply(const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b) {
  return at::addmm(bias, a, b);
}

TEST(OperatorSpans, OperatorsAreSpansWithTheShapesOfTheirArguments) {
  const at::Tensor bias = at::ones({4}), a = at::ones({2, 3}), b = at::ones({3, 4});
  Trace trace;
  {
    const OperatorSpans spans({.record_shapes = true});
    multiply(bias, a, b);
  }
  multiply(bias, a, b);  // After its end.
  const auto found = operators_of(trace.stop());
  EXPECT_THAT(found, Contains(Pair("aten::addmm", "operator [[4], [2, 3], [3, 4], [], []]")).Times(1));
}

TEST(OperatorSpans, ValuesAreTheBytesThatACallKeeps) {
  constexpr std::int64_t kBytes = 1 << 20;
  Trace trace;
  at::Tensor kept;
  {
    const OperatorSpans spans({.profile_memory = true});
    kept = at::empty({kBytes}, at::kByte);
  }
  const TraceRecord record = trace.stop();
  std::vector<std::int64_t> kept_bytes, gauges;
  for (const TraceEvent& event : record.events) {
    const TraceRecord::Name& name = record.names[event.name];
    if (name.category == operators::kCategoryWithMemory) kept_bytes.push_back(event.value);
    if (name.text == operators::kMemory.text) gauges.push_back(event.value);
  }
  EXPECT_THAT(kept_bytes, ElementsAre(kBytes));
  EXPECT_EQ(gauges.size(), 1U);
}

TEST(OperatorSpans, ScopesOfRecordFunctionAreThereAndWhatOpensThemIsNot) {
  Trace trace;
  {
    const OperatorSpans spans;
    { RECORD_USER_SCOPE("mine"); }
    RECORD_FUNCTION("aten::is_leaf", c10::ArrayRef<const c10::IValue>{});
  }
  EXPECT_THAT(operators_of(trace.stop()), ElementsAre(Pair("mine", "operator")));
}

TEST(OperatorSpans, NamesThatChangeAtOneAddressAreToldApart) {
  std::string name = "mine A";  // Short enough for LibTorch's copy to lie in the scope itself, at one place each time.
  Trace trace;
  {
    const OperatorSpans spans;
    for (const char last : {'A', 'B', 'B', 'A'}) {
      name.back() = last;
      { RECORD_USER_SCOPE(name.c_str()); }
      { RECORD_FUNCTION(name.c_str(), c10::ArrayRef<const c10::IValue>{}); }
    }
  }
  std::vector<std::string> found;
  for (const auto& [text, category] : operators_of(trace.stop())) found.push_back(text);
  EXPECT_THAT(found, ElementsAre("mine A", "mine A", "mine B", "mine B", "mine B", "mine B", "mine A", "mine A"));
}

TEST(OperatorSpans, NodesOfABackwardHaveTheirNamesEachTime) {
  const std::string evaluation = "autograd::engine::evaluate_function: ";
  const at::Tensor weight = at::ones({2}).requires_grad_();
  Trace trace;
  {
    const OperatorSpans spans;
    for (int i = 0; i < 3; ++i) at::sum(at::sigmoid(at::relu(weight))).backward();
  }
  const auto found = operators_of(trace.stop());
  for (const std::string name :
       {"SumBackward0", "SigmoidBackward0", "ReluBackward0", "torch::autograd::AccumulateGrad"}) {
    EXPECT_THAT(found, Contains(Pair(name, "operator")).Times(3));
    EXPECT_THAT(found, Contains(Pair(evaluation + name, "operator")).Times(3));
  }
}

TEST(OperatorSpans, OperatorsOfAThreadThatHasEndedAreRecorded) {
  Trace trace;
  for (int i = 0; i < 2; ++i) {
    std::thread([] {
      const OperatorSpans spans;
      at::empty({2});
    }).join();
  }
  const std::pair<std::string, std::string> empty{"aten::empty", "operator"};
  EXPECT_THAT(operators_of(trace.stop()), ElementsAre(empty, empty));
}

TEST(OperatorSpans, OtherThreadsAreNotObserved) {
  Trace trace;
  const OperatorSpans spans;
  std::thread([] { at::ones({2}); }).join();
  EXPECT_THAT(operators_of(trace.stop()), IsEmpty());
}

TEST(OperatorSpans, ASecondRecordingOfAThreadIsRefusedAndTheFirstOneGoesOn) {
  Trace trace;
  {
    const OperatorSpans spans;
    EXPECT_THROW(OperatorSpans{}, Error);
    at::ones({2});
  }
  EXPECT_THAT(operators_of(trace.stop()), Contains(Pair("aten::ones", "operator")));
  EXPECT_FALSE(at::hasThreadLocalCallbacks());
}

TEST(OperatorSpans, WithoutATraceNothingIsRecorded) {
  const OperatorSpans spans;
  at::ones({2});
  Trace trace;
  EXPECT_THAT(operators_of(trace.stop()), IsEmpty());
}

TEST(OperatorSpans, WhatBeganBeforeTheTraceIsNotRecordedAndWhatItHoldsIs) {
  const OperatorSpans spans;
  std::optional<Trace> trace;
  {
    RECORD_USER_SCOPE("mine");
    trace.emplace();
    at::empty({2});
  }
  EXPECT_THAT(operators_of(trace->stop()), ElementsAre(Pair("aten::empty", "operator")));
}

TEST(OperatorSpans, AnOperatorThatOutlivesTheTraceIsNotRecorded) {
  const OperatorSpans spans;
  std::vector<std::pair<std::string, std::string>> found;
  {
    Trace trace;
    RECORD_USER_SCOPE("mine");
    at::empty({2});
    found = operators_of(trace.stop());
  }
  EXPECT_THAT(found, ElementsAre(Pair("aten::empty", "operator")));
  Trace after;
  EXPECT_THAT(operators_of(after.stop()), IsEmpty());
}

TEST(OperatorSpans, OfSampledStepsThoseOfEveryNthAreRecorded) {
  Trace trace{{.choice = {.every_steps = 2}}};
  {
    const OperatorSpans spans({.record_shapes = true});
    for (std::int64_t step = 0; step < 5; ++step) {
      begin_traced_step(step);
      at::relu(at::empty({step + 1}));
    }
  }
  std::vector<std::pair<std::string, std::string>> relu = operators_of(trace.stop());
  std::erase_if(relu, [](const auto& one) { return one.first != "aten::relu"; });
  EXPECT_THAT(relu, ElementsAre(Pair("aten::relu", "operator [[1]]"), Pair("aten::relu", "operator [[3]]"),
                                Pair("aten::relu", "operator [[5]]")));
}

TEST(OperatorSpans, FunctionsOfTorchScriptAreThereAndScopesOfInferenceAloneAreNot) {
  Trace trace;
  {
    const OperatorSpans spans;
    { RECORD_TORCHSCRIPT_FUNCTION("forward", c10::ArrayRef<const c10::IValue>{}); }
    {
      RECORD_FUNCTION_WITH_SCOPE(at::RecordScope::LITE_INTERPRETER, "lite", c10::ArrayRef<const c10::IValue>{});
      at::empty({2});
    }
  }
  EXPECT_THAT(operators_of(trace.stop()), ElementsAre(Pair("forward", "operator"), Pair("aten::empty", "operator")));
}

TEST(OperatorSpans, ALongListOfShapesIsCutAndSaysSo) {
  const std::vector<c10::IValue> arguments(200, c10::IValue(at::ones({1})));
  Trace trace;
  {
    const OperatorSpans spans({.record_shapes = true});
    RECORD_FUNCTION("many", c10::ArrayRef<const c10::IValue>(arguments.data(), arguments.size()));
  }
  const auto found = operators_of(trace.stop());
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0].second, testing::EndsWith("[1], ...]"));
}

TEST(OperatorSpans, EveryNameAndShapeOfManyIsTold) {
  Trace trace({.events_per_thread = 1 << 15});
  {
    const OperatorSpans spans({.record_shapes = true});
    for (std::int64_t size = 1; size <= 3000; ++size) at::empty({2, size}).relu();  // More than a thread remembers.
  }
  std::vector<std::pair<std::string, std::string>> relu = operators_of(trace.stop());
  std::erase_if(relu, [](const auto& one) { return one.first != "aten::relu"; });
  ASSERT_EQ(relu.size(), 3000U);
  EXPECT_EQ(relu[0].second, "operator [[2, 1]]");
  EXPECT_EQ(relu[2999].second, "operator [[2, 3000]]");
}

}  // namespace
}  // namespace headrace
