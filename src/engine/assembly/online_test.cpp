#include <ATen/ops/full_like.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/strategy.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "engine/assembly/online_ledger.h"
#include "engine/assembly/online_replay.h"
#include "engine/assembly/online_tuning.h"
#include "engine/assembly/state.h"
#include "engine/assembly/tiny_dataset.h"
#include "torch/train/training_state.h"

namespace headrace {
namespace {

using testing::HasSubstr;

const Settings kFused{{"optimizer.fused", "true"}};
const Settings kChannelsLast{{"model.memory_format", "\"channels_last\""}};
const Settings kBf16{{"train.precision", "\"bf16\""}};
const Settings kFusion{{"model.fusion", "\"norm_relu_pool\""}};

// 13 batches an epoch; convolutions and running statistics.
Recipe small_recipe(const TinyDataset& data) {
  Recipe recipe = data.recipe();
  recipe.model.name = "small_cnn";
  recipe.optimizer.set_implementation(OptimizerImplementation::for_loop);
  recipe.train.epochs = 300;
  recipe.tune.online = true;
  recipe.tune.allow = NumericClass::rounding;
  return recipe;
}

// The same with a network that takes next to no time.
Recipe virtual_recipe(const TinyDataset& data) {
  Recipe recipe = small_recipe(data);
  recipe.model.name = "mlp";
  return recipe;
}

bool is_fused(const Recipe& recipe) {
  return recipe.optimizer.implementation() == OptimizerImplementation::fused;
}

// Of all that a training step can change.
std::uint64_t hash_of_state(Training& training) {
  NamedTensors all = weights_of(training.trainer().model());
  for (const auto& entry : training.trainer().optimizer().state()) all.push_back(entry);
  for (const auto& entry : training.trainer().averages()) all.push_back(entry);
  all.emplace_back("generator", generator_state());
  return hash_of(all);
}

std::uint64_t hash_after_plain_epochs(const Recipe& recipe, std::int64_t epochs) {
  Training training{recipe, detect_machine()};
  for (std::int64_t i = 0; i < epochs; ++i) {
    Epoch epoch = training.loader().epoch(i);
    run_steps(training.trainer(), epoch, epoch.batches());
  }
  return hash_of_state(training);
}

// So many steps of which every window's call is kept; `before_update` may replay it.
std::uint64_t hash_after_kept_steps(const Recipe& recipe, std::int64_t steps,
                                    const std::function<void(OnlineTraining&)>& before_update) {
  Training training{recipe, detect_machine()};
  OnlineTraining loop{training, detect_machine()};
  loop.before_update = [&] {
    if (before_update) before_update(loop);
  };
  loop.keep_next_call(true);
  Epoch epoch = training.loader().epoch(0);
  const auto next = [&]() -> std::optional<Batch> {
    std::optional<Batch> batch = epoch.next();
    if (batch) loop.see(*batch);
    return batch;
  };
  run_steps(training.trainer(), {next, epoch.batches()}, steps, [&](const StepDone& done) {
    if (done.progress.window == 0) loop.keep_next_call(true);
  });
  return hash_of_state(training);
}

TEST(SquareSums, AddUpAndTellDistanceAndDirection) {
  EXPECT_EQ(squares(at::Tensor(), at::Tensor()).relative_l2(), 0);
  SquareSums sums{4, 4, 0};
  EXPECT_EQ(sums.relative_l2(), 0);
  EXPECT_EQ(sums.cosine(), 1);
  sums += {0, 12, 12};
  EXPECT_NEAR(sums.relative_l2(), std::sqrt(3.0), 1e-12);
  EXPECT_NEAR(sums.cosine(), 0.5, 1e-12);
  EXPECT_NEAR(sums.distance(), std::sqrt(0.75), 1e-12);
  EXPECT_EQ((SquareSums{16, 4, 4}.distance()), (SquareSums{4, 16, 4}.distance()));
  EXPECT_EQ((SquareSums{0, 1, 1}.distance()), 1);
  EXPECT_TRUE(std::isinf((SquareSums{0, 1, 1}.relative_l2())));
  EXPECT_EQ((SquareSums{0, 1, 1}.cosine()), 0);
  const double nan = std::nan("");
  EXPECT_TRUE(std::isinf((SquareSums{1, nan, nan}.relative_l2())));
  EXPECT_TRUE(std::isnan((SquareSums{1, nan, nan}.cosine())));
}

TEST(OnlineTraining, ReplaysLeaveEveryBitOfTheRunAsItWas) {
  const TinyDataset data{400};
  Recipe recipe = small_recipe(data);
  recipe.train.ema_decay = 0.9;
  for (const std::int64_t window : {1, 2}) {
    recipe.train.gradient_accumulation_steps = window;
    int replays = 0;
    const auto replay_all = [&](OnlineTraining& loop) {
      for (const Settings& change : {kFused, kChannelsLast, kBf16, kFusion}) {
        const Replay made = loop.replay({}, change, ReplayUse::compare);
        EXPECT_TRUE(made.distance) << made.failure.sentence;
        ++replays;
      }
      loop.distance_between_calls();
    };
    const std::uint64_t untouched = hash_after_kept_steps(recipe, 8, nullptr);
    EXPECT_EQ(hash_after_kept_steps(recipe, 8, replay_all), untouched);
    EXPECT_EQ(replays, 4 * 8 / window);
  }
}

TEST(OnlineTraining, AReplayTellsHowFarAChangeMovesGradientsAndTheUpdate) {
  const TinyDataset data{400};
  Recipe recipe = small_recipe(data);
  recipe.tune.planted = {{.name = "wrong", .gradient_error = 0.05}};
  std::vector<std::optional<double>> between;
  hash_after_kept_steps(recipe, 2, [&](OnlineTraining& loop) {
    const ReplayDistance same = loop.replay({}, {}, ReplayUse::compare).distance.value();
    EXPECT_TRUE(same.bit_equal && same.finite);
    EXPECT_EQ(same.relative_l2, 0);
    EXPECT_EQ(same.output_difference, 0);
    EXPECT_NEAR(same.cosine, 1, 1e-9);
    EXPECT_FALSE(same.update_difference);
    const ReplayDistance fused = loop.replay({}, kFused, ReplayUse::compare).distance.value();
    EXPECT_TRUE(fused.bit_equal);
    EXPECT_LE(fused.update_difference.value(), 1e-6);
    const ReplayDistance bf16 = loop.replay({}, kBf16, ReplayUse::compare).distance.value();
    EXPECT_FALSE(bf16.bit_equal);
    EXPECT_GT(bf16.relative_l2, 0);
    EXPECT_GT(bf16.output_difference, 0);
    EXPECT_NE(bf16.worst_name, "");
    EXPECT_TRUE(bf16.finite);
    const ReplayDistance wrong = loop.replay({}, {{"planted.wrong", "true"}}, ReplayUse::compare).distance.value();
    EXPECT_NEAR(wrong.relative_l2, 0.05, 1e-4);
    EXPECT_EQ(wrong.output_difference, 0);
    between.push_back(loop.distance_between_calls());
  });
  ASSERT_EQ(between.size(), 2U);
  EXPECT_FALSE(between[0]);
  EXPECT_GT(between[1].value(), 0);
}

TEST(OnlineTraining, WhatCannotBeReplayedIsAFailureOfItsChange) {
  const TinyDataset data{400};
  hash_after_kept_steps(small_recipe(data), 1, [](OnlineTraining& loop) {
    EXPECT_EQ(loop.replay({}, {{"planted.nobody", "true"}}, ReplayUse::compare).failure.code,
              ErrorCode::invalid_argument);
    const Replay at_fault = loop.replay({{"planted.nobody", "true"}}, {}, ReplayUse::compare);
    EXPECT_EQ(at_fault.failure.code, ErrorCode::unsupported);
    EXPECT_THAT(at_fault.failure.sentence, HasSubstr("planted.nobody"));
    EXPECT_TRUE(loop.replay({}, kFused, ReplayUse::compare).distance);
  });
  Training training{small_recipe(data), detect_machine()};
  OnlineTraining loop{training, detect_machine()};
  EXPECT_EQ(loop.replay({}, {}, ReplayUse::compare).failure.code, ErrorCode::unsupported);  // Nothing is kept.
  EXPECT_FALSE(loop.distance_between_calls());
}

TEST(OnlineTraining, AReplayIsOnTopOfWhatAnEarlierProcessKept) {
  const TinyDataset data{400};
  hash_after_kept_steps(small_recipe(data), 1, [](OnlineTraining& loop) {
    loop.build_on(kBf16);
    EXPECT_TRUE(loop.replay({}, kFused, ReplayUse::compare).distance.value().bit_equal);
    EXPECT_GT(loop.replay({}, {{"train.precision", "\"fp32\""}}, ReplayUse::compare).distance.value().relative_l2, 0);
  });
}

// Says whether it holds; its apply() is a cancellation once it is told so.
class Held final : public Strategy {
 public:
  std::string_view name() const noexcept override { return "held"; }
  std::string sentence() const override { return "Holds."; }
  void apply(const StrategyContext& /*context*/) override {
    ++holds;
    if (is_cancelled) throw Error(ErrorCode::cancelled, "enough");
  }
  void undo(const StrategyContext& /*context*/) override { --holds; }

