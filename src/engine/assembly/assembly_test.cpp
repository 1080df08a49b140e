#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/time_split.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <thread>

#include "app/knobs/knob.h"
#include "core/base/clock.h"
#include "core/exec/stop.h"
#include "data/pack/pack_build.h"
#include "engine/assembly/photo_recipe.h"
#include "engine/assembly/state.h"
#include "engine/assembly/tiny_dataset.h"
#include "engine/assembly/training_job.h"
#include "insight/measure/measure.h"
#include "insight/tune/comparison.h"
#include "insight/tune/numeric_check.h"
#include "media/codec/tiny_images.h"
#include "torch/train/training_state.h"

namespace headrace {
namespace {

Recipe planted_recipe(const TinyDataset& data, PlantedOptions planted) {
  Recipe recipe = data.recipe();
  recipe.tune.planted = {std::move(planted)};
  return recipe;
}

std::vector<Candidate> candidates(const Recipe& recipe, const Machine& machine, const std::string& bound,
                                  const DataContext& context = {}) {
  return offer(context_of(recipe, machine, context), bound).candidates;
}

double gradient_distance(const Fingerprint& a, const Fingerprint& b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.gradients.size(); ++i) {
    for (std::size_t j = 0; j < a.gradients[i].values.size(); ++j) {
      const double x = a.gradients[i].values[j], y = b.gradients[i].values[j];
      difference += (x - y) * (x - y);
      size += y * y;
    }
  }
  return std::sqrt(difference / size);
}

TEST(TrainingJob, RestoreBringsBackEveryBitAndTheSameSamples) {
  const TinyDataset data{400};
  TrainingJob job{data.recipe(), detect_machine()};
  job.run(3);
  job.snapshot();
  const std::uint64_t before = job.state_hash();
  job.run(15);  // Over the end of the epoch of 13 batches.
  const std::uint64_t after = job.state_hash();
  EXPECT_NE(before, after);
  job.restore();
  EXPECT_EQ(before, job.state_hash());
  job.run(15);
  EXPECT_EQ(after, job.state_hash());
}

TEST(TrainingJob, RestoreBringsBackTheAveragesToo) {
  const TinyDataset data{400};
  Recipe recipe = data.recipe();
  recipe.model.name = "small_cnn";  // Has running statistics.
  recipe.train.ema_decay = 0.9;
  TrainingJob job{recipe, detect_machine()};
  const auto averages = [&] { return hash_of(job.training().trainer().averages()); };
  job.run(3);
  job.snapshot();
  const std::uint64_t before = averages();
  job.run(4);
  const std::uint64_t after = averages();
  EXPECT_NE(before, after);
  job.restore();
  EXPECT_EQ(before, averages());
  job.run(4);
  EXPECT_EQ(after, averages());
}

TEST(TrainingJob, ASplitRunTakesTheSameStepsAndDividesTheirSeconds) {
  const TinyDataset data{400};
  TrainingJob job{data.recipe(), detect_machine()};
  job.snapshot();
  job.run(15);
  const std::uint64_t after = job.state_hash();
  job.restore();
  const Job::SplitRun block = job.run_split(15);  // Over the end of the epoch of 13 batches.
  EXPECT_EQ(after, job.state_hash());
  ASSERT_TRUE(block.split);
  EXPECT_EQ(block.split->steps, 15);
  EXPECT_EQ(block.split->step_s, block.step_s);
  EXPECT_NEAR(block.split->total_s, std::accumulate(block.step_s.begin(), block.step_s.end(), 0.0), 1e-12);
  for (const double part_s : {block.split->data_wait_s, block.split->transfer_s, block.split->forward_s,
                              block.split->backward_s, block.split->optimizer_s}) {
    EXPECT_GT(part_s, 0);
  }
  EXPECT_GE(block.split->other_s, 0);
}

TEST(TrainingJob, SplitsOfAComparisonAreOfItsPairsBlocks) {
  const TinyDataset data{400};
  TrainingJob job{planted_recipe(data, {.name = "knob", .on_ms = 1}), detect_machine()};
  job.snapshot();
  Comparison comparison(job, {}, {{"planted.knob", "true"}}, {.warmup = 1, .steps = 4}, 0, 1, 0);
  comparison.sum_splits();
  for (int pair = 0; pair < 3; ++pair) ASSERT_FALSE(comparison.measure_pair());
  const auto first = comparison.first_split(), second = comparison.second_split();
  ASSERT_TRUE(first && second);
  const auto seconds = [](const std::vector<double>& block_s) {
    return 4 * std::accumulate(block_s.begin(), block_s.end(), 0.0);
  };
  EXPECT_EQ(first->steps, 3 * 4);
  EXPECT_NEAR(first->total_s, seconds(comparison.first_s()), 1e-9);
  EXPECT_NEAR(second->total_s, seconds(comparison.second_s()), 1e-9);
  EXPECT_GE(second->optimizer_s, 3 * 4 * 1e-3);  // Where the planted knob spends its time, a millisecond a step.
}

TEST(TrainingJob, FingerprintLeavesTheStateAsItWas) {
  const TinyDataset data{400};
  Recipe recipe = data.recipe();
  recipe.model.name = "small_cnn";  // Has running statistics.
  TrainingJob job{recipe, detect_machine()};
  job.snapshot();
  const std::uint64_t before = job.state_hash();
  const Fingerprint first = job.fingerprint(2);
  EXPECT_EQ(before, job.state_hash());
  const Fingerprint again = job.fingerprint(2);
  EXPECT_EQ(first.loss, again.loss);
  EXPECT_EQ(gradient_distance(first, again), 0);
  EXPECT_NE(first.loss, job.fingerprint(3).loss);
  EXPECT_GT(first.gradients.size(), 5U);
}

TEST(TrainingJob, FingerprintInAnOpenWindowLeavesItAsItWas) {
  const TinyDataset data{400};
  Recipe recipe = data.recipe();
  recipe.model.name = "small_cnn";
  recipe.train.gradient_accumulation_steps = 4;
  TrainingJob job{recipe, detect_machine()};
  job.snapshot();
  const auto state_after_a_window = [&job](bool asks) {
    job.restore();
    job.run(2);
    EXPECT_EQ(job.training().trainer().progress().window, 2);
    if (asks) job.fingerprint(0);
    job.run(2);
    EXPECT_EQ(job.training().trainer().progress().optimizer_steps, 1);
    return job.state_hash();
  };
  EXPECT_EQ(state_after_a_window(true), state_after_a_window(false));
}

TEST(TrainingJob, BatchesAsLoadedGoOnOverPassesAndLeaveTheStateAsItWas) {
  const TinyDataset data{400};
  Recipe recipe = data.recipe();
  recipe.model.name = "small_cnn";
  TrainingJob job{recipe, detect_machine()};
  job.run(3);
  job.snapshot();
  job.run(4);
  const std::uint64_t after = job.state_hash();
  job.restore();
  const std::uint64_t before = job.state_hash();
  EXPECT_EQ(job.fingerprint_as_loaded(2).loss, job.fingerprint(2).loss);
  // The first batch of the second epoch of 13, whose order is another one.
  EXPECT_NE(job.fingerprint_as_loaded(13).loss, job.fingerprint_as_loaded(0).loss);
  EXPECT_EQ(job.fingerprint(13).loss, job.fingerprint(0).loss);
  EXPECT_EQ(before, job.state_hash());
  job.run(4);
  EXPECT_EQ(after, job.state_hash());
}

TEST(TrainingJob, AFloat64RunIsNearThatOfFloat32AndLeavesTheStateAsItWas) {
  const TinyDataset data{400};
  Recipe recipe = data.recipe();
  recipe.model.name = "small_cnn";
  recipe.model.fusion = Fusion::norm_relu_pool;  // Which has no float64 form: the plain operators stand for it.
  TrainingJob job{recipe, detect_machine()};
  job.run(3);
  job.snapshot();
  const std::uint64_t before = job.state_hash();
  const at::Tensor generator = generator_state();
  const ExactResult exact = job.exact_fingerprint(2), again = job.exact_fingerprint(2);
  EXPECT_EQ(before, job.state_hash());
  EXPECT_TRUE(at::equal(generator, generator_state()));
  ASSERT_TRUE(exact.fingerprint) << exact.why_not;
  EXPECT_EQ(exact.fingerprint->loss, again.fingerprint->loss);
  const Fingerprint rounded = job.fingerprint(2);
  EXPECT_NE(exact.fingerprint->loss, rounded.loss);
  EXPECT_NEAR(exact.fingerprint->loss / rounded.loss, 1, 1e-5);
  ASSERT_EQ(exact.fingerprint->gradients.size(), rounded.gradients.size());
  for (std::size_t i = 0; i < rounded.gradients.size(); ++i) {
    EXPECT_EQ(exact.fingerprint->gradients[i].name, rounded.gradients[i].name);
    EXPECT_EQ(exact.fingerprint->gradients[i].values.size(), rounded.gradients[i].values.size());
  }
}

TEST(TrainingJob, ARecipeInBfloat16HasNoFloat64RunAndSaysWhy) {
  const TinyDataset data{400};
  Recipe recipe = data.recipe();
  recipe.train.precision = Precision::bf16;
  TrainingJob job{recipe, detect_machine()};
  job.snapshot();
  const ExactResult exact = job.exact_fingerprint(0);
  EXPECT_FALSE(exact.fingerprint);
  EXPECT_NE(exact.why_not.find("train.precision"), std::string::npos);
}

TEST(TrainingJob, AFloat64RunThatMemoryDoesNotHoldIsNotMade) {
  const TinyDataset data{400};
  Machine machine = detect_machine();
  machine.memory_limit = std::int64_t{64} << 20;
  TrainingJob job{data.recipe(), machine};
  job.snapshot();
  const ExactResult exact = job.exact_fingerprint(0);
  EXPECT_FALSE(exact.fingerprint);
  EXPECT_NE(exact.why_not.find("the limit is 64 MiB"), std::string::npos) << exact.why_not;
}

TEST(TrainingJob, AnotherLayoutIsRoundingByItsDistanceFromFloat64AndAPlantedErrorIsNot) {
  const TinyDataset data{400};
  Recipe recipe = data.recipe();
  recipe.model.name = "small_cnn";
  recipe.tune.planted = {{.name = "wrong", .gradient_error = 0.05}};
  TrainingJob job{recipe, detect_machine()};
  job.run(5);
  job.snapshot();
  NumericCheck check(job, [] { return true; },
                     {[] { return static_cast<double>(monotonic_ns()) * 1e-9; }, [] { return 1e9; }});
  const auto result_of = [&](const Settings& settings) {
    EXPECT_TRUE(check.prepare(NumericClass::rounding, {}));
    return *check.check(NumericClass::rounding, settings);
  };
  const NumericResult layout = result_of({{"model.memory_format", "\"channels_last\""}});
  EXPECT_TRUE(layout.passed) << layout.measure << ' ' << layout.value << " of " << layout.tolerance;
  EXPECT_EQ(layout.why_not_float64, "");
  const NumericResult wrong = result_of({{"planted.wrong", "true"}});
  EXPECT_FALSE(wrong.passed);
  EXPECT_EQ(wrong.measure, "gradients, error against float64");
  EXPECT_NEAR(wrong.value, 0.05, 0.01);
  EXPECT_GT(wrong.baseline_error.value(), 0);
}

TEST(TrainingJob, Bf16IsReducedPrecisionByTheDistanceBetweenBatchesAndAPlantedErrorOfFullSizeIsNot) {
  const TinyDataset data{400};
  Recipe recipe = data.recipe();
  recipe.model.name = "small_cnn";
  recipe.tune.planted = {{.name = "wrong", .gradient_error = 1.0}};
  TrainingJob job{recipe, detect_machine()};
  job.run(5);
  job.snapshot();
  NumericCheck check(job, [] { return true; });
  ASSERT_TRUE(check.prepare(NumericClass::reduced_precision, {}));
  const NumericResult low = *check.check(NumericClass::reduced_precision, {{"train.precision", "\"bf16\""}});
  EXPECT_TRUE(low.passed) << low.measure << ' ' << low.value << " of " << low.tolerance;
  EXPECT_GT(low.value, 0);
  EXPECT_FALSE(check.check(NumericClass::reduced_precision, {{"planted.wrong", "true"}})->passed);
}

TEST(TrainingJob, EverySettingOfEveryCandidateCanBeAppliedAndUndone) {
  const TinyDataset data{400};
  Recipe recipe = data.recipe();
  recipe.model.name = "small_cnn";
  recipe.optimizer.set_implementation(OptimizerImplementation::for_loop);
  const Machine machine = detect_machine();
  TrainingJob job{recipe, machine};
  job.snapshot();
  job.run(4);
  const std::uint64_t plain = job.state_hash();
  for (const Candidate& candidate : candidates(recipe, machine, "compute")) {
    SCOPED_TRACE(candidate.name);
    job.restore();
    job.configure(candidate.changes);
    job.run(4);
    if (candidate.numerics == NumericClass::bit_equal) {
      EXPECT_EQ(plain, job.state_hash());
    }
    job.restore();
    job.configure({});
    job.run(4);
    EXPECT_EQ(plain, job.state_hash());
  }
}

TEST(TrainingJob, FusedAndChannelsLastUpdateTheSameWithin1e6) {
  const TinyDataset data{400};
  Recipe recipe = data.recipe();
  recipe.model.name = "small_cnn";
  recipe.optimizer.set_implementation(OptimizerImplementation::for_loop);
  TrainingJob job{recipe, detect_machine()};
  job.run(5);
  job.snapshot();
  const Settings fused{{"optimizer.fused", "true"}};
  const Settings both{{"optimizer.fused", "true"}, {"model.memory_format", "\"channels_last\""}};
  EXPECT_LE(job.update_difference(fused, {}), 1e-6);
  EXPECT_LE(job.update_difference(both, {}), 1e-6);
  EXPECT_EQ(job.update_difference({}, {}), 0);
}

TEST(TrainingJob, FusionIsSwitchedLiveAndBack) {
  const TinyDataset data{400};
  Recipe recipe = data.recipe();
  recipe.model.name = "small_cnn";
  TrainingJob job{recipe, detect_machine()};
  job.snapshot();
  const Fingerprint plain = job.fingerprint(0);
  job.configure({{"model.fusion", "\"norm_relu_pool\""}});
  const Fingerprint fused = job.fingerprint(0);
  EXPECT_GT(gradient_distance(fused, plain), 0);  // Other sums, other rounding.
  EXPECT_LE(gradient_distance(fused, plain), 1e-4);
  job.configure({});
  EXPECT_EQ(gradient_distance(job.fingerprint(0), plain), 0);
}

TEST(TrainingJob, PlantedGradientErrorIsTheRelativeErrorAskedFor) {
  const TinyDataset data{400};
  TrainingJob job{planted_recipe(data, {.name = "wrong", .gradient_error = 0.05}), detect_machine()};
  job.snapshot();
  const Fingerprint plain = job.fingerprint(0);
  job.configure({{"planted.wrong", "true"}});
  EXPECT_NEAR(gradient_distance(job.fingerprint(0), plain), 0.05, 1e-4);
}

TEST(TrainingJob, PlantedThrowNamesTheKnobAndRestoreRecovers) {
  const TinyDataset data{400};
  TrainingJob job{planted_recipe(data, {.name = "thrower", .throw_probability = 1.0}), detect_machine()};
  job.snapshot();
  const std::uint64_t before = job.state_hash();
  job.run(2);  // Off: nothing is thrown.
  job.configure({{"planted.thrower", "true"}});
  try {
    job.run(1);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("thrower"), std::string::npos);
  }
  job.restore();
  job.configure({});
  EXPECT_EQ(before, job.state_hash());
  EXPECT_EQ(job.run(2).size(), 2U);
}

