#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/strategy_switch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/knobs/strategy_library.h"
#include "app/knobs/strategy_name.h"
#include "app/knobs/strategy_offer.h"
#include "core/base/error_of.h"
#include "core/hardware/machine.h"
#include "insight/tune/fake_live_loop.h"
#include "insight/tune/tuner.h"

namespace headrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Of a job of one's own: what its strategies work on.
struct PaceContext final : StrategyContext {
  double* step_s = nullptr;
};

// Makes steps take longer or shorter, writes down what it is asked, and throws where it is told to.
class Pace final : public Strategy {
 public:
  Pace(std::string name, double factor, std::vector<std::string>& calls)
      : name_(std::move(name)), factor_(factor), calls_(calls) {}

  std::string_view name() const noexcept override { return name_; }
  std::string sentence() const override {
    throw_in("sentence");
    return "Another pace.";
  }
  NumericClass numerics() const noexcept override { return numeric_class; }
  std::string why_not(const StrategyContext& /*context*/) const override {
    throw_in("why_not");
    return reason;
  }
  void apply(const StrategyContext& context) override {
    note("apply");
    if (double* step_s = step_of(context)) *step_s *= factor_;
    throw_in("apply");
  }
  void undo(const StrategyContext& context) override {
    note("undo");
    if (double* step_s = step_of(context)) *step_s /= factor_;
    throw_in("undo");
  }
  std::string verify(const StrategyContext& /*context*/) override {
    note("verify");
    throw_in("verify");
    return wrong;
  }

  NumericClass numeric_class = NumericClass::bit_equal;
  std::string reason, wrong, throws_in;
  bool is_cancelled = false;

 private:
  static double* step_of(const StrategyContext& context) {
    const auto* own = dynamic_cast<const PaceContext*>(&context);
    return own == nullptr ? nullptr : own->step_s;
  }
  void note(const char* function) { calls_.push_back(name_ + " " + function); }
  void throw_in(std::string_view function) const {
    if (throws_in != function) return;
    if (is_cancelled) throw Error(ErrorCode::cancelled, "stopped");
    throw std::runtime_error("broken.\nat line 1");
  }

  std::string name_;
  double factor_;
  std::vector<std::string>& calls_;
};

class Strategies : public testing::Test {
 protected:
  // As many as there are names, all of them known to the switch.
  std::shared_ptr<Pace> add(const std::string& name, double factor = 1) {
    all_.push_back(std::make_shared<Pace>(name, factor, calls));
    return std::static_pointer_cast<Pace>(all_.back());
  }
  StrategySwitch& use() {
    switch_ = std::make_unique<StrategySwitch>(all_);
    return *switch_;
  }
  Settings set(const Settings& settings) { return switch_->set(settings, context); }
  std::string error_of_setting(ErrorCode code, const Settings& settings) {
    return error_of(code, [&] { set(settings); });
  }

  std::vector<std::string> calls;
  StrategyContext context;

 private:
  std::vector<std::shared_ptr<Strategy>> all_;
  std::unique_ptr<StrategySwitch> switch_;
};

const Settings kA{{"custom.a", "true"}}, kB{{"custom.b", "true"}}, kBoth{{"custom.a", "true"}, {"custom.b", "true"}};

// ---- What is registered ----

TEST(StrategyRegistry, HoldsStrategiesInTheirOrderUntilTheyAreTakenBack) {
  std::vector<std::string> calls;
  for (const char* name : {"zebra", "apple"}) register_strategy(std::make_shared<Pace>(name, 1, calls));
  const StrategySwitch under_way;
  EXPECT_THAT(under_way.keys(), ElementsAre("custom.zebra", "custom.apple"));
  EXPECT_THAT(
      error_of(ErrorCode::invalid_argument, [&] { register_strategy(std::make_shared<Pace>("zebra", 1, calls)); }),
      HasSubstr("found \"zebra\", which is registered"));
  unregister_strategy("zebra");
  EXPECT_THAT(StrategySwitch().keys(), ElementsAre("custom.apple"));
  EXPECT_EQ(under_way.keys().size(), 2u);  // To its end.
  EXPECT_EQ(error_of(ErrorCode::not_found, [] { unregister_strategy("zebra"); }),
            "strategy: none is registered as \"zebra\"");
  unregister_strategy("apple");
  EXPECT_TRUE(registered_strategies().empty());
}

