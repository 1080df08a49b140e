#include "app/recipe/recipe.h"
#include "core/base/error_of.h"
#include "core/base/temporary_folder.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/option_fields.h>
#include <headrace/option_text.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <utility>

namespace headrace {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

// ---- No field is missing in its describe() ----

// Stands for a value of any type where an aggregate is initialised.
struct AnyValue {
  std::size_t place;
  template <class T>
  operator T() const;
};

template <class T, class Places>
struct TakesValues;
template <class T, std::size_t... place>
struct TakesValues<T, std::index_sequence<place...>> {
  static constexpr bool value = requires { T{AnyValue{place}...}; };
};

// Fields of an aggregate: the largest number of values it can be initialised from.
template <class T, std::size_t tried = 40>
constexpr std::size_t field_count() {
  static_assert(!TakesValues<T, std::make_index_sequence<41>>::value, "more fields than are tried");
  if constexpr (tried == 0 || TakesValues<T, std::make_index_sequence<tried>>::value) {
    return tried;
  } else {
    return field_count<T, tried - 1>();
  }
}

struct ThreeFields {
  std::string a = "x";
  std::vector<double> b{0.0};
  PlantedOptions c;
};
static_assert(field_count<ThreeFields>() == 3);
struct NoFields {};
static_assert(field_count<NoFields>() == 0);

struct AddressCollector {
  std::set<const void*> addresses;
  template <class T, class... Rest>
  void operator()(const char*, T& value, Rest&&...) {
    addresses.insert(&value);
  }
};

template <class T>
class EveryOptionsStruct : public testing::Test {};
using AllOptions = testing::Types<DataOptions, TransformOptions, ModelOptions, LossOptions, TrainOptions,
                                  OptimizerOptions, OptimizerGroupOptions, SchedulerOptions, EvalOptions,
                                  ComputeOptions, TuneOptions, PlantedOptions, ReportOptions, AlertOptions, Recipe
#define HEADRACE_OPERATION(Name) , transforms::Name
#include <headrace/options/transforms.inc>
#undef HEADRACE_OPERATION
                                  >;
TYPED_TEST_SUITE(EveryOptionsStruct, AllOptions);

TYPED_TEST(EveryOptionsStruct, DescribesEachOfItsFields) {
  TypeParam options;
  AddressCollector collector;
  describe(collector, options);
  EXPECT_EQ(collector.addresses.size(), field_count<TypeParam>());
}

TEST(LrSchedulerOptions, DescribeThoseOfOneScheduleAndTheirOwn) {
  LrSchedulerOptions options;
  AddressCollector collector;
  describe(collector, options);
  constexpr std::size_t own = field_count<LrSchedulerOptions>() - 1;  // The base is one.
  EXPECT_EQ(collector.addresses.size(), field_count<SchedulerOptions>() + own);
}

TEST(Recipe, EveryDefaultLiesInItsRange) {
  Recipe recipe;
  recipe.tune.planted.resize(1);
  recipe.optimizer.group.resize(1);
  recipe.lr_scheduler.schedulers.resize(1);
  for (const Field& field : all_fields(recipe)) {
    EXPECT_FALSE(field.sentence.empty()) << field.key;
    if (field.kind == FieldKind::tables) continue;
    EXPECT_NO_THROW(field.set(field.get())) << field.key;
  }
}

// ---- Loading ----

class RecipeFile : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& text) {
    const std::filesystem::path path = folder_ / "small.toml";
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  std::string refusal(const std::string& text, const std::vector<std::pair<std::string, std::string>>& flags = {}) {
    try {
      load_recipe(write(text), flags);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
      return error.what();
    }
    return "accepted";
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

const char* const kSource = "data.source = 'idx:/data'\n";

TEST_F(RecipeFile, FlagsWinOverTheFileAndTheFileOverDefaults) {
  const LoadedRecipe loaded =
      load_recipe(write("seed = 5\n[data]\nsource = 'idx:/data'\nbatch_size = 64\n"),
                  {{"data.batch_size", "32"}, {"data.batch_size", "16"}, {"data.transform.mean", "0.5,0.25"}});
  EXPECT_EQ(loaded.name, "small");
  EXPECT_EQ(loaded.recipe.seed, 5);
  EXPECT_EQ(loaded.recipe.data.batch_size, 16);
  EXPECT_EQ(loaded.recipe.data.transform.mean, (std::vector<double>{0.5, 0.25}));
  EXPECT_EQ(loaded.origins.at("seed"), "small.toml:1");
  EXPECT_EQ(loaded.origins.at("data.source"), "small.toml:3");
  EXPECT_EQ(loaded.origins.at("data.batch_size"), "flag");
  EXPECT_EQ(loaded.origins.at("train.epochs"), "default");
  Recipe recipe;
  EXPECT_EQ(loaded.origins.size(), all_fields(recipe).size());
}

TEST_F(RecipeFile, WhatIsTunedOnlineMayRoundUnlessTheRecipeAllowsMore) {
  const LoadedRecipe plain = load_recipe(write(kSource), {});
  EXPECT_EQ(plain.recipe.tune.allow, NumericClass::reduced_precision);
  EXPECT_EQ(plain.origins.at("tune.allow"), "default");
  const LoadedRecipe online = load_recipe(write(kSource), {{"tune.online", "true"}});
  EXPECT_EQ(online.recipe.tune.allow, NumericClass::rounding);
  EXPECT_EQ(online.origins.at("tune.allow"), "default with tune.online");
  const LoadedRecipe more =
      load_recipe(write(kSource + std::string("[tune]\nallow = 'reduced_precision'\n")), {{"tune.online", "true"}});
  EXPECT_EQ(more.recipe.tune.allow, NumericClass::reduced_precision);
  EXPECT_EQ(more.origins.at("tune.allow"), "small.toml:3");
}

TEST_F(RecipeFile, ARunThatTunesItselfRepeatsNoOtherAndAdapts) {
  const std::string online = kSource + std::string("[tune]\nonline = true\n");
  EXPECT_EQ(refusal(online), "accepted");
  EXPECT_THAT(refusal(online + "replay = 'ledger.json'\n"), HasSubstr("tune.online is true and tune.replay is set"));
  EXPECT_THAT(refusal(online, {{"data.auto_tune", "false"}}),
              HasSubstr("tune.online is true and data.auto_tune is false"));
}

TEST_F(RecipeFile, ListsOfTablesComeFromTheFileOrAFlag) {
  const std::string text =
      std::string(kSource) + "[[tune.planted]]\nname = 'a'\n[[tune.planted]]\nname = 'b'\noff_ms = 3\n";
  const LoadedRecipe from_file = load_recipe(write(text), {});
  EXPECT_EQ(from_file.recipe.tune.planted.at(1).off_ms, 3.0);
  EXPECT_EQ(from_file.origins.at("tune.planted[1].off_ms"), "small.toml:6");
  EXPECT_EQ(from_file.origins.at("tune.planted[0].off_ms"), "default");

  const LoadedRecipe from_flag = load_recipe(write(text), {{"tune.planted", "[{name = 'c', on_ms = 2}]"}});
  ASSERT_EQ(from_flag.recipe.tune.planted.size(), 1U);
  EXPECT_EQ(from_flag.recipe.tune.planted[0].name, "c");
  EXPECT_EQ(from_flag.origins.at("tune.planted[0].on_ms"), "flag");
  EXPECT_FALSE(from_flag.origins.contains("tune.planted[1].off_ms"));
}

TEST_F(RecipeFile, GroupsOfTheOptimizerComeFromTheFileOrAFlag) {
  const std::string text = std::string(kSource) +
                           "[optimizer]\ndecay_mult_1d = 0\n[[optimizer.group]]\nparams = ['conv1', 'layer*']\n"
                           "lr_mult = 0.1\n[[optimizer.group]]\nparams = ['fc']\n";
  const LoadedRecipe from_file = load_recipe(write(text), {});
  const OptimizerOptions& optimizer = from_file.recipe.optimizer;
  ASSERT_EQ(optimizer.group.size(), 2U);
  EXPECT_EQ(optimizer.decay_mult_1d, 0.0);
  EXPECT_EQ(optimizer.group[0].params, (std::vector<std::string>{"conv1", "layer*"}));
  EXPECT_EQ(optimizer.group[0].lr_mult, 0.1);
  EXPECT_EQ(optimizer.group[1].lr_mult, 1.0);
  EXPECT_EQ(from_file.origins.at("optimizer.group[0].lr_mult"), "small.toml:6");
  EXPECT_EQ(from_file.origins.at("optimizer.group[1].lr_mult"), "default");

  const LoadedRecipe from_flag = load_recipe(write(text), {{"optimizer.group", "[{params = ['fc'], decay_mult = 2}]"}});
  ASSERT_EQ(from_flag.recipe.optimizer.group.size(), 1U);
  EXPECT_EQ(from_flag.recipe.optimizer.group[0].decay_mult, 2.0);
  EXPECT_EQ(from_flag.origins.at("optimizer.group[0].params"), "flag");
}

TEST_F(RecipeFile, OperationsComeFromTheFileOrAFlag) {
  const std::string text = std::string(kSource) +
                           "[[data.transforms]]\nname = 'RandomResizedCrop'\nsize = 64\n"
                           "[[data.transforms]]\nscale = true\nname = 'ToDtype'\ndtype = 'float32'\n";
  const LoadedRecipe from_file = load_recipe(write(text), {});
  const auto& list = from_file.recipe.data.transforms;
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(std::get<transforms::RandomResizedCrop>(list[0]).size, std::vector<std::int64_t>{64});
  EXPECT_TRUE(std::get<transforms::ToDtype>(list[1]).scale);
  EXPECT_EQ(from_file.origins.at("data.transforms"), "small.toml:2");
  EXPECT_EQ(from_file.origins.at("data.transforms[1].name"), "small.toml:7");
  EXPECT_EQ(from_file.origins.at("data.transforms[0].scale"), "default");

  const LoadedRecipe from_flag = load_recipe(
      write(text), {{"data.transforms", "[{name = 'ToDtype', dtype = 'float32'}]"}, {"data.transform.layout", "nhwc"}});
  ASSERT_EQ(from_flag.recipe.data.transforms.size(), 1U);
  EXPECT_EQ(from_flag.origins.at("data.transforms[0].dtype"), "flag");

  EXPECT_THAT(refusal(text, {{"data.transform.size", "64"}}),
              HasSubstr("data.transform.size is 64, and data.transforms is set"));
  EXPECT_THAT(refusal(text, {{"data.transforms", "[{name = 'Resize', size = 64}]"}}),
              HasSubstr("data.transforms leaves images as uint8; the network of a recipe reads float32"));
  EXPECT_THAT(refusal(text, {{"data.eval_transforms", "[{name = 'Resize', size = 64}]"}}),
              HasSubstr("data.eval_transforms leaves images as uint8"));
  EXPECT_THAT(refusal(text, {{"data.transforms", "[{name = 'Resize'}]"}}),
              HasSubstr("data.transforms[0].size is missing; Resize has no default for it"));
  EXPECT_THAT(refusal(text, {{"data.transforms", "[{name = 'Resise', size = 9}]"}}),
              AllOf(StartsWith("flag --data.transforms:1: data.transforms[0].name must be Resize | CenterCrop | "),
                    EndsWith(", found \"Resise\", did you mean Resize?")));
}

TEST_F(RecipeFile, RefusesBadValuesByFileLineAndKey) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"seed", "-1"},
      {"seed", "4294967296"},
      {"seed", "1.5"},
      {"data.source", "7"},
      {"data.batch_size", "0"},
      {"data.batch_size", "65537"},
      {"data.batch_size", "'128'"},
      {"data.num_workers", "-2"},
      {"data.num_workers", "257"},
      {"data.prefetch_batches", "0"},
      {"data.last_batch", "'kepp'"},
      {"data.shuffle", "1"},
      {"data.transform.pad", "65"},
      {"data.transform.flip_probability", "1.01"},
      {"data.transform.size", "4097"},
      {"data.transform.crop", "'middle'"},
      {"data.transform.resize", "-1"},
      {"data.transform.scale", "[0.0, 1.0]"},
      {"data.transform.ratio", "[0.5, 101.0]"},
      {"data.transform.mean", "0.5"},
      {"data.transform.mean", "[nan]"},
      {"data.transform.std", "[0.0]"},
      {"model.num_classes", "1"},
      {"model.memory_format", "'nhwc'"},
      {"optimizer.name", "'lamb'"},
      {"optimizer.dampening", "1.5"},
      {"optimizer.alpha", "1.0"},
      {"optimizer.centered", "1"},
      {"optimizer.momentum", "1.0"},
      {"optimizer.lr", "-0.001"},
      {"optimizer.lr", "inf"},
      {"optimizer.betas", "[1.0, 0.9]"},
      {"optimizer.fused", "'foreach_'"},
      {"optimizer.decay_mult_1d", "-1"},
      {"optimizer.layer_decay", "1.5"},
      {"optimizer.group", "{params = ['fc']}"},
      {"loss.label_smoothing", "1.5"},
      {"loss.name", "'focal'"},
      {"loss.class_weights", "[-1.0]"},
      {"lr_scheduler.name", "'linear'"},
      {"lr_scheduler.warmup_steps", "-1"},
      {"lr_scheduler.step_size", "0"},
      {"lr_scheduler.milestones", "[0]"},
      {"lr_scheduler.milestones", "[2.5]"},
      {"lr_scheduler.gamma", "-0.5"},
      {"lr_scheduler.factor", "1.5"},
      {"lr_scheduler.start_factor", "0"},
      {"lr_scheduler.T_max", "-1"},
      {"lr_scheduler.T_mult", "0"},
      {"lr_scheduler.interval", "'batch'"},
      {"lr_scheduler.mode", "'low'"},
      {"lr_scheduler.anneal_strategy", "'cosine'"},
      {"lr_scheduler.threshold_mode", "'relative'"},
      {"lr_scheduler.max_momentum", "1.0"},
      {"lr_scheduler.schedulers", "{name = 'StepLR'}"},
      {"train.epochs", "0"},
      {"train.precision", "'fp8'"},
      {"train.gradient_accumulation_steps", "0"},
      {"train.max_grad_norm", "-1"},
      {"train.grad_norm_type", "'l1'"},
      {"train.grad_norm_per", "'tensor'"},
      {"train.clip_grad_value", "-0.5"},
      {"train.clip_grad_ratio", "-0.01"},
      {"train.ema_decay", "1.0"},
      {"train.ema_warmup", "1"},
      {"train.swa_start", "-1"},
      {"train.swa_lr", "-0.1"},
      {"train.swa_anneal_strategy", "'exp'"},
      {"model.frozen", "'conv1'"},
      {"train.early_stopping_patience", "-1"},
      {"train.async_checkpoints", "'no'"},
      {"train.keep_checkpoints", "0"},
      {"train.checkpoint_every_s", "-1"},
      {"train.on_out_of_memory", "'shrink'"},
      {"train.memory_limit_mib", "-1"},
      {"train.plan_batch_size", "1"},
      {"compute.intra_op_threads", "1025"},
      {"compute.wait_policy", "'spin'"},
      {"compute.allocator", "true"},
      {"tune.budget_s", "0.5"},
      {"tune.gain_min", "'2 %'"},
      {"tune.fixed", "'seed'"},
      {"tune.only", "[1]"},
      {"tune.planted", "{name = 'a'}"},
  };
  for (const auto& [key, value] : bad) {
    const std::string message = refusal("\n" + key + " = " + value + "\n");
    EXPECT_THAT(message, testing::StartsWith((folder_ / "small.toml").string() + ":2: " + key + " must be "));
  }
}