TEST(TrainingJob, UnknownSettingIsRefusedAndChangesNothing) {
  const TinyDataset data{400};
  TrainingJob job{data.recipe(), detect_machine()};
  EXPECT_THROW(job.configure({{"planted.nobody", "true"}}), Error);
  EXPECT_THROW(job.configure({{"data.thread", "2"}}), Error);
  EXPECT_EQ(job.training().recipe().data.num_workers, 1);
}

TEST(TrainingJob, FreeDataGoesOnWhereTheDataStood) {
  const TinyDataset data{400};
  TrainingJob job{data.recipe(), detect_machine()};
  job.run(3);
  job.set_free_data(true);
  job.run(40);  // More than an epoch's batches.
  job.set_free_data(false);
  EXPECT_EQ(job.training().trainer().progress().epoch, 0);
  EXPECT_EQ(job.training().trainer().progress().batch, 3);
  job.run(1);
  EXPECT_EQ(job.training().trainer().progress().batch, 4);
}

TEST(TrainingJob, StopRequestEndsARunWithCancelled) {
  const TinyDataset data{400};
  TrainingJob job{data.recipe(), detect_machine()};
  request_stop(15);
  try {
    job.run(1);
    ADD_FAILURE() << "went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::cancelled);
  }
  request_stop(0);
}