  int holds = 0;
  bool is_cancelled = false;
};

TEST(OnlineTraining, StrategiesAreUndoneForEvaluationsAndAtTheEnd) {
  const TinyDataset data{400};
  const auto strategy = std::make_shared<Held>();
  register_strategy(strategy);
  const Settings held{{"custom.held", "true"}};
  hash_after_kept_steps(small_recipe(data), 1, [&](OnlineTraining& loop) {
    EXPECT_TRUE(loop.replay({}, held, ReplayUse::compare).distance);
    EXPECT_EQ(strategy->holds, 0);
    strategy->is_cancelled = true;  // Ends the tuning, and is no failure of the change.
    EXPECT_EQ(error_of(ErrorCode::cancelled, [&] { loop.replay({}, held, ReplayUse::compare); }), "enough");
    EXPECT_EQ(strategy->holds, 0);
    strategy->is_cancelled = false;
  });
  Training training{small_recipe(data), detect_machine()};
  OnlineTraining loop{training, detect_machine()};
  unregister_strategy("held");  // Under way it stays.
  loop.apply(held);
  loop.as_written([&] { EXPECT_EQ(strategy->holds, 0); });
  EXPECT_EQ(strategy->holds, 1);
  EXPECT_TRUE(loop.undo_strategies().empty());
  EXPECT_EQ(strategy->holds, 0);
}

TEST(OnlineTraining, ASettingThatCannotBeAppliedLeavesWhatHeldBefore) {
  const TinyDataset data{400};
  Training training{small_recipe(data), detect_machine()};
  OnlineTraining loop{training, detect_machine()};
  loop.apply(kFused);
  error_of(ErrorCode::invalid_argument, [&] { loop.apply(with_changes(kBf16, {{"planted.nobody", "true"}})); });
  error_of(ErrorCode::invalid_argument, [&] { loop.apply(with_changes(kBf16, {{"data.thread", "2"}})); });
  error_of(ErrorCode::unsupported, [&] { loop.apply(with_changes(kBf16, {{"data.scale_decode", "true"}})); });
  EXPECT_EQ(loop.in_force(), kFused);
  EXPECT_TRUE(is_fused(training.recipe()));
  EXPECT_EQ(training.recipe().train.precision, Precision::fp32);
  loop.apply({});
  EXPECT_FALSE(is_fused(training.recipe()));
}

TEST(OnlineTraining, AsWrittenIsAllButHowDataAreLoaded) {
  const TinyDataset data{400};
  Training training{small_recipe(data), detect_machine()};
  OnlineTraining loop{training, detect_machine()};
  loop.build_on(kFused);
  loop.apply(with_changes(kBf16, {{"data.num_workers", "0"}}));
  const auto expect_in_force = [&] {
    EXPECT_TRUE(is_fused(training.recipe()));
    EXPECT_EQ(training.recipe().train.precision, Precision::bf16);
    EXPECT_EQ(training.recipe().data.num_workers, 0);
  };
  expect_in_force();
  loop.as_written([&] {
    EXPECT_FALSE(is_fused(training.recipe()));
    EXPECT_EQ(training.recipe().train.precision, Precision::fp32);
    EXPECT_EQ(training.recipe().data.num_workers, 0);
  });
  expect_in_force();
  EXPECT_THROW(loop.as_written([] { throw std::runtime_error("evaluation"); }), std::runtime_error);
  expect_in_force();
  loop.apply({});
  EXPECT_TRUE(is_fused(training.recipe()));  // Kept before.
}

TEST(OnlineTraining, AveragesAreEvaluatedAsWrittenAndTheWeightsComeBack) {
  const TinyDataset data{400};
  Recipe recipe = small_recipe(data);
  recipe.train.ema_decay = 0.9;
  Training training{recipe, detect_machine()};
  Trainer& trainer = training.trainer();
  OnlineTraining loop{training, detect_machine()};
  loop.apply(kChannelsLast);
  Epoch epoch = training.loader().epoch(0);
  run_steps(trainer, epoch, 3);
  const std::uint64_t before = hash_of_state(training), averages = hash_of(trainer.averages());
  EXPECT_NE(hash_of(weights_of(trainer.model())), averages);
  loop.as_written([&] {
    EXPECT_EQ(training.recipe().model.memory_format, MemoryFormat::contiguous);
    trainer.with_averages([&] {
      EXPECT_EQ(hash_of(weights_of(trainer.model())), averages);
      EXPECT_EQ(evaluate(trainer, *training.test_loader()).samples, 400);
    });
  });
  EXPECT_EQ(hash_of_state(training), before);
}

TEST(OnlineTraining, CountsTheUpdatesThatAreLeft) {
  const TinyDataset data{400};
  Recipe recipe = small_recipe(data);
  recipe.train.epochs = 3;
  recipe.train.gradient_accumulation_steps = 2;
  Training training{recipe, detect_machine()};
  OnlineTraining loop{training, detect_machine()};
  EXPECT_EQ(loop.updates_left(), 3 * 7);
  training.trainer().progress().epoch = 1;
  training.trainer().progress().batch = 4;
  EXPECT_EQ(loop.updates_left(), 5 + 7);
  training.trainer().progress().epoch = 3;
  training.trainer().progress().batch = 0;
  EXPECT_EQ(loop.updates_left(), 0);
}

TEST(OnlineTraining, TellsWhatMayLieReadyUnderTheSettingsBefore) {
  const TinyDataset data{400};
  Recipe recipe = small_recipe(data);
  recipe.train.gradient_accumulation_steps = 2;
  recipe.data.num_workers = 1;
  recipe.data.prefetch_batches = 3;
  Training training{recipe, detect_machine()};
  OnlineTraining loop{training, detect_machine()};
  EXPECT_EQ(loop.queued_units(), 2);
  loop.apply({{"data.prefetch_batches", "8"}});
  EXPECT_EQ(loop.queued_units(), 4);
  loop.apply({{"data.num_workers", "0"}});
  EXPECT_EQ(loop.queued_units(), 4);  // What was loaded before.
  loop.apply({{"data.num_workers", "0"}, {"optimizer.fused", "true"}});
  EXPECT_EQ(loop.queued_units(), 4);
  loop.apply({{"data.num_workers", "0"}, {"data.prefetch_batches", "2"}});
  EXPECT_EQ(loop.queued_units(), 0);
}

// A recipe's run in virtual time that tunes itself: a step takes what `step_s` says of the recipe in force, give or
// take 3 %.
class VirtualRun {
 public:
  explicit VirtualRun(const Recipe& recipe, std::function<double(const Recipe&)> step_s = {},
                      std::optional<LiveLedger> saved = std::nullopt, const Progress& progress = {})
      : training(recipe, detect_machine()), step_s_(std::move(step_s)) {
    training.trainer().progress() = progress;
    LiveProgress told;
    told.began = [this](const std::string&) {
      ++began;
      if (throws) throw std::runtime_error("the console is gone");
    };
    told.decided = [this](const Trial& trial) { decided.push_back(trial); };
    told.ended = [this](const std::string&) { ended = true; };
    tuning = std::make_unique<OnlineTuning>(training, detect_machine(), std::move(told), std::move(saved),
                                            [this] { return now_s_; });
  }