// What people write who know another program; a neighbour in spelling says something else.
TEST_F(RecipeFile, KnowsWhatOtherProgramsCallAKey) {
  const auto meant = [this](const std::string& written) {
    const std::string message = refusal(kSource + written + " = 1");
    const std::size_t at = message.find("unknown key ");
    return at == std::string::npos ? message : message.substr(at);
  };
  EXPECT_EQ(meant("optimizer.learning_rate"), "unknown key optimizer.learning_rate, did you mean optimizer.lr?");
  EXPECT_EQ(meant("workers"), "unknown key workers, did you mean data.num_workers?");
  EXPECT_THAT(meant("transform.std"), HasSubstr("unknown table transform, did you mean data.transform?"));
  EXPECT_EQ(meant("train.grad_clip"), "unknown key train.grad_clip, did you mean train.max_grad_norm?");
  EXPECT_EQ(
      meant("optimizer.xyz"),
      "unknown key optimizer.xyz; the keys of optimizer are name, lr, weight_decay, betas, eps, amsgrad, momentum, "
      "dampening, nesterov, alpha, centered, maximize, fused, foreach, decay_mult_1d, layer_decay, group");
  EXPECT_THAT(meant("nowhere.xyz"), HasSubstr("unknown table nowhere; the tables are data, data.transform, model, "));
}