TEST(TrainingJob, GroupsOfTheOptimizerKeepTheirRatesUnderLiveKnobs) {
  const TinyDataset data{400};
  Recipe recipe = data.recipe();
  recipe.optimizer.set_implementation(OptimizerImplementation::for_loop);
  recipe.optimizer.lr = 0.02;
  recipe.optimizer.weight_decay = 0.01;
  recipe.optimizer.decay_mult_1d = 0;
  recipe.optimizer.group = {{.params = {"fc1"}, .lr_mult = 0}};
  recipe.lr_scheduler.name = LrSchedulerName::CosineAnnealingLR;
  recipe.lr_scheduler.eta_min = 0.01;
  TrainingJob job{recipe, detect_machine()};
  Trainer& trainer = job.training().trainer();
  for (const bool fused : {true, false}) {
    job.configure(fused ? Settings{{"optimizer.fused", "true"}} : Settings{});
    ASSERT_EQ(trainer.optimizer().groups(), 4U);
    const std::vector<std::pair<double, double>> wanted{{1, 0.01}, {1, 0}, {0, 0.01}, {0, 0}};
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const OptimizerOptions& options = trainer.optimizer().options(i);
      EXPECT_EQ(options.lr, 0.02) << i;
      EXPECT_EQ(trainer.optimizer().lr_mult(i), wanted[i].first) << i;
      EXPECT_EQ(options.weight_decay, wanted[i].second) << i;
      EXPECT_EQ(options.implementation() == OptimizerImplementation::fused, fused) << i;
    }
    const NamedTensors before = copies_of(trainer.model().parameters);
    job.run(3);
    for (std::size_t i = 0; i < before.size(); ++i) {
      const auto& [name, parameter] = trainer.model().parameters[i];
      EXPECT_EQ(same_bits(parameter, before[i].second), name.starts_with("fc1.")) << name;
    }
  }
}