TEST(StrategyRegistry, RefusesWhatCannotBeAKey) {
  std::vector<std::string> calls;
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [] { register_strategy(nullptr); }), HasSubstr("found null"));
  for (const char* name : {"", "Huge", "huge pages", "huge.pages", "2huge", "_huge", "huge\n", "h\xc3\xa4lt"}) {
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { check_strategy(name, "A change.", {}); }),
                HasSubstr("wanted 1 to 40 of a to z"))
        << name;
  }
  check_strategy(std::string(40, 'a'), "A change.", {});
  EXPECT_THROW(check_strategy(std::string(41, 'a'), "A change.", {}), Error);
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [] { check_strategy("huge", "", {}); }),
            "strategy: huge: sentence: wanted what it changes, found an empty text");
  for (const char* name : {"channels-last", "memory_format", "micro-batches", "num_workers", "allocator"}) {
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { check_strategy(name, "A change.", {}); }),
                HasSubstr(fmt::format("found \"{}\", which is headrace's ", name)));
  }
  EXPECT_TRUE(registered_strategies().empty());
}

TEST(StrategyRegistry, ALibraryThatCannotServeIsRefusedByName) {
  EXPECT_THAT(error_of(ErrorCode::unsupported, [] { load_strategies({"no_such_library.so"}); }),
              HasSubstr("no_such_library.so: cannot open shared object file"));
  EXPECT_THAT(error_of(ErrorCode::unsupported, [] { load_strategies({"examples/fashion_mnist.toml"}); }),
              HasSubstr("fashion_mnist.toml"));
}

// ---- What is offered ----

TEST_F(Strategies, AreOfferedBehindTheTableWithWhyNotOfTheRest) {
  add("a")->numeric_class = NumericClass::reduced_precision;
  add("b")->reason = "there are no huge pages.\nAsk for them";
  add("c")->throws_in = "why_not";
  add("d")->throws_in = "sentence";
  Recipe recipe;
  Machine machine;
  machine.cores_usable = 2;
  KnobContext knobs = headrace::context_of(recipe, machine, {});
  const Offer table = offer(knobs, "data");
  Offer offered = table;
  add_strategies(offered, use(), context, "data");
  ASSERT_EQ(offered.candidates.size(), table.candidates.size() + 1);
  const Candidate& candidate = offered.candidates.back();
  EXPECT_EQ(candidate.name, "a");
  EXPECT_EQ(candidate.key, "custom.a");
  EXPECT_EQ(candidate.changes, kA);
  EXPECT_EQ(candidate.sentence, "Another pace.");
  EXPECT_EQ(candidate.numerics, NumericClass::reduced_precision);
  EXPECT_EQ(candidate.resource, "data");
  EXPECT_EQ(candidate.switches, Switches::live_step);
  ASSERT_EQ(offered.not_tried.size(), table.not_tried.size() + 3);
  const auto not_offered = offered.not_tried.end() - 3;
  EXPECT_EQ(not_offered[0].key, "custom.b");
  EXPECT_EQ(not_offered[0].reason, "there are no huge pages");
  EXPECT_EQ(not_offered[1].name, "c");
  EXPECT_EQ(not_offered[1].reason, "why_not: broken");
  EXPECT_EQ(not_offered[2].reason, "sentence: broken");
  EXPECT_TRUE(calls.empty());
}

// ---- Applied and undone ----

TEST_F(Strategies, AreAppliedInTheirOrderUndoneTheOtherWayRoundAndVerifiedOnce) {
  add("b");
  add("a");
  use();
  EXPECT_EQ(set({{"custom.a", "true"}, {"custom.b", "true"}, {"train.precision", "\"bf16\""}}),
            (Settings{{"train.precision", "\"bf16\""}}));
  EXPECT_THAT(calls, ElementsAre("b apply", "b verify", "a apply", "a verify"));
  calls.clear();
  set(kBoth);
  EXPECT_TRUE(calls.empty());  // They hold already.
  set({{"custom.b", "false"}});
  EXPECT_THAT(calls, ElementsAre("a undo", "b undo"));
  calls.clear();
  set(kA);
  set(kB);
  set({});
  set({});
  EXPECT_THAT(calls, ElementsAre("a apply", "a undo", "b apply", "b undo"));
}