TEST_F(RecipeFile, RefusesBadFlagsByName) {
  EXPECT_EQ(refusal(kSource, {{"data.batch_size", "0"}}), "flag --data.batch_size must be 1 to 65536, found 0");
  EXPECT_EQ(refusal(kSource, {{"data.batchsize", "1"}}),
            "flag --data.batchsize: unknown key data.batchsize, did you mean data.batch_size?");
  EXPECT_EQ(refusal(kSource, {{"tune.planted", "[]\nseed = 3"}}),
            "flag --tune.planted: []\nseed = 3 is more than one value");
  EXPECT_EQ(refusal(kSource, {{"tune.planted", "[{nme = 'x'}]"}}),
            "flag --tune.planted:1: unknown key tune.planted[0].nme, did you mean tune.planted[0].name?");
}

TEST_F(RecipeFile, RefusesTwoClipsOfOneUpdateAndAClippingKeyWithoutEffect) {
  const auto refused = [this](const std::string& train) { return refusal(kSource + ("\n[train]\n" + train)); };
  EXPECT_THAT(refused("max_grad_norm = 1.0\nclip_grad_value = 0.5"),
              HasSubstr("train.max_grad_norm and train.clip_grad_value are both set; wanted one of them"));
  EXPECT_THAT(refused("clip_grad_value = 0.5\nclip_grad_ratio = 0.01"),
              HasSubstr("train.clip_grad_value and train.clip_grad_ratio are both set; wanted one of them"));
  EXPECT_THAT(refused("grad_norm_type = 'inf'"), HasSubstr("train.grad_norm_type has no effect"));
  EXPECT_THAT(refused("clip_grad_value = 0.5\ngrad_norm_per = 'layer'"),
              HasSubstr("train.grad_norm_per has no effect with train.max_grad_norm = 0"));
  EXPECT_EQ(refused("max_grad_norm = 1.0\ngrad_norm_type = 'inf'\ngrad_norm_per = 'group'"), "accepted");
}