// Of what a recipe asks for, as "requested, applied, reason"; empty: it tells nothing of this key.
std::string told_of(const Recipe& recipe, const std::string& key) {
  const Training training{recipe, detect_machine()};
  for (const Applied& applied : training.applied()) {
    if (applied.key == key) return applied.requested + ", " + applied.applied + ", " + applied.reason;
  }
  return "";
}

TEST(Training, TellsTheFormOfTheOptimizersUpdate) {
  const TinyDataset data{400};
  Recipe recipe = data.recipe();
  for (const OptimizerName name :
       {OptimizerName::adamw, OptimizerName::adam, OptimizerName::sgd, OptimizerName::rmsprop}) {
    recipe.optimizer.name = name;
    EXPECT_EQ(told_of(recipe, "optimizer.fused"), "auto, true, ") << choice_name(name);
  }
  recipe.optimizer.fused = Switch::on;
  EXPECT_EQ(told_of(recipe, "optimizer.fused"), "true, true, ");
  recipe.optimizer.fused = Switch::off;
  EXPECT_EQ(told_of(recipe, "optimizer.fused"), "false, false, ");
  recipe.optimizer.fused = Switch::automatic;
  recipe.optimizer.foreach = Switch::on;
  EXPECT_EQ(told_of(recipe, "optimizer.foreach"), "true, true, ");
  EXPECT_EQ(told_of(recipe, "optimizer.fused"), "") << "nobody asked for it";
}