TEST_F(Strategies, OneThatCannotBeAppliedIsUndoneOnceAndTheOthersHoldAsBefore) {
  add("a");
  auto broken = add("b");
  broken->throws_in = "apply";
  use();
  set(kA);
  calls.clear();
  EXPECT_EQ(error_of_setting(ErrorCode::internal, kB), "custom.b: apply: broken");
  EXPECT_THAT(calls, ElementsAre("a undo", "b apply", "b undo", "a apply"));
  calls.clear();
  set(kA);
  EXPECT_TRUE(calls.empty());
  broken->throws_in.clear();  // It may be asked for again.
  set(kBoth);
  EXPECT_THAT(calls, ElementsAre("b apply", "b verify"));
}

TEST_F(Strategies, OneThatIsFoundWrongIsUndone) {
  auto one = add("a");
  one->wrong = "the sums differ.";
  use();
  EXPECT_EQ(error_of_setting(ErrorCode::numerics, kA), "custom.a: verify: the sums differ");
  one->wrong.clear();
  one->throws_in = "verify";
  EXPECT_EQ(error_of_setting(ErrorCode::internal, kA), "custom.a: verify: broken");
  one->throws_in.clear();
  set(kA);  // Until it was found right, each time.
  EXPECT_THAT(calls,
              ElementsAre("a apply", "a verify", "a undo", "a apply", "a verify", "a undo", "a apply", "a verify"));
}

TEST_F(Strategies, OneThatCannotBeUndoneHasEndedAndIsNotAppliedAgain) {
  auto stuck = add("a");
  add("b");
  StrategySwitch& strategies = use();
  set(kBoth);
  stuck->throws_in = "undo";
  calls.clear();
  set(kB);
  EXPECT_THAT(calls, ElementsAre("a undo"));
  EXPECT_EQ(strategies.ended(), (Settings{{"custom.a", "undo: broken; what it changed may still hold"}}));
  EXPECT_EQ(error_of_setting(ErrorCode::unsupported, kBoth), "custom.a: undo: broken; what it changed may still hold");
  set({});
  EXPECT_THAT(calls, ElementsAre("a undo", "b undo"));
}

TEST_F(Strategies, OneThatFailsTwiceOverSaysBoth) {
  struct Both final : Strategy {
    std::string_view name() const noexcept override { return "both"; }
    std::string sentence() const override { return "Fails."; }
    void apply(const StrategyContext& /*context*/) override { throw Error(ErrorCode::out_of_memory, "no room"); }
    void undo(const StrategyContext& /*context*/) override { throw std::runtime_error("no way back"); }
  };
  StrategySwitch strategies({std::make_shared<Both>()});
  EXPECT_EQ(error_of(ErrorCode::out_of_memory,
                     [&] {
                       strategies.set({{"custom.both", "true"}}, context);
                     }),
            "custom.both: apply: no room; undo: no way back; what it changed may still hold");
  EXPECT_EQ(strategies.ended().size(), 1u);
}

TEST_F(Strategies, ACancellationPassesAndIsUndone) {
  auto one = add("a");
  one->throws_in = "apply";
  one->is_cancelled = true;
  StrategySwitch& strategies = use();
  EXPECT_EQ(error_of_setting(ErrorCode::cancelled, kA), "stopped");
  EXPECT_THAT(calls, ElementsAre("a apply", "a undo"));
  EXPECT_TRUE(strategies.ended().empty());
}

TEST_F(Strategies, WhatIsNoStrategyOrNoSwitchIsRefusedBeforeAnythingChanges) {
  add("a");
  use();
  EXPECT_THAT(error_of_setting(ErrorCode::invalid_argument, {{"custom.a", "true"}, {"custom.x", "true"}}),
              HasSubstr("found custom.x"));
  EXPECT_EQ(error_of_setting(ErrorCode::invalid_argument, {{"custom.a", "1"}}),
            "strategy: custom.a: wanted true or false, found 1");
  EXPECT_TRUE(calls.empty());
  std::vector<std::string> ignored;
  const auto one = std::make_shared<Pace>("twice", 1, ignored);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] {
                         StrategySwitch({one, one});
                       }),
              HasSubstr("found \"twice\" twice"));
  EXPECT_THROW(StrategySwitch({nullptr}), Error);
}

// ---- Tuned ----

// Steps of 10 ms, give or take 2 %, on a clock of its own; it has no settings but strategies.
class PacedJob final : public Job {
 public:
  explicit PacedJob(StrategySwitch& strategies) : strategies_(strategies) { context_.step_s = &step_s; }