TEST_F(RecipeFile, RefusesFp16WithoutALossScale) {
  const std::string fp16 = kSource + std::string("\n[train]\nprecision = 'fp16'\n");
  EXPECT_THAT(refusal(fp16), HasSubstr("train.precision is \"fp16\" and train.loss_scale is 0"));
  EXPECT_EQ(refusal(fp16 + "loss_scale = 65536"), "accepted");
}

TEST_F(RecipeFile, RefusesContradictions) {
  const std::string file = (folder_ / "small.toml").string();
  EXPECT_THAT(refusal(""), testing::StartsWith(file + ": data.source is missing"));
  EXPECT_THAT(refusal(kSource + std::string("data.transform.mean = []")), HasSubstr("data.transform.mean is empty"));
  EXPECT_THAT(refusal(kSource + std::string("data.transform.std = []")), HasSubstr("data.transform.std is empty"));
  EXPECT_THAT(refusal(kSource + std::string("[data.transform]\nmean = [0, 0, 0]\nstd = [1, 1]")),
              HasSubstr("data.transform.mean has 3 values and data.transform.std has 2"));
  EXPECT_EQ(refusal(kSource + std::string("[data.transform]\nmean = [0, 0, 0]\nstd = [1]")), "accepted");
  EXPECT_THAT(refusal(kSource + std::string("[data.transform]\nsize = 224\nscale = [0.5]")),
              HasSubstr("data.transform.scale has 1 values; wanted 2"));
  EXPECT_THAT(refusal(kSource + std::string("[data.transform]\nsize = 224\nratio = [2, 1]")),
              HasSubstr("data.transform.ratio goes from 2 to 1"));
  EXPECT_THAT(refusal(kSource + std::string("data.transform.crop = 'random'")),
              HasSubstr("data.transform.size is 0, which leaves images as stored"));
  EXPECT_THAT(refusal(kSource + std::string("data.transform.resize = 256")), HasSubstr("need a size"));
  EXPECT_THAT(refusal(kSource + std::string("[data.transform]\nsize = 224\nscale = [0.5, 1]")),
              HasSubstr("no effect without data.transform.crop = \"random_resized\""));
  EXPECT_THAT(refusal(kSource + std::string("[data.transform]\nsize = 224\nresize = 223")),
              HasSubstr("data.transform.resize is 223, data.transform.size is 224"));
  EXPECT_EQ(refusal(kSource + std::string("[data.transform]\nsize = 64\ncrop = 'random_resized'\nscale = [0.5, 1]")),
            "accepted");
  EXPECT_THAT(refusal(kSource + std::string("data.transform.dtype = 'uint8'")),
              HasSubstr("data.transform.dtype is not float32; the network of a recipe reads float32"));
  EXPECT_EQ(refusal(kSource + std::string("data.transform.layout = 'nhwc'")), "accepted");
  EXPECT_THAT(refusal(kSource + std::string("data.world_size = 2\ndata.rank = 2")),
              HasSubstr("data.rank is 2 and data.world_size is 2; wanted a rank from 0 to 1"));
  EXPECT_THAT(refusal(kSource + std::string("data.in_order = false")),
              HasSubstr("data.in_order is false; wanted true: a run could be neither repeated nor resumed"));
  EXPECT_THAT(refusal(kSource + std::string("data.sampler = 'weighted'")), HasSubstr("data.weights is missing"));
  EXPECT_THAT(refusal(kSource + std::string("data.weights = [1.0]")), HasSubstr("data.weights has no effect"));
  EXPECT_THAT(refusal(kSource + std::string("lr_scheduler.eta_min = 0.1")), HasSubstr("lr_scheduler.eta_min"));
  EXPECT_EQ(refusal(kSource + std::string("lr_scheduler = {eta_min = 0.1, name = 'CosineAnnealingLR'}")), "accepted");
  EXPECT_THAT(
      refusal(kSource + std::string("optimizer.momentum = 0.5")),
      HasSubstr(
          "optimizer.momentum has no effect with optimizer.name = \"adamw\"; wanted 0.9, or \"sgd\" or \"rmsprop\""));
  for (const char* idle :
       {"name = 'sgd', amsgrad = true", "name = 'rmsprop', amsgrad = true", "name = 'sgd', eps = 0.1",
        "name = 'rmsprop', betas = [0.8, 0.9]", "name = 'adam', momentum = 0.5", "name = 'rmsprop', nesterov = true",
        "name = 'rmsprop', dampening = 0.5", "dampening = 0.5", "name = 'sgd', alpha = 0.9",
        "name = 'adam', centered = true", "alpha = 0.9"}) {
    EXPECT_THAT(refusal(fmt::format("{}optimizer = {{{}}}", kSource, idle)),
                HasSubstr("has no effect with optimizer.name = "))
        << idle;
  }
  for (const char* acting : {"name = 'adam', amsgrad = true, betas = [0.8, 0.9], eps = 0.1, maximize = true",
                             "name = 'rmsprop', alpha = 0.9, centered = true, momentum = 0, eps = 0.1",
                             "name = 'sgd', dampening = 0.5, maximize = true", "amsgrad = true"}) {
    EXPECT_EQ(refusal(fmt::format("{}optimizer = {{{}}}", kSource, acting)), "accepted") << acting;
  }
  EXPECT_THAT(refusal(kSource + std::string("optimizer = {name = 'sgd', dampening = 0.5, momentum = 0}")),
              HasSubstr("optimizer.dampening has no effect with optimizer.momentum = 0"));
  EXPECT_THAT(refusal(kSource + std::string("optimizer = {name = 'sgd', dampening = 0.5, nesterov = true}")),
              HasSubstr("optimizer.nesterov is true and optimizer.dampening is 0.5; wanted a dampening of 0"));
  EXPECT_THAT(refusal(kSource + std::string("optimizer.nesterov = true")), HasSubstr("optimizer.nesterov"));
  EXPECT_THAT(refusal(kSource + std::string("optimizer = {name = 'sgd', betas = [0.8, 0.9]}")),
              HasSubstr("optimizer.betas"));
  EXPECT_THAT(refusal(kSource + std::string("optimizer = {name = 'sgd', nesterov = true, momentum = 0}")),
              HasSubstr("wanted a momentum above 0"));
  EXPECT_EQ(refusal(kSource + std::string("optimizer = {name = 'sgd', nesterov = true, momentum = 0.8}")), "accepted");
  EXPECT_THAT(refusal(kSource + std::string("[[optimizer.group]]\nparams = ['fc']\n[[optimizer.group]]\nlr_mult = 2")),
              HasSubstr("optimizer.group[1].params is missing; wanted names of parameters or modules"));
  EXPECT_THAT(
      refusal(kSource + std::string("train.ema_warmup = false")),
      HasSubstr("train.ema_warmup has no effect with train.ema_decay = 0; wanted true, or an ema_decay above 0"));
  EXPECT_EQ(refusal(kSource + std::string("train = {ema_warmup = false, ema_decay = 0.99}")), "accepted");
  EXPECT_THAT(refusal(kSource + std::string("train.swa_lr = 0.1")),
              HasSubstr("train.swa_lr has no effect with train.swa_start = 0; wanted a swa_start above 0"));
  EXPECT_THAT(refusal(kSource + std::string("train = {swa_start = 2, swa_anneal_epochs = 3}")),
              HasSubstr("train.swa_anneal_epochs has no effect with train.swa_lr = 0"));
  EXPECT_THAT(refusal(kSource + std::string("train = {swa_start = 2, swa_anneal_strategy = 'linear'}")),
              HasSubstr("train.swa_anneal_strategy has no effect with train.swa_lr = 0"));
  EXPECT_THAT(refusal(kSource + std::string("train = {swa_start = 5, epochs = 4}")),
              HasSubstr("train.swa_start is 5 and train.epochs is 4; wanted an epoch of the run, or 0"));
  EXPECT_THAT(refusal(kSource + std::string("train = {swa_start = 2, ema_decay = 0.9}")),
              HasSubstr("train.swa_start is 2 and train.ema_decay is 0.9, and either would be the result"));
  EXPECT_EQ(refusal(kSource + std::string("train = {swa_start = 2, swa_lr = 0.1, swa_anneal_epochs = 0}")), "accepted");
  for (const char* idle :
       {"lr_factor = 0.25, policy = 'skip'", "keep_every = 7", "max_in_a_row = 3", "max_faults = 5"}) {
    EXPECT_THAT(refusal(fmt::format("{}train.step_guard = {{{}}}", kSource, idle)),
                HasSubstr("has no effect with train.step_guard.policy = "))
        << idle;
  }
  for (const char* acting :
       {"policy = 'lower_lr', lr_factor = 0.25, max_faults = 5", "policy = 'rollback', keep_every = 7",
        "policy = 'skip', max_in_a_row = 3", "detect_anomaly = true"}) {
    EXPECT_EQ(refusal(fmt::format("{}train.step_guard = {{{}}}", kSource, acting)), "accepted") << acting;
  }
  EXPECT_THAT(refusal(kSource + std::string("model.num_classes = 3\nloss.class_weights = [1, 2]")),
              HasSubstr("loss.class_weights has 2 numbers and model.num_classes is 3; wanted one a class"));
  EXPECT_THAT(refusal(kSource + std::string("model.num_classes = 2\nloss.class_weights = [0, 0]")),
              HasSubstr("loss.class_weights are all 0"));
  EXPECT_THAT(refusal(kSource + std::string("model.num_classes = 2\nloss = {name = 'bce', class_weights = [1, 2]}")),
              HasSubstr("loss.class_weights has no effect with loss.name = \"bce\"; wanted [], or \"cross_entropy\""));
  EXPECT_EQ(refusal(kSource + std::string("model.num_classes = 2\nloss.class_weights = [1, 2]")), "accepted");
  EXPECT_THAT(refusal(kSource + std::string("tune.fixed = ['data.batchsize']")),
              HasSubstr("tune.fixed: unknown key data.batchsize, did you mean data.batch_size?"));
  EXPECT_THAT(refusal(kSource + std::string("[[tune.planted]]\non_ms = 1")),
              HasSubstr("tune.planted[0].name is missing"));
  EXPECT_THAT(refusal(kSource + std::string("[[tune.planted]]\nname = 'a'\n[[tune.planted]]\nname = 'a'")),
              HasSubstr("tune.planted[0].name and tune.planted[1].name are both \"a\""));
  EXPECT_THAT(refusal(kSource + std::string("model.name = ''")), HasSubstr("model.name is empty"));
}