TEST(Training, NamesTheKernelOfAttention) {
  const TinyDataset data{400};
  Recipe recipe = data.recipe();
  EXPECT_EQ(told_of(recipe, "model.attention"), "");
  recipe.model.name = "vit";
  recipe.model.vit = {.patch_size = 4, .num_layers = 1, .num_heads = 2, .hidden_dim = 16, .mlp_dim = 16};
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    recipe.train.precision = precision;
    EXPECT_EQ(told_of(recipe, "model.attention"), "auto, flash, ") << choice_name(precision);
  }
  recipe.model.vit.attention_dropout = 0.1;
  EXPECT_EQ(told_of(recipe, "model.attention"),
            "auto, math, model.vit.attention_dropout is above 0, for which the CPU has no other kernel");
}

TEST(Training, TellsOfKeysThatActOnADeviceAlone) {
  const TinyDataset data{400};
  Recipe recipe = data.recipe();
  EXPECT_EQ(told_of(recipe, "train.cuda_graph"), "");
  EXPECT_EQ(told_of(recipe, "train.loss_interval"), "");
  recipe.train.cuda_graph = true;
  recipe.train.loss_interval = 100;
  EXPECT_EQ(told_of(recipe, "train.cuda_graph"), "true, false, the model is on the CPU, where nothing is captured");
  EXPECT_EQ(told_of(recipe, "train.loss_interval"), "100, 1, the model is on the CPU, where each loss is read at once");
}