  void run_epoch() {
    tuning->run_epoch([this](const StepDone&) {
      now_s_ += (step_s_ ? step_s_(training.recipe()) : 0.03) * std::exp(0.03 * normal_(random_));
    });
    ++epochs;
  }
  // At most so many epochs, until `is_enough`.
  void run_until(const std::function<bool()>& is_enough, std::int64_t epochs_max = 120) {
    for (std::int64_t i = 0; i < epochs_max && !is_enough(); ++i) run_epoch();
  }
  bool has_decided(const std::string& name, Verdict verdict) const {
    return std::any_of(decided.begin(), decided.end(),
                       [&](const Trial& trial) { return trial.name == name && trial.verdict == verdict; });
  }

  Training training;
  std::unique_ptr<OnlineTuning> tuning;
  std::vector<Trial> decided;
  std::int64_t epochs = 0;
  int began = 0;
  bool ended = false, throws = false;

 private:
  std::function<double(const Recipe&)> step_s_;
  double now_s_ = 1000;
  std::mt19937_64 random_{5};
  std::normal_distribution<double> normal_;
};

double faster_if_fused(const Recipe& recipe) {
  return is_fused(recipe) ? 0.02 : 0.03;
}

TEST(OnlineTuning, KeepsAChangeThatIsFasterAndSaysWhatHeldWhen) {
  const TinyDataset data{400};
  Recipe recipe = virtual_recipe(data);
  recipe.tune.only = {"fused optimizer"};
  VirtualRun run{recipe, faster_if_fused};
  run.run_until([&] { return run.ended; });
  ASSERT_TRUE(run.ended);
  EXPECT_EQ(run.began, 1);
  EXPECT_TRUE(is_fused(run.training.recipe()));
  const LiveLedger ledger = run.tuning->ledger();
  ASSERT_EQ(ledger.ledger.trials.size(), 1U);
  EXPECT_EQ(ledger.ledger.trials[0].verdict, Verdict::kept) << ledger.ledger.trials[0].sentence;
  EXPECT_EQ(ledger.ledger.best, kFused);
  EXPECT_EQ(ledger.ledger.baseline.at("optimizer.fused"), "false");
  EXPECT_EQ(ledger.turns.back().settings, kFused);
  EXPECT_TRUE(ledger.ended);
  EXPECT_EQ(run.tuning->problem(), "");
  EXPECT_EQ(run.tuning->note(), "");
}

TEST(OnlineTuning, UndoesAChangeThatIsSlower) {
  const TinyDataset data{400};
  Recipe recipe = virtual_recipe(data);
  recipe.tune.only = {"fused optimizer"};
  VirtualRun run{recipe, [](const Recipe& now) { return is_fused(now) ? 0.04 : 0.03; }};
  run.run_until([&] { return run.ended; });
  EXPECT_TRUE(run.has_decided("fused optimizer", Verdict::refused));
  EXPECT_FALSE(is_fused(run.training.recipe()));
  EXPECT_TRUE(run.tuning->ledger().ledger.best.empty());
}

TEST(OnlineTuning, WhatIsNotAllowedIsNeverInForce) {
  const TinyDataset data{400};
  Recipe recipe = virtual_recipe(data);
  recipe.tune.only = {"bf16 autocast"};
  VirtualRun run{recipe, [](const Recipe& now) {
                   EXPECT_EQ(now.train.precision, Precision::fp32);
                   return 0.03;
                 }};
  run.run_until([&] { return run.ended; });
  EXPECT_EQ(hash_of_state(run.training), hash_after_plain_epochs(recipe, run.epochs));
  EXPECT_TRUE(run.tuning->ledger().turns.empty());
}

// Its step is made again without it, so that nothing of it is left.
TEST(OnlineTuning, AChangeThatThrowsIsNamedAndTheRunHasTheBitsOfOneThatTriedNothing) {
  const TinyDataset data{400};
  Recipe recipe = small_recipe(data);
  recipe.tune.planted = {{.name = "thrower", .throw_probability = 1}};
  recipe.tune.only = {"thrower"};
  for (const std::int64_t window : {1, 2}) {
    recipe.train.gradient_accumulation_steps = window;
    VirtualRun run{recipe};
    run.run_until([&] { return run.ended; });
    ASSERT_TRUE(run.has_decided("thrower", Verdict::failed));
    EXPECT_THAT(run.decided.back().sentence, HasSubstr("planted knob thrower threw"));
    EXPECT_EQ(hash_of_state(run.training), hash_after_plain_epochs(recipe, run.epochs));
    EXPECT_EQ(run.training.trainer().progress().optimizer_steps, run.epochs * (window == 1 ? 13 : 7));
    EXPECT_EQ(run.tuning->problem(), "");
  }
}

TEST(OnlineTuning, AnErrorOfTheLoopAsWrittenIsTheRunsOwn) {
  const TinyDataset data{400};
  VirtualRun run{virtual_recipe(data)};
  const NamedTensors weights{run.training.trainer().model().parameters.front()};
  put_values(weights, {at::full_like(weights.front().second, std::nan(""))});
  error_of(ErrorCode::numerics, [&] { run.run_epoch(); });
}

TEST(OnlineTuning, WhatFailsOfItEndsTheTuningAndNotTheRun) {
  const TinyDataset data{400};
  const Recipe recipe = virtual_recipe(data);
  VirtualRun run{recipe};
  run.throws = true;
  run.run_until([&] { return !run.tuning->problem().empty(); });
  EXPECT_THAT(run.tuning->problem(), HasSubstr("the console is gone"));
  run.run_epoch();
  EXPECT_EQ(hash_of_state(run.training), hash_after_plain_epochs(recipe, run.epochs));
  const LiveLedger ledger = run.tuning->ledger();
  EXPECT_TRUE(ledger.ended);
  EXPECT_EQ(ledger.end_reason, run.tuning->problem());
  EXPECT_THAT(run.tuning->note(), HasSubstr("the run went on as it is written"));
}

TEST(OnlineTuning, AResumedRunGoesOnWithWhatWasKeptAndTriesTheRest) {
  const TinyDataset data{400};
  Recipe recipe = virtual_recipe(data);
  recipe.tune.only = {"fused optimizer", "channels-last"};
  VirtualRun first{recipe, faster_if_fused};
  first.run_until([&] { return first.has_decided("fused optimizer", Verdict::kept); });
  ASSERT_FALSE(first.ended);
  const LiveLedger saved = parse_live_ledger(first.tuning->checkpoint_text(), "checkpoint");
  const Progress progress = first.training.trainer().progress();

  VirtualRun second{recipe, faster_if_fused, saved, progress};
  EXPECT_TRUE(is_fused(second.training.recipe()));
  EXPECT_EQ(second.tuning->tried(), 1U);
  for (int i = 0; i < 5; ++i) second.run_epoch();
  second.tuning->end("the run was stopped");
  EXPECT_TRUE(is_fused(second.training.recipe()));
  const LiveLedger ledger = second.tuning->ledger();
  ASSERT_EQ(ledger.ledger.trials.size(), 2U);
  EXPECT_EQ(ledger.ledger.trials[0].name, "fused optimizer");
  EXPECT_EQ(ledger.ledger.trials[1].name, "channels-last");
  EXPECT_EQ(ledger.ledger.best, kFused);
  EXPECT_EQ(ledger.end_reason, "the run was stopped");
  EXPECT_GT(ledger.updates, saved.updates);
  for (const LiveTurn& turn : ledger.turns) {
    EXPECT_TRUE(turn.update <= progress.optimizer_steps || turn.settings.contains("optimizer.fused")) << turn.update;
  }
  parse_live_ledger(json_text(ledger), "joined");  // Its turns are in order.
  EXPECT_THAT(second.tuning->note(), HasSubstr(fmt::format("after {} updates", progress.optimizer_steps)));
}

TEST(OnlineTuning, ARunWithNothingLeftToTrainKeepsWhatItsLedgerSays) {
  const TinyDataset data{400};
  const Recipe recipe = virtual_recipe(data);
  Progress progress;
  progress.epoch = recipe.train.epochs;
  LiveLedger saved;
  saved.ledger.trials.emplace_back().name = "channels-last";
  saved.estimates.emplace_back();
  VirtualRun run{recipe, {}, saved, progress};
  EXPECT_EQ(run.tuning->tried(), 0U);
  run.tuning->end("the run is over");
  EXPECT_EQ(run.tuning->ledger().ledger.trials.size(), 1U);
  EXPECT_EQ(run.tuning->ledger().end_reason, "no update is left");
  EXPECT_TRUE(run.decided.empty());
}

TEST(OnlineTuning, ANameOfNoChangeIsRefusedWithThoseThereAre) {
  const TinyDataset data{400};
  Recipe recipe = virtual_recipe(data);
  recipe.tune.only = {"fused optimiser"};
  const std::string message = error_of(ErrorCode::invalid_argument, [&] { VirtualRun{recipe}; });
  EXPECT_THAT(message, HasSubstr("\"fused optimiser\""));
  EXPECT_THAT(message, HasSubstr("fused optimizer"));
}

TEST(OnlineReplay, ARepeatedRunHasTheBitsOfTheFirst) {
  const TinyDataset data{400};
  Recipe recipe = virtual_recipe(data);
  recipe.tune.only = {"fused optimizer"};
  VirtualRun first{recipe, faster_if_fused};
  first.run_until([&] { return first.ended; });
  const LiveLedger ledger = parse_live_ledger(first.tuning->checkpoint_text(), "first");
  ASSERT_GT(ledger.turns.size(), 4U);

  Training training{recipe, detect_machine()};
  OnlineReplay again{training, detect_machine(), ledger, "first"};
  for (std::int64_t i = 0; i < first.epochs; ++i) again.run_epoch({});
  EXPECT_EQ(hash_of_state(training), hash_of_state(first.training));
  EXPECT_TRUE(again.replay().is_over());
  EXPECT_EQ(again.checkpoint_text(), "");
  EXPECT_NE(hash_of_state(training), hash_after_plain_epochs(recipe, first.epochs));
}

Trial trial_of(const std::string& name, Verdict verdict, Reason reason) {
  Trial trial;
  trial.name = name;
  trial.verdict = verdict;
  trial.reason = reason;
  return trial;
}

TEST(OnlineLedger, WhatIsDecidedHoldsOnAndWhatIsOpenDoesNot) {
  LiveLedger saved;
  saved.ledger.trials = {
      trial_of("kept", Verdict::kept, Reason::none), trial_of("open", Verdict::inconclusive, Reason::budget),
      trial_of("slower", Verdict::refused, Reason::slower), trial_of("fixed", Verdict::refused, Reason::fixed),
      trial_of("forbidden", Verdict::refused, Reason::not_allowed)};
  saved.estimates.resize(5);
  saved.estimates[2].pairs = 7;
  saved.ledger.best = {{"a", "1"}};
  saved.turns = {{3, {{"a", "1"}}, "pair"}, {9, {{"b", "1"}}, "pair"}, {11, {}, "pair"}};
  saved.lost_s = 2;
  saved.ended = true;
  const LiveLedger resumed = resumed_ledger(saved, 10);
  ASSERT_EQ(resumed.ledger.trials.size(), 2U);
  EXPECT_EQ(resumed.ledger.trials[1].name, "slower");
  EXPECT_EQ(resumed.estimates[1].pairs, 7);
  ASSERT_EQ(resumed.turns.size(), 3U);
  EXPECT_EQ(resumed.turns[2].update, 11);
  EXPECT_EQ(resumed.turns[2].settings, saved.ledger.best);
  EXPECT_FALSE(resumed.ended);
  EXPECT_EQ(behind_s(resumed), 2);
  EXPECT_EQ(resumed_ledger(saved, 3).turns.size(), 1U);  // What is kept holds already.
}

TEST(OnlineLedger, TwoProcessesAreOneRun) {
  LiveLedger before, now;
  before.ledger.best = {{"a", "1"}};
  before.ledger.speedup = {1.5, 1.4, 1.6};
  before.ledger.speedup_pairs = 10;
  before.turns = {{3, {{"a", "1"}}, "kept"}};
  before.lost_s = 2, before.lost_most_s = 3, before.lost_allowed_s = 11, before.updates = 20;
  now.turns = {{25, {{"b", "2"}}, "pair"}, {26, {}, "kept"}};
  now.lost_s = -1, now.lost_most_s = 4, now.lost_allowed_s = 9, now.updates = 30;
  now.ended = true, now.end_reason = "over";
  const LiveLedger whole = joined_ledger(before, now);
  EXPECT_EQ(whole.turns[1].settings, (Settings{{"a", "1"}, {"b", "2"}}));
  EXPECT_EQ(whole.turns[2].settings, (Settings{{"a", "1"}}));
  EXPECT_EQ(whole.ledger.best, before.ledger.best);
  EXPECT_EQ(whole.ledger.speedup.median, 1.5);
  EXPECT_EQ(whole.updates, 50);
  EXPECT_EQ(whole.lost_s, 1);
  EXPECT_EQ(whole.lost_most_s, 6);
  EXPECT_EQ(whole.lost_allowed_s, 11);
  EXPECT_EQ(whole.end_reason, "over");
  now.ledger.best = {{"b", "2"}};
  EXPECT_TRUE(std::isnan(joined_ledger(before, now).ledger.speedup.median));  // Nobody measured both together.
  EXPECT_EQ(joined_ledger(before, now).ledger.best, (Settings{{"a", "1"}, {"b", "2"}}));
}

}  // namespace
}  // namespace headrace