TEST_F(RecipeFile, RefusesParametersOfAnotherSchedule) {
  const auto said = [this](const std::string& keys) { return refusal(kSource + ("lr_scheduler = {" + keys + "}")); };
  EXPECT_THAT(said("gamma = 0.5"),
              EndsWith("lr_scheduler.gamma has no effect with lr_scheduler.name = \"none\"; wanted 0.0, or \"StepLR\" "
                       "or \"MultiStepLR\" or \"ExponentialLR\" or \"CyclicLR\""));
  EXPECT_THAT(said("name = 'MultiStepLR', step_size = 3"), HasSubstr("lr_scheduler.step_size has no effect"));
  EXPECT_THAT(said("name = 'StepLR', milestones = [3]"),
              HasSubstr("lr_scheduler.milestones has no effect with lr_scheduler.name = \"StepLR\"; wanted [], or"));
  EXPECT_THAT(said("name = 'StepLR', schedulers = [{name = 'LinearLR'}]"),
              EndsWith("lr_scheduler.schedulers has no effect with lr_scheduler.name = \"StepLR\"; wanted [], or "
                       "\"SequentialLR\" or \"ChainedScheduler\""));
  EXPECT_THAT(said("interval = 'step'"), HasSubstr("lr_scheduler.interval has no effect"));
  EXPECT_EQ(said("name = 'StepLR', step_size = 3, gamma = 0.5, interval = 'step'"), "accepted");
  EXPECT_EQ(said("name = 'CyclicLR', mode = 'exp_range', gamma = 0.999, step_size_up = 20"), "accepted");
  EXPECT_EQ(said("name = 'ReduceLROnPlateau', mode = 'max', factor = 0.5, patience = 1"), "accepted");
}