TEST(Training, ALossOfSmoothedLabelsIsTheSameInEveryForward) {
  const TinyDataset data{400};
  Recipe recipe = data.recipe();
  recipe.loss.label_smoothing = 0.2;
  Training training{recipe, detect_machine()};
  TensorBatch batch = training.trainer().transfer(*training.loader().epoch(0).next());
  const at::Tensor labels = batch["labels"];
  // Of the first so many samples: 0.8 of the target is the label's, the rest is spread over all classes.
  const auto wanted = [&](const Output& output, std::int64_t counted) {
    const at::Tensor log_shares = output.named.at("logits").detach().log_softmax(1).slice(0, 0, counted);
    const at::Tensor of_labels = log_shares.gather(1, labels.slice(0, 0, counted).unsqueeze(1));
    return -0.8 * of_labels.mean().item<double>() - 0.2 * log_shares.mean().item<double>();
  };
  const Output all = training.trainer().forward_backward(batch);
  EXPECT_NEAR(all.loss.item<double>(), wanted(all, 32), 1e-5);
  EXPECT_NEAR(training.frozen_forward()(batch).loss.item<double>(), wanted(all, 32), 1e-5);
  batch.valid = at::ones({32}, at::kByte);
  batch.valid.slice(0, 20, 32).zero_();
  const Output some = training.trainer().forward_backward(batch);
  EXPECT_NEAR(some.loss.item<double>(), wanted(some, 20), 1e-5);
  EXPECT_GT(std::abs(wanted(some, 20) - wanted(some, 32)), 1e-4);

  TrainingJob job{recipe, detect_machine()};
  const ExactResult exact = job.exact_fingerprint(0);
  ASSERT_TRUE(exact.fingerprint) << exact.why_not;
  EXPECT_NEAR(exact.fingerprint->loss / job.fingerprint(0).loss, 1, 1e-5);
}

TEST(Training, TooFewClassesNamesBothNumbers) {
  const TinyDataset data{400};
  Recipe recipe = data.recipe();
  recipe.model.num_classes = 4;
  try {
    Training training{recipe, detect_machine()};
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find('4'), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("10"), std::string::npos);
  }
}

TEST(Candidates, SettingsInForceAreNotListedAndTheBoundComesFirst) {
  Recipe recipe;
  Machine machine;
  machine.cores_usable = 4;
  const std::vector<Candidate> compute = candidates(recipe, machine, "compute"),
                               data = candidates(recipe, machine, "data");
  ASSERT_FALSE(compute.empty());
  EXPECT_EQ(compute.front().resource, "compute");
  EXPECT_EQ(data.front().resource, "data");
  EXPECT_EQ(compute.size(), data.size());
  recipe.optimizer.set_implementation(OptimizerImplementation::fused);
  recipe.model.memory_format = MemoryFormat::channels_last;
  recipe.model.fusion = Fusion::norm_relu_pool;
  for (const Candidate& candidate : candidates(recipe, machine, "compute")) {
    EXPECT_FALSE(candidate.changes.contains("model.fusion"));
    EXPECT_FALSE(candidate.changes.contains("optimizer.fused"));
    EXPECT_FALSE(candidate.changes.contains("model.memory_format"));
  }
}