  void snapshot() override {}
  void restore() override {}
  void configure(const Settings& settings) override { EXPECT_EQ(strategies_.set(settings, context_), Settings{}); }
  std::vector<double> run(std::int64_t steps) override {
    std::vector<double> seconds;
    std::normal_distribution<double> noise(0, 0.02);
    for (std::int64_t i = 0; i < steps; ++i) {
      seconds.push_back(step_s * std::exp(noise(random_)));
      now_s += seconds.back();
    }
    return seconds;
  }
  Fingerprint fingerprint(std::int64_t /*batch*/) override { return {1, {{"weight", {1, 2, 3}}}}; }
  std::uint64_t state_hash() override { return 7; }
  double update_difference(const Settings& /*a*/, const Settings& /*b*/) override { return 0; }
  std::int64_t samples_per_step() const override { return 1; }

  double step_s = 0.01, now_s = 1000;

 private:
  StrategySwitch& strategies_;
  PaceContext context_;
  std::mt19937_64 random_{7};
};

// Each apply() is undone once, but for those of `held`.
void expect_paired(const std::vector<std::string>& calls, const std::string& name, std::int64_t held) {
  const auto count = [&](const char* function) {
    return std::count(calls.begin(), calls.end(), name + " " + function);
  };
  EXPECT_GT(count("apply"), 0) << name;
  EXPECT_EQ(count("apply"), count("undo") + held) << name;
}

TEST_F(Strategies, ThatPayIsKeptAndThatCostsIsUndone) {
  add("longer", 1.5);
  add("shorter", 0.6);
  add("broken")->throws_in = "apply";
  StrategySwitch& strategies = use();
  PacedJob job(strategies);
  std::vector<Report::NotTried> not_tried;
  const auto candidates = strategies.candidates(context, not_tried);
  const Ledger ledger = Tuner(job, candidates, {}, 1, {}, [&job] { return job.now_s; }).run();
  ASSERT_EQ(ledger.trials.size(), 3u);
  EXPECT_EQ(ledger.trials[0].verdict, Verdict::refused);
  EXPECT_EQ(ledger.trials[0].reason, Reason::slower) << ledger.trials[0].sentence;
  EXPECT_EQ(ledger.trials[1].verdict, Verdict::kept) << ledger.trials[1].sentence;
  EXPECT_EQ(ledger.trials[2].verdict, Verdict::failed);
  EXPECT_EQ(ledger.trials[2].sentence, "Failed: custom.broken: apply: broken.");
  EXPECT_EQ(ledger.best, (Settings{{"custom.shorter", "true"}}));
  EXPECT_NEAR(job.step_s, 0.006, 1e-9);
  expect_paired(calls, "longer", 0);
  expect_paired(calls, "shorter", 1);
  expect_paired(calls, "broken", 0);
  job.configure({});
  EXPECT_NEAR(job.step_s, 0.01, 1e-9);
}

// A run under way whose strategies are applied for good, beside their effect on its time.
class PacedLoop final : public FakeLiveLoop {
 public:
  PacedLoop(StrategySwitch& strategies, std::map<std::string, LiveEffect> effects_by_key)
      : FakeLiveLoop({.noise = 0.02}, std::move(effects_by_key), 3), strategies_(strategies) {
    context_.live = true;
  }
  void apply(const Settings& wanted) override {
    strategies_.set(wanted, context_);
    FakeLiveLoop::apply(wanted);
  }

 private:
  StrategySwitch& strategies_;
  StrategyContext context_;
};

TEST_F(Strategies, TakeTurnsInARunUnderWay) {
  add("longer");
  add("shorter");
  StrategySwitch& strategies = use();
  PacedLoop loop(strategies, {{"custom.longer", {.time_factor = 1.5}}, {"custom.shorter", {.time_factor = 0.6}}});
  for (auto& [key, effect] : loop.effects) effect.distance.bit_equal = true;
  loop.updates_in_all = 4000;
  std::vector<Report::NotTried> not_tried;
  LiveTuner tuner(loop, strategies.candidates(context, not_tried), {}, 1, loop.progress(),
                  [&loop] { return loop.now_s; });
  ASSERT_TRUE(loop.run(tuner, 3000));
  const LiveLedger ledger = tuner.ledger();
  EXPECT_EQ(ledger.ledger.trials[0].verdict, Verdict::refused);
  EXPECT_EQ(ledger.ledger.trials[1].verdict, Verdict::kept);
  expect_paired(calls, "longer", 0);
  expect_paired(calls, "shorter", 1);
  tuner.undo();
  expect_paired(calls, "shorter", 0);
}

}  // namespace
}  // namespace headrace