// Every parameter is known to belong to some class; one that was left out here would be idle without a word.
TEST_F(RecipeFile, EveryParameterOfAScheduleIsIdleWithoutOne) {
  SchedulerOptions options;
  for (const Field& field : fields_of(options)) {
    if (field.key == "name") continue;
    std::string value = "0.25";
    if (field.kind == FieldKind::boolean) value = std::get<bool>(field.get()) ? "false" : "true";
    if (field.kind == FieldKind::integer) value = "7";
    if (field.kind == FieldKind::integers) value = "[7]";
    if (field.kind == FieldKind::choice) value = "'" + field.choices.back() + "'";
    EXPECT_THAT(refusal(kSource + ("lr_scheduler." + field.key + " = " + value)),
                HasSubstr("lr_scheduler." + field.key + " has no effect with lr_scheduler.name = \"none\""));
  }
}

TEST_F(RecipeFile, RefusesSchedulesThatLackSomethingOrContradictThemselves) {
  const auto said = [this](const std::string& keys) { return refusal(kSource + ("lr_scheduler = {" + keys + "}")); };
  EXPECT_THAT(said("name = 'MultiStepLR'"), HasSubstr("lr_scheduler.milestones is missing"));
  EXPECT_THAT(said("name = 'MultiStepLR', milestones = [30, 30]"),
              EndsWith("lr_scheduler.milestones has 30 after 30; wanted numbers that rise"));
  EXPECT_EQ(said("name = 'MultiStepLR', milestones = [30, 60]"), "accepted");
  EXPECT_THAT(said("name = 'ExponentialLR'"), HasSubstr("lr_scheduler.gamma is missing"));
  EXPECT_THAT(said("name = 'CosineAnnealingWarmRestarts'"), HasSubstr("lr_scheduler.T_0 is missing"));
  EXPECT_THAT(said("name = 'ReduceLROnPlateau', factor = 1"), HasSubstr("lr_scheduler.factor is 1"));
  EXPECT_THAT(said("name = 'ReduceLROnPlateau', interval = 'step'"), HasSubstr("lr_scheduler.interval is \"step\""));
  EXPECT_THAT(said("name = 'ReduceLROnPlateau', mode = 'triangular'"), EndsWith("wanted min or max"));
  EXPECT_THAT(said("name = 'CyclicLR', mode = 'max'"), EndsWith("wanted triangular, triangular2 or exp_range"));
  EXPECT_THAT(said("name = 'CyclicLR', gamma = 0.9"), HasSubstr("lr_scheduler.gamma has no effect"));
  EXPECT_THAT(said("name = 'CyclicLR', base_lr = 0.1, max_lr = 0.01"), HasSubstr("lr_scheduler.base_lr is 0.1"));
  EXPECT_THAT(said("name = 'OneCycleLR', cycle_momentum = false, base_momentum = 0.5"),
              HasSubstr("lr_scheduler.base_momentum has no effect"));
  EXPECT_THAT(said("name = 'OneCycleLR', base_momentum = 0.95, max_momentum = 0.85"),
              HasSubstr("lr_scheduler.base_momentum is 0.95"));
  EXPECT_THAT(said("name = 'onecyclelr'"), EndsWith("found \"onecyclelr\", did you mean OneCycleLR?"));
  EXPECT_THAT(said("name = 'SequentialLR'"), HasSubstr("lr_scheduler.schedulers is missing"));
  EXPECT_THAT(said("name = 'SequentialLR', schedulers = [{name = 'LinearLR'}, {name = 'StepLR'}]"),
              HasSubstr("lr_scheduler.milestones has 0 numbers and lr_scheduler.schedulers 2 tables"));
  EXPECT_THAT(said("name = 'SequentialLR', schedulers = [{step_size = 2}]"),
              HasSubstr("lr_scheduler.schedulers[0].name is missing"));
  EXPECT_THAT(said("name = 'SequentialLR', schedulers = [{name = 'ReduceLROnPlateau'}]"),
              HasSubstr("lr_scheduler.schedulers[0].name is \"ReduceLROnPlateau\"; a SequentialLR cannot hold one"));
  EXPECT_THAT(
      said("name = 'SequentialLR', milestones = [3], schedulers = [{name = 'LinearLR'}, {name = 'StepLR', power = 2}]"),
      HasSubstr("lr_scheduler.schedulers[1].power has no effect with lr_scheduler.schedulers[1].name"));
  EXPECT_EQ(said("name = 'SequentialLR', milestones = [3], schedulers = [{name = 'LinearLR'}, {name = 'StepLR'}]"),
            "accepted");
  const std::string cycle =
      "name = 'SequentialLR', milestones = [3], schedulers = [{name = 'LinearLR'}, {name = 'CyclicLR'}]";
  EXPECT_THAT(said(cycle), HasSubstr("lr_scheduler.interval is \"auto\" and lr_scheduler.schedulers[1].name is"));
  EXPECT_EQ(said(cycle + ", interval = 'step'"), "accepted");
}