std::vector<std::string> names_of(const std::vector<Candidate>& list) {
  std::vector<std::string> names;
  for (const Candidate& candidate : list) names.push_back(candidate.name);
  return names;
}

TEST(Candidates, OfDecodingAreListedWhereTheyCouldPay) {
  Recipe recipe;
  recipe.train.epochs = 4;
  Machine machine;
  machine.cores_usable = 4;
  const DataContext context{.cache_share = 1, .scaled_share = 0.25, .trial_index = true};
  EXPECT_THAT(names_of(candidates(recipe, machine, "data")),
              testing::Not(testing::Contains(testing::AnyOf("entropy index", "scaled decoding"))));
  const std::vector<Candidate> all = candidates(recipe, machine, "data", context);
  const auto index = std::find_if(all.begin(), all.end(), [](const auto& c) { return c.name == "entropy index"; });
  ASSERT_LT(index + 2, all.end());
  EXPECT_EQ(index[0].late_share, 1.5 / 4);
  EXPECT_EQ(index[0].numerics, NumericClass::bit_equal);
  EXPECT_EQ(index[1].name, "scaled decoding");
  EXPECT_EQ(index[1].numerics, NumericClass::reduced_precision);
  EXPECT_NE(index[1].sentence.find("25 % of the crops"), std::string::npos);
  EXPECT_EQ(index[2].name, "cache of decoded images");
  recipe.train.epochs = 1;  // Nothing comes after the epoch that makes the index.
  EXPECT_THAT(names_of(candidates(recipe, machine, "data", context)), testing::Not(testing::Contains("entropy index")));
}

// Both have loaders of their own, which take the same samples from the same place.
TEST(TrainingJob, TriesAnIndexAndScaledDecodingAndLeavesTheDataAsItIs) {
  const TinyImages images{{.classes = 4, .count = 6, .height = 200, .width = 220}};
  TrainingJob job{photo_recipe(images), detect_machine()};
  EXPECT_GT(job.training().data_context().scaled_share, 0);
  EXPECT_FALSE(job.training().data_context().trial_index);
  EXPECT_EQ(job.training().make_trial_index([](std::int64_t) { return true; }), "");
  EXPECT_TRUE(job.training().data_context().trial_index);
  job.run(2);  // Somewhere within an epoch.
  job.snapshot();
  const auto hash_after = [&](const Settings& settings) {
    job.configure(settings);
    job.restore();
    job.run(5);
    return job.state_hash();
  };
  const std::uint64_t plain = hash_after({});
  EXPECT_EQ(hash_after({{"data.index", "\"build\""}}), plain);
  EXPECT_GT(job.training().loader().statistics().index_hits, 0);
  const std::uint64_t scaled = hash_after({{"data.scale_decode", "true"}});
  EXPECT_NE(scaled, plain);
  EXPECT_EQ(hash_after({{"data.scale_decode", "true"}, {"data.index", "\"build\""}}), scaled);
  EXPECT_EQ(hash_after({}), plain);
  TrainingJob other{photo_recipe(images), detect_machine()};  // As in the process of a trial.
  other.training().use_trial_index(job.training().trial_index_file());
  other.configure({{"data.index", "\"build\""}});
  other.run(5);
  EXPECT_GT(other.training().loader().statistics().index_hits, 0);
  EXPECT_FALSE(std::filesystem::exists(images.folder() / ".headrace-index"));
}

TEST(TrainingJob, ScaledDecodingBringsTheSameGradientsOnAverageAndAPlantedErrorDoesNot) {
  const TinyImages images{{.classes = 4, .count = 6, .height = 200, .width = 220}};
  Recipe recipe = photo_recipe(images);
  recipe.tune.planted = {{.name = "wrong", .gradient_error = 100}};
  TrainingJob job{recipe, detect_machine()};
  job.run(2);
  job.snapshot();
  const std::uint64_t before = job.state_hash();
  NumericCheck check(job, [] { return true; });
  ASSERT_TRUE(check.prepare_batches());
  const auto value_of = [&](const Settings& settings) {
    const NumericResult result = *check.check_batches(NumericClass::reduced_precision, settings);
    EXPECT_EQ(result.passed, result.value <= kBatchesDistanceFactor);
    return result.value;
  };
  EXPECT_EQ(value_of({}), 0);
  const double scaled = value_of({{"data.scale_decode", "true"}});
  EXPECT_GT(scaled, 0);
  EXPECT_LE(scaled, kBatchesDistanceFactor);
  EXPECT_GT(value_of({{"planted.wrong", "true"}}), kBatchesDistanceFactor);
  EXPECT_EQ(before, job.state_hash());
}

