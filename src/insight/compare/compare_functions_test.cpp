#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/compare_functions.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>

#include "core/base/error_of.h"

namespace headrace {
namespace {

using testing::HasSubstr;

constexpr double kCall = 1.0 / 1024, kSample = 1.0 / 64;  // Seconds; sums of these are exact.

// Functions on a clock that they alone move on.
class FakeFunctions {
 public:
  // `scatter`: of the log of a call's time, which is normal. The same draws every time.
  explicit FakeFunctions(double scatter = 0) : scatter_(scatter) {}

  ComparedFunction taking(double seconds, char letter = '.') {
    return [this, seconds, letter] {
      now_s_ += seconds * std::exp(scatter_ * normal_(random_));
      called_ += letter;
    };
  }
  CompareClock clock() {
    return [this] { return now_s_; };
  }
  const std::string& called() const { return called_; }

 private:
  double scatter_;
  double now_s_ = 0;
  std::string called_;
  std::mt19937_64 random_{5};
  std::normal_distribution<double> normal_;
};

// With a call of kSample a sample is one call, whose scatter is the sample's.
FunctionComparison compare(FakeFunctions& functions, double old_s, double new_s, CompareFunctionsOptions options = {}) {
  if (options.seed == 0) options.seed = 1;
  options.sample_s = kSample;
  return compare_functions(functions.taking(old_s, 'o'), functions.taking(new_s, 'n'), options, functions.clock());
}

// How often a verdict is reached where pairs scatter by 4 %.
int count_of(MetricChange wanted, int comparisons, double slowdown) {
  FakeFunctions functions(0.04 / std::sqrt(2.0));
  int count = 0;
  for (int i = 1; i <= comparisons; ++i) {
    const FunctionComparison found =
        compare(functions, 2 * kSample, 2 * kSample * (1 + slowdown), {.seed = static_cast<std::uint64_t>(i)});
    count += found.change == wanted;
  }
  return count;
}

TEST(CompareFunctions, AFunctionIsEquivalentToItself) {
  EXPECT_GE(count_of(MetricChange::equivalent, 100, 0), 95);
}

TEST(CompareFunctions, OneThatIsTenPercentSlowerIsFound) {
  EXPECT_EQ(count_of(MetricChange::regressed, 20, 0.1), 20);
}

TEST(CompareFunctions, TellsByHowMuchAndEndsAsSoonAsItIsDecided) {
  FakeFunctions functions(0.001);
  const FunctionComparison slower = compare(functions, 2 * kSample, 2.2 * kSample);
  EXPECT_EQ(slower.change, MetricChange::regressed);
  EXPECT_NEAR(slower.slowdown.median, 0.1, 0.005);
  EXPECT_LT(slower.slowdown.low, slower.slowdown.median);
  EXPECT_GT(slower.slowdown.high, slower.slowdown.median);
  EXPECT_NEAR(slower.old_s, 2 * kSample, 0.01 * kSample);
  EXPECT_LT(slower.pairs.size(), 20);
  EXPECT_EQ(slower.why_undecided, "");
  EXPECT_EQ(compare(functions, 2.2 * kSample, 2 * kSample).change, MetricChange::improved);
}

TEST(CompareFunctions, AChangeWithinTheToleranceIsNone) {
  FakeFunctions functions(0.001);
  EXPECT_EQ(compare(functions, 2 * kSample, 2.2 * kSample, {.tolerance = 0.2}).change, MetricChange::equivalent);
}

TEST(CompareFunctions, ASampleHasAsManyCallsAsTakeLongEnough) {
  FakeFunctions functions;
  EXPECT_EQ(compare(functions, kCall, kCall).calls, 16) << "1/64 s of calls of 1/1024 s";
  EXPECT_EQ(compare(functions, 4 * kCall, kCall).calls, 16) << "the faster one decides";
  EXPECT_EQ(compare(functions, kCall, 100 * kSample).calls, 1) << "the slower one's samples have a limit";
  EXPECT_EQ(compare(functions, 2 * kSample, 2 * kSample).calls, 1);
}

TEST(CompareFunctions, WarmUpIsNotMeasured) {
  double now_s = 0;
  int calls = 0;
  const auto slow_at_first = [&] { now_s += ++calls <= 5 ? 1 : kCall; };
  const FunctionComparison found = compare_functions(
      slow_at_first, [&] { now_s += kCall; }, {.sample_s = kSample, .warmup_calls = 5, .seed = 1},
      [&] { return now_s; });
  EXPECT_EQ(found.calls, 16);
  for (const FunctionPair& pair : found.pairs) EXPECT_EQ(pair.old_s, kCall);
}

TEST(CompareFunctions, TheOrderWithinEachPairIsDrawnAndTold) {
  const auto run = [](std::uint64_t seed) {
    FakeFunctions functions(0.3);
    const FunctionComparison found =
        compare(functions, 8 * kSample, 8 * kSample, {.pairs = 40, .warmup_calls = 0, .seed = seed});
    EXPECT_EQ(found.calls, 1);
    std::string expected = "on";  // One call of each to find how long it takes.
    for (const FunctionPair& pair : found.pairs) expected += pair.old_first ? "on" : "no";
    EXPECT_EQ(functions.called(), expected);
    return expected;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
  EXPECT_THAT(run(1), HasSubstr("onno"));
  EXPECT_THAT(run(1), HasSubstr("noon"));
}

TEST(CompareFunctions, WhatALimitEndsIsInconclusiveAndSaysWhich) {
  FakeFunctions functions(0.2);
  const FunctionComparison few = compare(functions, 2, 2, {.pairs = 5, .budget_s = 1000});
  EXPECT_EQ(few.change, MetricChange::inconclusive);
  EXPECT_EQ(few.pairs.size(), 5);
  EXPECT_EQ(few.why_undecided, "not decided after all of its 5 pairs");
  EXPECT_THAT(report_text(few), HasSubstr("Note: not decided after all of its 5 pairs"));
  const FunctionComparison short_of_time = compare(functions, 2, 2, {.budget_s = 1});
  EXPECT_EQ(short_of_time.change, MetricChange::inconclusive);
  EXPECT_EQ(short_of_time.pairs.size(), 1) << "the first always runs";
  EXPECT_EQ(short_of_time.why_undecided, "not decided after 1 pair, as budget_s (1 s) was used up");
}

TEST(CompareFunctions, WhatIsOpenTellsThePairsThatItNeeds) {
  FakeFunctions functions;
  const ComparedFunction slow = functions.taking(2.4 * kSample), fast = functions.taking(2 * kSample / 1.2);
  int calls = 0;
  const auto unsteady = [&] { ++calls % 2 == 0 ? slow() : fast(); };
  const FunctionComparison found = compare_functions(functions.taking(2 * kSample), unsteady,
                                                     {.pairs = 10, .sample_s = kSample, .seed = 1}, functions.clock());
  EXPECT_EQ(found.change, MetricChange::inconclusive);
  EXPECT_NEAR(found.scatter, 1.4826 * std::log(1.2), 1e-9);
  // 13 * (scatter / log 1.02)^2, less the ten.
  EXPECT_NEAR(static_cast<double>(found.pairs_needed.value()), 2412, 30);
}

TEST(CompareFunctions, AnExceptionOfAFunctionPassesThrough) {
  FakeFunctions functions;
  int calls = 0;
  const ComparedFunction takes = functions.taking(kSample);
  const auto throws = [&] {
    takes();
    if (++calls == 7) throw std::out_of_range("its own");
  };
  EXPECT_THROW(compare_functions(takes, throws, {.sample_s = kSample, .seed = 1}, functions.clock()),
               std::out_of_range);
}

TEST(CompareFunctions, BadOptionsAreRefusedBeforeAnythingRuns) {
  FakeFunctions functions;
  const ComparedFunction works = functions.taking(1);
  const auto message = [&](const CompareFunctionsOptions& options) {
    return error_of(ErrorCode::invalid_argument, [&] { compare_functions(works, works, options, functions.clock()); });
  };
  EXPECT_THAT(message({.pairs = 0}), HasSubstr("pairs: wanted 1 or more, found 0"));
  EXPECT_THAT(message({.budget_s = 0}), HasSubstr("budget_s: wanted seconds above 0, found 0"));
  EXPECT_THAT(message({.budget_s = std::numeric_limits<double>::quiet_NaN()}), HasSubstr("budget_s"));
  EXPECT_THAT(message({.sample_s = 1e-9}), HasSubstr("sample_s: wanted 0.0001 to 60 seconds, found 1e-09"));
  EXPECT_THAT(message({.warmup_calls = -1}), HasSubstr("warmup_calls: wanted 0 to 1000000, found -1"));
  EXPECT_THAT(message({.tolerance = 1}), HasSubstr("tolerance: wanted a share above 0 and below 1, found 1"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { compare_functions(works, {}); }),
              HasSubstr("new_function: wanted a function, found an empty one"));
  EXPECT_EQ(functions.called(), "");
}

TEST(CompareFunctions, AClockThatStandsStillIsRefused) {
  const auto nothing = [] {};
  EXPECT_THAT(
      error_of(ErrorCode::invalid_argument, [&] { compare_functions(nothing, nothing, {}, [] { return 7.0; }); }),
      HasSubstr("wanted a clock that goes on"));
}

TEST(CompareFunctions, JsonHasTheVerdictTheMachineAndEverySample) {
  FakeFunctions functions(0.001);
  const FunctionComparison found =
      compare(functions, 2 * kSample, 2.2 * kSample, {.seed = 3, .old_name = "before", .new_name = "after"});
  const auto document = nlohmann::json::parse(json_text(found));
  EXPECT_EQ(document.at("format"), "headrace-compare-functions");
  EXPECT_EQ(document.at("version"), 1);
  EXPECT_EQ(document.at("old"), "before");
  EXPECT_EQ(document.at("failure"), true);
  EXPECT_EQ(document.at("pairs"), found.pairs.size());
  const auto& metric = document.at("metrics").at(0);
  EXPECT_EQ(metric.at("name"), "call_s");
  EXPECT_EQ(metric.at("verdict"), "regressed");
  EXPECT_EQ(metric.at("change").at("median"), found.slowdown.median);
  const auto& samples = document.at("samples");
  EXPECT_EQ(samples.at("calls"), 1);
  ASSERT_EQ(samples.at("old_s").size(), found.pairs.size());
  for (std::size_t i = 0; i < found.pairs.size(); ++i) {
    EXPECT_EQ(samples.at("old_s").at(i), found.pairs[i].old_s);
    EXPECT_EQ(samples.at("new_s").at(i), found.pairs[i].new_s);
    EXPECT_EQ(samples.at("old_first").at(i), found.pairs[i].old_first);
    EXPECT_NEAR(document.at("recorded").at("effects").at(i).at(0).get<double>(),
                std::log(found.pairs[i].new_s / found.pairs[i].old_s), 1e-12);
  }
  EXPECT_EQ(document.at("options").at("seed"), 3);
  EXPECT_TRUE(document.at("machine").contains("CPU"));
  EXPECT_THAT(report_text(found), testing::AllOf(HasSubstr("OLD before"), HasSubstr("NEW is worse than OLD: call_s")));
}

}  // namespace
}  // namespace headrace