TEST_F(RecipeFile, RefusesAChainOfSchedulesThatSetTheRateThemselves) {
  const auto said = [this](const std::string& schedulers) {
    return refusal(kSource + ("lr_scheduler = {name = 'ChainedScheduler'" + schedulers + "}"));
  };
  EXPECT_THAT(said(""), HasSubstr("lr_scheduler.schedulers is missing"));
  EXPECT_EQ(said(", schedulers = [{name = 'LinearLR'}, {name = 'CosineAnnealingLR'}, {name = 'StepLR'}]"), "accepted");
  EXPECT_THAT(said(", milestones = [3], schedulers = [{name = 'LinearLR'}]"),
              HasSubstr("lr_scheduler.milestones has no effect"));
  EXPECT_THAT(said(", schedulers = [{name = 'LinearLR'}, {name = 'OneCycleLR'}]"),
              HasSubstr("lr_scheduler.schedulers[1].name is \"OneCycleLR\", which sets the rate itself; wanted one"));
  EXPECT_THAT(said(", schedulers = [{name = 'ReduceLROnPlateau'}]"), HasSubstr("which sets the rate itself"));
  EXPECT_THAT(said(", schedulers = [{name = 'CosineAnnealingLR', T_max = 9}]"),
              HasSubstr("lr_scheduler.schedulers[0].T_max is 9; wanted 0"));
  EXPECT_THAT(said(", schedulers = [{name = 'CosineAnnealingLR', eta_min = 0.5}]"),
              HasSubstr("lr_scheduler.schedulers[0].eta_min is 0.5; wanted 0"));
  for (const char* other : {"SequentialLR", "ChainedScheduler"}) {
    EXPECT_THAT(said(fmt::format(", schedulers = [{{name = '{}'}}]", other)),
                HasSubstr("a ChainedScheduler cannot hold one"));
  }
}

TEST_F(RecipeFile, RefusesTwoKeysOfOneMeaning) {
  EXPECT_THAT(refusal(kSource + std::string("optimizer = {fused = true, foreach = true}")),
              HasSubstr("optimizer.fused and optimizer.foreach are both true; wanted one of them"));
  EXPECT_THAT(refusal(kSource + std::string("data.transform.size = 64\n"
                                            "data.transforms = [{name = 'CenterCrop', size = [32]}]")),
              HasSubstr("data.transform.size is 64, and data.transforms is set, which says what is done to a sample; "
                        "wanted one of them"));
  EXPECT_THAT(refusal(kSource + std::string("data.batch_size = 8\ndata.batch_size = 16")), HasSubstr("small.toml:3: "));
}

TEST_F(RecipeFile, NamesAFileThatCannotBeRead) {
  EXPECT_THROW(load_recipe(folder_ / "absent.toml", {}), Error);
  try {
    load_recipe(folder_, {});
    FAIL() << "a folder was read as a recipe";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("is a folder, wanted a TOML file"));
  }
}

TEST(Recipe, WrittenAndReadBackIsEqual) {
  Recipe recipe;
  recipe.seed = 4294967295;
  recipe.data.source = "idx:/a \"b\"";
  recipe.data.transform.mean = {0.1, 1.0 / 3, 1e-300};
  recipe.data.transforms = {transforms::RandomCrop{.size = {32, 24}, .padding = {4}}, transforms::Pad{.fill = 0.1}};
  recipe.optimizer.lr = 0.1 + 0.2;
  recipe.optimizer.set_implementation(OptimizerImplementation::foreach_);
  recipe.optimizer.group = {{.params = {"conv1", "layer*"}, .lr_mult = 0.1}, {.params = {"fc"}, .decay_mult = 1.0 / 3}};
  recipe.loss.label_smoothing = 0.1;
  recipe.lr_scheduler.name = LrSchedulerName::SequentialLR;
  recipe.lr_scheduler.milestones = {3};
  recipe.lr_scheduler.warmup_steps = 100;
  recipe.lr_scheduler.schedulers = {{.name = LrSchedulerName::StepLR, .step_size = 2},
                                    {.name = LrSchedulerName::CosineAnnealingLR, .eta_min = 1.0 / 3}};
  recipe.tune.fixed = {"seed", "data.batch_size"};
  recipe.tune.planted = {{"a", 1.5, 0.1, 0.05, 0.0}, {"b", 0.0, 0.0, 0.0, 1.0}};
  const std::string text = write_toml(fields_of(recipe));
  Recipe read;
  read_toml(fields_of(read), text, "written");
  EXPECT_EQ(write_toml(fields_of(read)), text);
  EXPECT_EQ(read.optimizer.lr, recipe.optimizer.lr);
  EXPECT_EQ(read.data.transform.mean, recipe.data.transform.mean);
  EXPECT_EQ(read.data.transforms, recipe.data.transforms);
  EXPECT_EQ(read.tune.planted[1].throw_probability, 1.0);
  ASSERT_EQ(read.optimizer.group.size(), 2U);
  EXPECT_EQ(read.optimizer.group[0].params, recipe.optimizer.group[0].params);
  EXPECT_EQ(read.optimizer.group[1].decay_mult, 1.0 / 3);
  EXPECT_EQ(read.lr_scheduler.milestones, std::vector<std::int64_t>{3});
  ASSERT_EQ(read.lr_scheduler.schedulers.size(), 2U);
  EXPECT_EQ(read.lr_scheduler.schedulers[0].step_size, 2);
  EXPECT_EQ(read.lr_scheduler.schedulers[1].name, LrSchedulerName::CosineAnnealingLR);
  EXPECT_EQ(read.lr_scheduler.schedulers[1].eta_min, 1.0 / 3);
  EXPECT_EQ(read.loss.label_smoothing, 0.1);
}