// Their pixels are read by pread and, with lz4, decompressed: a cache spares that, and nothing is left to decode
// smaller.
TEST(Candidates, PacksOfPixelsAreOfferedTheCacheAndPixelsInMemoryAreNot) {
  const TinyImages images{{.classes = 4, .count = 6, .height = 200, .width = 220}};
  const auto context_of = [](const Recipe& recipe) { return Training{recipe, detect_machine()}.data_context(); };
  Recipe recipe = photo_recipe(images);
  for (const PackForm form : {PackForm::raw, PackForm::lz4}) {
    const std::filesystem::path pack = images.folder() / fmt::format("{}.pack", choice_name(form));
    ASSERT_TRUE(write_pack({.source = images.uri(), .out = pack, .form = form},
                           [](std::int64_t, std::int64_t) { return true; }));
    recipe.data.source = "pack:" + pack.string();
    recipe.data.cache_mib = 1;  // Of 24 images of about 143 KB: 3.3 MB.
    const DataContext context = context_of(recipe);
    EXPECT_GT(context.cache_share, 0.2);
    EXPECT_LT(context.cache_share, 0.4);
    EXPECT_EQ(context.scaled_share, 0);
    EXPECT_THAT(names_of(candidates(recipe, detect_machine(), "data", context)),
                testing::Contains("cache of decoded images"));
  }
  EXPECT_EQ(context_of(TinyDataset{400}.recipe()).cache_share, 0);
}

TEST(TrainingJob, AnIndexThatTakesTooLongIsNotTried) {
  const TinyImages images{{.classes = 4, .count = 6}};
  Machine machine = detect_machine();
  machine.cores_usable = 1;
  Training training{photo_recipe(images), machine};
  EXPECT_NE(training.make_trial_index([](std::int64_t done) { return done < 5; }).find("of 24 images"),
            std::string::npos);
  EXPECT_FALSE(training.data_context().trial_index);
}

// Planted in one part of every step: at least that long in that part's median step, and not in any other part's. Those
// take well under a millisecond, and some of them many more where other programs have the cores.
class PlantedSleep : public testing::TestWithParam<StepPart> {
 protected:
  static constexpr double kPlantedMs = 50;
};

TEST_P(PlantedSleep, AppearsInItsPartAlone) {
  const TinyDataset data{400};
  TrainingJob job{data.recipe(), detect_machine()};
  job.run(5);
  job.training().trainer().on_part = [](StepPart part) {
    if (part == GetParam()) std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(kPlantedMs));
  };
  Trace trace;
  job.run(11);
  const TimeSplit split = split_time(trace.stop());
  ASSERT_EQ(split.parts.size(), 11U);
  const auto median_ms = [&](double TimeSplit::Parts::*part) {
    std::vector<double> values;
    for (const TimeSplit::Parts& parts : split.parts) values.push_back(parts.*part * 1e3);
    std::nth_element(values.begin(), values.begin() + 5, values.end());
    return values[5];
  };
  using Parts = TimeSplit::Parts;
  const std::pair<StepPart, double Parts::*> all[] = {{StepPart::transfer, &Parts::transfer_s},
                                                      {StepPart::forward, &Parts::forward_s},
                                                      {StepPart::backward, &Parts::backward_s},
                                                      {StepPart::optimizer, &Parts::optimizer_s}};
  for (const auto& [part, field] : all) {
    if (part == GetParam()) {
      EXPECT_GE(median_ms(field), kPlantedMs);
    } else {
      EXPECT_LT(median_ms(field), kPlantedMs);
    }
  }
  EXPECT_LT(median_ms(&Parts::data_wait_s), kPlantedMs);
}

INSTANTIATE_TEST_SUITE_P(EachPart, PlantedSleep,
                         testing::Values(StepPart::transfer, StepPart::forward, StepPart::backward,
                                         StepPart::optimizer));

}  // namespace
}  // namespace headrace
