#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "app/knobs/knob.h"

namespace headrace {
namespace {

using nlohmann::json;

KnobContext context_of(const Recipe& recipe, int cores, const DataContext& data = {}) {
  Machine machine;
  machine.cores_usable = cores;
  return headrace::context_of(recipe, machine, data);
}

json described(const Candidate& candidate) {
  json one{{"name", candidate.name},
           {"changes", candidate.changes},
           {"numerics", to_string(candidate.numerics)},
           {"resource", candidate.resource}};
  if (candidate.late_share != 0) one["late_share"] = candidate.late_share;
  if (candidate.divides_cores) one["divides_cores"] = true;
  return one;
}

// tests/recorded/candidates.json holds what was offered while recipes and hr.tune each had a list of their own. Offered
// since then are knobs of other keys, and numbers of threads that hr.tune alone tried.
TEST(Knobs, ARecipeIsOfferedWhatItWasInTheOrderItWas) {
  json recorded;
  std::ifstream("tests/recorded/candidates.json") >> recorded;
  ASSERT_EQ(recorded["recipes"].size(), 12U);
  std::set<std::string> names, keys;
  for (const json& entry : recorded["recipes"]) {
    for (const json& candidate : entry["compute"]) {
      names.insert(candidate["name"]);
      for (const auto& [key, value] : candidate["changes"].items()) keys.insert(key);
    }
  }
  for (const json& entry : recorded["recipes"]) {
    const std::string name = entry["recipe"];
    const int cores = entry["cores"];
    SCOPED_TRACE(name + " on " + std::to_string(cores));
    const Recipe recipe = load_recipe("examples/" + name + ".toml", {}).recipe;
    DataContext data;
    if (name != "fashion_mnist") data = {.cache_share = 0.75, .scaled_share = 0.5, .trial_index = true};
    for (const char* bound : {"compute", "data"}) {
      json found = json::array(), found_names = json::array();
      std::vector<std::string> since;
      for (const Candidate& candidate : offer(context_of(recipe, cores, data), bound).candidates) {
        if (!keys.contains(candidate.key)) continue;
        if (!names.contains(candidate.name)) {
          since.push_back(candidate.name);
          continue;
        }
        found.push_back(described(candidate));
        found_names.push_back(candidate.name);
      }
      EXPECT_EQ(bound == std::string("compute") ? found : found_names, entry[bound]);
      EXPECT_EQ(since, cores > 2 ? std::vector<std::string>{"compute threads 1"} : std::vector<std::string>{});
    }
  }
}

TEST(Knobs, KeysAreOptionsOrMarkedPython) {
  Recipe recipe;
  const std::vector<Field> fields = all_fields(recipe);
  std::set<std::string_view> keys;
  for (const Knob& knob : all_knobs()) {
    SCOPED_TRACE(knob.key);
    EXPECT_TRUE(keys.insert(knob.key).second);
    const bool is_option =
        std::any_of(fields.begin(), fields.end(), [&](const Field& field) { return field.key == knob.key; });
    EXPECT_NE(is_option, knob.python);
    for (const std::string& excluded : knob.excludes) EXPECT_NE(excluded, knob.key);
  }
  for (const Knob& knob : all_knobs()) {
    for (const std::string& excluded : knob.excludes) EXPECT_TRUE(keys.contains(excluded)) << excluded;
  }
}

void expect_all_named_or_explained(const KnobContext& context) {
  const Offer offered = offer(context, "compute");
  for (const Knob& knob : all_knobs()) {
    if (knob.key == "tune.planted") continue;  // Nobody misses those.
    SCOPED_TRACE(knob.key);
    const auto is_tried = std::any_of(offered.candidates.begin(), offered.candidates.end(),
                                      [&](const Candidate& candidate) { return candidate.key == knob.key; });
    const auto explained = std::count_if(offered.not_tried.begin(), offered.not_tried.end(),
                                         [&](const Report::NotTried& change) { return change.key == knob.key; });
    EXPECT_EQ(explained, is_tried ? 0 : 1);
  }
  for (const Report::NotTried& change : offered.not_tried) {
    EXPECT_FALSE(change.name.empty() || change.reason.empty()) << change.key;
    EXPECT_NE(change.reason.back(), '.') << change.reason;  // A report adds it.
  }
}

TEST(Knobs, EveryDoorNamesOrExplainsEveryKnob) {
  Recipe plain, tuned;
  plain.train.epochs = tuned.train.epochs = 3;
  plain.data.num_workers = 0;
  plain.optimizer.set_implementation(OptimizerImplementation::for_loop);
  tuned.optimizer.set_implementation(OptimizerImplementation::fused);
  tuned.model.memory_format = MemoryFormat::channels_last;
  tuned.model.fusion = Fusion::norm_relu_pool;
  tuned.train.precision = Precision::bf16;
  tuned.data.cache = Cache::decoded;
  tuned.data.index = IndexUse::build;
  tuned.data.scale_decode = true;
  tuned.data.num_workers = tuned.data.prefetch_batches = AUTOTUNE;
  for (const Recipe& recipe : {plain, tuned}) {
    for (const int cores : {1, 2, 4}) {
      expect_all_named_or_explained(context_of(recipe, cores));
      KnobContext context = context_of(recipe, cores, {.cache_share = 1, .scaled_share = 1, .trial_index = true});
      expect_all_named_or_explained(context);
      context.door = Door::python;
      for (const LoaderKind loader :
           {LoaderKind::headrace, LoaderKind::headrace_processes, LoaderKind::torch, LoaderKind::other}) {
        context.loader = loader;
        context.loader_type = "list";
        context.has_replacement = loader == LoaderKind::torch;
        context.recipe.data.num_workers = loader == LoaderKind::headrace_processes ? 1 : 0;
        for (const bool live : {true, false}) {
          context.live = live;
          expect_all_named_or_explained(context);
        }
      }
    }
  }
}

TEST(Knobs, WhatTheDoorKnowsComesBeforeWhatTheKnobSays) {
  KnobContext context = context_of(Recipe{}, 2);
  context.refused["train.precision"] = "the parameters are not float32 alone";
  const Offer offered = offer(context, "data");
  const auto refused = std::find_if(offered.not_tried.begin(), offered.not_tried.end(),
                                    [](const Report::NotTried& change) { return change.key == "train.precision"; });
  ASSERT_NE(refused, offered.not_tried.end());
  EXPECT_EQ(refused->name, "bf16 autocast");
  EXPECT_EQ(refused->reason, "the parameters are not float32 alone");
}

// A number of workers that also brings another loader is more than a division of cores.
TEST(Knobs, WorkersOfALoaderThatCanBeReplacedBringTheLoaderBackUnlessItIsFixed) {
  KnobContext context = context_of(Recipe{}, 4);
  context.door = Door::python;
  context.loader = LoaderKind::torch;
  context.has_replacement = true;
  for (const bool is_fixed : {false, true}) {
    if (is_fixed) context.recipe.tune.fixed = {"data.loader"};
    for (const Candidate& candidate : offer(context, "data").candidates) {
      if (candidate.key != "data.num_workers") continue;
      EXPECT_EQ(candidate.changes.contains("data.loader"), !is_fixed);
      EXPECT_EQ(candidate.divides_cores, is_fixed);
    }
  }
}

std::set<std::string> keys_that_change_batches(const KnobContext& context) {
  std::set<std::string> keys;
  for (const Candidate& candidate : offer(context, "data").candidates) {
    if (candidate.changes_batches) keys.insert(candidate.key);
  }
  return keys;
}

TEST(Knobs, WhatBringsOtherBatchesIsMarkedAndOtherDrawsOfWorkersCountAsRounding) {
  using Keys = std::set<std::string>;
  EXPECT_EQ(keys_that_change_batches(context_of(Recipe{}, 4, {.cache_share = 1, .scaled_share = 1})),
            Keys{"data.scale_decode"});
  KnobContext context = context_of(Recipe{}, 4);
  context.door = Door::python;
  context.loader = LoaderKind::torch;
  EXPECT_EQ(keys_that_change_batches(context), Keys{"data.loader"});
  context.workers_change_batches = true;
  EXPECT_EQ(keys_that_change_batches(context), (Keys{"data.loader", "data.num_workers"}));
  for (const Candidate& candidate : offer(context, "data").candidates) {
    if (candidate.key != "data.num_workers") continue;
    EXPECT_EQ(candidate.numerics, NumericClass::rounding);
    EXPECT_THAT(candidate.sentence, testing::HasSubstr("Other draws:"));
  }
}

KnobContext live_context() {
  KnobContext context = context_of(Recipe{}, 2);
  context.door = Door::python;
  context.live = true;
  context.loader = LoaderKind::torch;
  context.recipe.compute.allocator = Allocator::system;
  context.recipe.optimizer.set_implementation(OptimizerImplementation::for_loop);
  for (const char* key : {"train.engine", "train.micro_batches"})
    context.refused[key] = "the loop makes its steps itself";
  return context;
}

TEST(Knobs, ALiveRunIsOfferedWhatSwitchesBetweenTwoStepsFromTheHardwareToTheModel) {
  KnobContext context = live_context();
  context.run_steps = 1000;
  const Offer offered = offer(context, "data");
  std::vector<std::string> keys;
  for (const Candidate& candidate : offered.candidates) {
    keys.push_back(candidate.key);
    EXPECT_EQ(candidate.switches, Switches::live_step) << candidate.name;
    EXPECT_EQ(candidate.carries_over, candidate.key.starts_with("data.")) << candidate.name;
  }
  // Two numbers of workers.
  EXPECT_EQ(keys, (std::vector<std::string>{"compute.allocator", "compute.intra_op_threads", "compute.flush_denormal",
                                            "data.num_workers", "data.num_workers", "data.prefetch_batches",
                                            "train.precision", "optimizer.fused", "optimizer.foreach",
                                            "model.memory_format", "model.compile"}));
  EXPECT_GT(offered.candidates.back().prepare_s, 0);
}

TEST(Knobs, TheOrderOfPromiseIsThatOfTheTableWhateverOrderIsTried) {
  KnobContext context = live_context();
  context.run_steps = 1000;
  for (const bool live : {true, false}) {
    context.live = live;
    std::vector<Candidate> candidates = offer(context, "data").candidates;
    std::sort(candidates.begin(), candidates.end(),
              [](const Candidate& a, const Candidate& b) { return a.promise_rank < b.promise_rank; });
    std::vector<std::string> keys;
    for (const Candidate& candidate : candidates) {
      EXPECT_GT(candidate.promise_rank, 0) << candidate.name;
      if (keys.empty() || keys.back() != candidate.key) keys.push_back(candidate.key);
    }
    std::vector<std::string> table;
    for (const Knob& knob : all_knobs()) {
      if (std::find(keys.begin(), keys.end(), knob.key) != keys.end()) table.emplace_back(knob.key);
    }
    EXPECT_EQ(keys, table);
    EXPECT_LT(std::find(keys.begin(), keys.end(), "optimizer.fused"),
              std::find(keys.begin(), keys.end(), "compute.intra_op_threads"));
  }
}

std::string why_not_tried(const Offer& offered, std::string_view key) {
  const auto found = std::find_if(offered.not_tried.begin(), offered.not_tried.end(),
                                  [&](const Report::NotTried& change) { return change.key == key; });
  return found == offered.not_tried.end() ? "" : found->reason;
}

TEST(Knobs, TheFusedOptimizerIsTriedWhereTheRecipeWritesThePlainForm) {
  Recipe recipe;
  EXPECT_EQ(why_not_tried(offer(context_of(recipe, 2), ""), "optimizer.fused"), "the optimizer is fused already");
  recipe.optimizer.foreach = Switch::on;  // Beside fused = "auto", which it rules out.
  const std::vector<Candidate> beside_foreach = offer(context_of(recipe, 2), "").candidates;
  recipe.optimizer.set_implementation(OptimizerImplementation::for_loop);
  const std::vector<Candidate> plain = offer(context_of(recipe, 2), "").candidates;
  const auto changes_of = [](const std::vector<Candidate>& candidates) -> Settings {
    for (const Candidate& candidate : candidates) {
      if (candidate.key == "optimizer.fused") return candidate.changes;
    }
    return {};
  };
  EXPECT_EQ(changes_of(beside_foreach), (Settings{{"optimizer.foreach", "false"}, {"optimizer.fused", "true"}}));
  EXPECT_EQ(changes_of(plain), (Settings{{"optimizer.fused", "true"}}));
}

TEST(Knobs, ForeachIsAnAlternativeToFusedInALoopOfPythonUnderWay) {
  KnobContext context = live_context();
  const std::vector<Candidate> candidates = offer(context, "").candidates;
  const auto foreach = std::find_if(candidates.begin(), candidates.end(),
                                    [](const Candidate& one) { return one.key == "optimizer.foreach"; });
  ASSERT_NE(foreach, candidates.end());
  EXPECT_EQ(foreach->name, "foreach optimizer");
  EXPECT_EQ(foreach->changes, (Settings{{"optimizer.foreach", "true"}}));
  EXPECT_EQ(foreach->numerics, NumericClass::rounding);
  EXPECT_EQ(foreach->excludes, std::vector<std::string>{"optimizer.fused"});
  context.live = false;
  EXPECT_EQ(why_not_tried(offer(context, ""), "optimizer.foreach"), "headrace.autotune tries it while a run goes on");
  context.door = Door::recipe;
  for (const bool live : {true, false}) {
    context.live = live;
    EXPECT_EQ(why_not_tried(offer(context, ""), "optimizer.foreach"),
              "a recipe's optimizers have a fused implementation");
  }
}

TEST(Knobs, ALiveRunIsOfferedTheLoadingThatSwitchesAndPaysBetweenTwoSteps) {
  const Offer torch = offer(live_context(), "");
  for (const char* key : {"data.loader", "data.batched"}) {
    EXPECT_EQ(why_not_tried(torch, key), "it takes effect between two epochs; headrace.tune tries it") << key;
  }
  KnobContext context = live_context();
  context.loader = LoaderKind::headrace;
  context.recipe.train.epochs = 4;
  context.data = {.cache_share = 1, .scaled_share = 1, .trial_index = true};
  const Offer own = offer(context, "");
  EXPECT_EQ(why_not_tried(own, "data.cache"),
            "it pays once a whole epoch was made under it, and pairs of a few steps do not show that; "
            "headrace.tune tries it");
  EXPECT_THAT(why_not_tried(own, "data.index"), testing::HasSubstr("made anew"));
  EXPECT_EQ(why_not_tried(own, "data.num_workers") + why_not_tried(own, "data.prefetch_batches"), "");
  context.live = false;
  EXPECT_EQ(why_not_tried(offer(context, ""), "data.cache"), "");
}

TEST(Knobs, OneValueThatTheDoorRulesOutIsExplainedAndTheOthersStay) {
  KnobContext context = live_context();
  context.cores = 4;
  context.recipe.data.num_workers = 2;
  context.refused_values[{"data.num_workers", "0"}] = "its worker_init_fn prepares each of them";
  const Offer offered = offer(context, "");
  std::vector<std::string> names;
  for (const Candidate& candidate : offered.candidates) {
    if (candidate.key == "data.num_workers") names.push_back(candidate.name);
  }
  EXPECT_EQ(names, std::vector<std::string>{"num_workers 4"});
  EXPECT_EQ(why_not_tried(offered, "data.num_workers"), "its worker_init_fn prepares each of them");
}

TEST(Knobs, OtherDrawsOfWorkersAreRoundingInALiveRunTooAndTheSameBatchesBitEqual) {
  KnobContext context = live_context();
  for (const bool draws : {false, true}) {
    context.workers_change_batches = draws;
    for (const Candidate& candidate : offer(context, "").candidates) {
      if (!candidate.key.starts_with("data.")) continue;
      const bool is_other = draws && candidate.key == "data.num_workers";
      EXPECT_EQ(candidate.numerics, is_other ? NumericClass::rounding : NumericClass::bit_equal) << candidate.name;
      EXPECT_EQ(candidate.changes_batches, is_other) << candidate.name;
    }
  }
}

TEST(Knobs, WhatALoaderFindsItselfIsNotSaidOfOneThatFindsNothing) {
  Recipe recipe;
  recipe.data.num_workers = recipe.data.prefetch_batches = AUTOTUNE;
  for (const bool auto_tune : {true, false}) {
    recipe.data.auto_tune = auto_tune;
    const Offer offered = offer(context_of(recipe, 2), "data");
    EXPECT_EQ(why_not_tried(offered, "data.prefetch_batches"),
              auto_tune ? "the loader itself deepens it where that pays"
                        : "it is \"auto\", which stays as it began: data.auto_tune is false");
    const auto workers = std::find_if(offered.candidates.begin(), offered.candidates.end(),
                                      [](const Candidate& candidate) { return candidate.name == "num_workers 2"; });
    ASSERT_NE(workers, offered.candidates.end());
    EXPECT_EQ(workers->sentence, auto_tune ? "Load with 2 threads instead of as many as it finds."
                                           : "Load with 2 threads instead of as many as it begins with.");
  }
}

TEST(Knobs, ALiveRunOfUnknownLengthIsNotCompiled) {
  const Offer offered = offer(live_context(), "");
  const auto compiled = std::find_if(offered.not_tried.begin(), offered.not_tried.end(),
                                     [](const Report::NotTried& change) { return change.key == "model.compile"; });
  ASSERT_NE(compiled, offered.not_tried.end());
  EXPECT_EQ(compiled->reason, "the length of the run is not known: give epochs or steps");
}

}  // namespace
}  // namespace headrace