TEST(Recipe, TheTunersSettingsAreAppliedAndChecked) {
  Recipe recipe;
  apply_settings(recipe, {{"optimizer.fused", "false"}, {"data.num_workers", "2"}, {"train.max_grad_norm", "1"}});
  EXPECT_EQ(recipe.optimizer.implementation(), OptimizerImplementation::for_loop);
  apply_settings(recipe, {{"optimizer.fused", "true"}});
  EXPECT_EQ(recipe.optimizer.implementation(), OptimizerImplementation::fused);
  EXPECT_EQ(recipe.data.num_workers, 2);
  EXPECT_EQ(recipe.train.max_grad_norm, 1.0);
  EXPECT_THROW(apply_settings(recipe, {{"data.num_workers", "-2"}}), Error);
  EXPECT_THROW(apply_settings(recipe, {{"data.thread", "2"}}), Error);
  EXPECT_THROW(apply_settings(recipe, {{"data.num_workers", "2\nseed = 3"}}), Error);
}

TEST(Recipe, TheOptimizerIsFusedUnlessAnotherFormIsWritten) {
  const auto implementation_of = [](const std::string& text) {
    Recipe recipe;
    read_toml(fields_of(recipe), text, "written");
    return recipe.optimizer.implementation();
  };
  EXPECT_EQ(Recipe{}.optimizer.fused, Switch::automatic);
  EXPECT_EQ(implementation_of(""), OptimizerImplementation::fused);
  EXPECT_EQ(implementation_of("optimizer.fused = 'auto'"), OptimizerImplementation::fused);
  EXPECT_EQ(implementation_of("optimizer.fused = false"), OptimizerImplementation::for_loop);
  EXPECT_EQ(implementation_of("optimizer.foreach = true"), OptimizerImplementation::foreach_);
  EXPECT_EQ(implementation_of("optimizer = {fused = false, foreach = 'auto'}"), OptimizerImplementation::foreach_);
}

TEST(RunLength, CountsOptimizerStepsOfTheWholeRun) {
  Recipe recipe;
  recipe.data.batch_size = 32;
  recipe.train.epochs = 3;
  EXPECT_EQ(check_run_length(recipe, 100), 12);
  recipe.train.gradient_accumulation_steps = 3;
  EXPECT_EQ(check_run_length(recipe, 100), 6);
  recipe.data.last_batch = LastBatch::drop;
  EXPECT_EQ(check_run_length(recipe, 100), 3);
  recipe.lr_scheduler.warmup_steps = 2;
  EXPECT_EQ(check_run_length(recipe, 100), 3);
  recipe.lr_scheduler.warmup_steps = 3;
  EXPECT_THROW(check_run_length(recipe, 100), Error);
  EXPECT_THROW(check_run_length(recipe, 31), Error);
  recipe.lr_scheduler.warmup_steps = 0;
  recipe.train.gradient_accumulation_steps = 1;
  recipe.data.world_size = 2;  // Each takes its half of the batches.
  EXPECT_EQ(check_run_length(recipe, 100), 3);
  recipe.data.last_batch = LastBatch::pad;
  EXPECT_EQ(check_run_length(recipe, 100), 6);
}

TEST(RunLength, AOneCycleLRMustNotEndBeforeTheRun) {
  Recipe recipe;
  recipe.data.batch_size = 32;
  recipe.train.epochs = 3;
  recipe.lr_scheduler.name = LrSchedulerName::OneCycleLR;
  const auto said = [&recipe] { return error_of(ErrorCode::invalid_argument, [&] { check_run_length(recipe, 100); }); };
  EXPECT_EQ(check_run_length(recipe, 100), 12);
  recipe.lr_scheduler.total_steps = 11;
  EXPECT_EQ(said(),
            "recipe: lr_scheduler.total_steps is 11 and the run has 12 optimizer steps after the warm-up; wanted at "
            "least as many, or 0 for the whole run");
  recipe.lr_scheduler.warmup_steps = 1;
  EXPECT_EQ(check_run_length(recipe, 100), 12);
  recipe.lr_scheduler.interval = SchedulerInterval::epoch;
  recipe.lr_scheduler.total_steps = 2;
  EXPECT_THAT(said(), HasSubstr("total_steps is 2 and the run has 3 epochs"));
  recipe.lr_scheduler.total_steps = 3;
  EXPECT_EQ(check_run_length(recipe, 100), 12);
}

TEST(Examples, FashionMnistIsTheRecipeOfTheMainJob) {
  const Recipe recipe = load_recipe("examples/fashion_mnist.toml", {}).recipe;
  EXPECT_EQ(recipe.data.source, "idx:/usr/share/datasets/fashion-mnist");
  EXPECT_EQ(recipe.optimizer.implementation(), OptimizerImplementation::for_loop);
  EXPECT_EQ(recipe.model.memory_format, MemoryFormat::contiguous);
}

}  // namespace
}  // namespace headrace
