#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/facade/hardware.h>
#include <headrace/facade/performance_config.h>
#include <headrace/facade/performance_preset_options.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "core/base/temporary_folder.h"

namespace headrace::facade {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string refusal(const PerformanceSettings& settings) {
  return error_of(ErrorCode::invalid_argument, [&] { PerformanceConfig config(settings); });
}

TEST(PerformanceConfig, WithoutArgumentsHasTheDefaultsOfBothItsForms) {
  const PerformanceConfig config;
  for (const char* name : {"enable_caching", "enable_parallelization", "enable_memory_optimization", "enable_profiling",
                           "enable_compression", "batch_size_optimization", "mixed_precision", "gradient_accumulation",
                           "pin_memory", "persistent_workers", "enable_async_data_loading"}) {
    EXPECT_EQ(config.get(name), OptionValue(true)) << name;
  }
  EXPECT_EQ(config->cache_size, 1000);
  EXPECT_EQ(config->max_workers, std::max<std::int64_t>(std::thread::hardware_concurrency(), 1));
  EXPECT_EQ(config->memory_threshold, 0.8);
  EXPECT_EQ(config->gradient_accumulation_steps, 4);
  EXPECT_EQ(config->num_workers, 4);
  EXPECT_EQ(config->prefetch_factor, 2);
  EXPECT_EQ(config->optimization_level, OptimizationLevel::advanced);
  EXPECT_EQ(config->memory_format, MemoryFormat::channels_last);
}

TEST(PerformanceConfig, TheExampleOfACustomConfigurationHasEachOfItsValues) {
  const PerformanceConfig config({.gradient_accumulation = true,
                                  .gradient_accumulation_steps = 8,
                                  .enable_profiling = false,
                                  .enable_caching = true,
                                  .cache_size = 2000,
                                  .max_workers = 8,
                                  .memory_threshold = 0.9,
                                  .mixed_precision = true});
  EXPECT_FALSE(config->enable_profiling);
  EXPECT_EQ(config->cache_size, 2000);
  EXPECT_EQ(config->max_workers, 8);
  EXPECT_EQ(config->memory_threshold, 0.9);
  EXPECT_EQ(config->gradient_accumulation_steps, 8);
  EXPECT_EQ(config.set_by("cache_size"), SetBy::explicitly);
  EXPECT_EQ(config.set_by("enable_amp"), SetBy::explicitly);  // By its other name.
  EXPECT_EQ(config.set_by("enable_compression"), SetBy::by_default);
}

TEST(PerformanceConfig, TheExamplesOfLevelsAreWhatTheLevelAloneIs) {
  const PerformanceConfig ultra({.optimization_level = OptimizationLevel::ultra,
                                 .enable_amp = true,
                                 .enable_compile = true,
                                 .enable_gradient_checkpointing = true,
                                 .enable_flash_attention = true,
                                 .enable_memory_format_optimization = true,
                                 .num_workers = 8,
                                 .gradient_accumulation_steps = 8});
  EXPECT_EQ(ultra, PerformanceConfig(OptimizationLevel::ultra));
  const PerformanceConfig basic({.optimization_level = OptimizationLevel::basic,
                                 .enable_amp = false,
                                 .enable_compile = false,
                                 .enable_gradient_checkpointing = false});
  EXPECT_EQ(basic, PerformanceConfig(OptimizationLevel::basic));
  EXPECT_NE(basic, PerformanceConfig());
  EXPECT_EQ(basic->gradient_accumulation_steps, 1);
  const PerformanceConfig custom(OptimizationLevel::custom);
  EXPECT_FALSE(custom->gradient_accumulation);
  EXPECT_FALSE(custom->enable_profiling);
  EXPECT_TRUE(custom->pin_memory);
  EXPECT_TRUE(PerformanceConfig({.optimization_level = OptimizationLevel::custom, .gradient_accumulation_steps = 3})
                  ->gradient_accumulation);
}

TEST(PerformanceConfig, TheExamplesOfProductionAndDebuggingArePresets) {
  const PerformanceConfig minimal({.enable_profiling = false,
                                   .enable_caching = true,
                                   .enable_parallelization = true,
                                   .enable_memory_optimization = true,
                                   .enable_compression = false,
                                   .batch_size_optimization = false});
  EXPECT_EQ(minimal, PerformanceConfig::preset("minimal_overhead"));
  PerformanceConfig production = minimal;
  production.set("enable_compression", true);
  EXPECT_EQ(production, PerformanceConfig::preset("production"));
  EXPECT_EQ(PerformanceConfig({.optimization_level = OptimizationLevel::basic, .enable_memory_profiling = true}),
            PerformanceConfig::preset("debug"));
  EXPECT_EQ(PerformanceConfig::preset("ultra"), PerformanceConfig(OptimizationLevel::ultra));
  const PerformanceConfig kept = PerformanceConfig::preset("production", {.enable_profiling = true});
  EXPECT_TRUE(kept->enable_profiling);
  EXPECT_EQ(kept.set_by("enable_caching"), SetBy::preset);
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [] { PerformanceConfig::preset("prodution"); }),
            "facade: preset: wanted basic | advanced | ultra | custom | debug | production | minimal_overhead, found "
            "'prodution', did you mean production?");
}

TEST(PerformanceConfig, EveryPresetNamesSettingsAndValuesThatThereAre) {
  const auto names = performance_setting_names();
  for (const PerformancePreset& preset : kPerformancePresets) {
    EXPECT_NO_THROW(PerformanceConfig::preset(preset.name)) << preset.name;
    for (const PresetSetting& setting : preset.settings) {
      EXPECT_NE(std::find(names.begin(), names.end(), setting.name), names.end()) << setting.name;
    }
  }
  for (const auto& [zero, on] : kPerformanceContradictions) {
    EXPECT_NE(std::find(names.begin(), names.end(), zero), names.end());
    EXPECT_NE(std::find(names.begin(), names.end(), on), names.end());
  }
}

TEST(PerformanceConfig, NamesOfOneSettingNeverDisagree) {
  const PerformanceConfig config({.mixed_precision = false, .enable_batch_optimization = false});
  EXPECT_FALSE(config->enable_amp);
  EXPECT_FALSE(config->batch_size_optimization);
  EXPECT_EQ(config.get("enable_mixed_precision"), OptionValue(false));
  EXPECT_NO_THROW(PerformanceConfig({.enable_amp = true, .mixed_precision = true}));
  EXPECT_EQ(
      refusal({.enable_amp = true, .mixed_precision = false}),
      "facade: enable_amp: wanted one value, found enable_amp=true, mixed_precision=false, which are names of the "
      "same setting");
}

TEST(PerformanceConfig, WhatIsSaidGoesBeforeTheLevelAndTheLevelBeforeATableOfHardware) {
  const GpuOptimizationConfig table{1.5, true, 16, false};
  const PerformanceConfig config =
      PerformanceConfig({.optimization_level = OptimizationLevel::ultra, .enable_amp = false}).with_hardware(table);
  EXPECT_FALSE(config->enable_amp);
  EXPECT_EQ(config->num_workers, 8);
  EXPECT_FALSE(config->pin_memory);
  EXPECT_EQ(config.set_by("pin_memory"), SetBy::hardware);
  EXPECT_EQ(config.set_by("num_workers"), SetBy::level);
  EXPECT_EQ(PerformanceConfig(OptimizationLevel::basic).with_hardware(table)->num_workers, 16);
  EXPECT_EQ(PerformanceConfig().with_hardware(std::nullopt), PerformanceConfig());
}

TEST(PerformanceConfig, ALevelThatIsSetLaterChangesWhatNobodyHasSaid) {
  PerformanceConfig config({.optimization_level = OptimizationLevel::basic, .num_workers = 3});
  config.set("optimization_level", std::string("ultra"));
  EXPECT_TRUE(config->enable_flash_attention);
  EXPECT_EQ(config->num_workers, 3);
  config.set("optimization_level", std::string("custom"));
  EXPECT_FALSE(config->enable_flash_attention);  // Nobody's any more.
  EXPECT_EQ(config->gradient_accumulation_steps, 4);
  EXPECT_FALSE(config->gradient_accumulation);
}

TEST(PerformanceConfig, RefusesByItsNameWhatCannotBeAndChangesNothing) {
  PerformanceConfig config;
  const PerformanceConfig before = config;
  const std::vector<std::pair<const char*, OptionValue>> bad{{"num_workers", std::int64_t{-1}},
                                                             {"num_workers", std::int64_t{257}},
                                                             {"num_workers", 1.5},
                                                             {"num_workers", true},
                                                             {"prefetch_factor", std::int64_t{0}},
                                                             {"prefetch_factor", std::int64_t{65}},
                                                             {"cache_size", std::int64_t{-1}},
                                                             {"cache_size", std::string("many")},
                                                             {"max_workers", std::int64_t{1025}},
                                                             {"memory_threshold", 1.5},
                                                             {"memory_threshold", -0.1},
                                                             {"memory_threshold", std::string("high")},
                                                             {"gradient_accumulation_steps", std::int64_t{0}},
                                                             {"gradient_accumulation_steps", std::string("all")},
                                                             {"enable_amp", std::int64_t{1}},
                                                             {"enable_compile", std::string("yes")},
                                                             {"optimization_level", std::string("ultraa")},
                                                             {"optimization_level", true},
                                                             {"memory_format", std::string("nhwc")},
                                                             {"pin_memory", 1.0}};
  for (const auto& each : bad) {
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { config.set(each.first, each.second); }),
                HasSubstr(each.first));
  }
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { config.set("enable_ampp", true); }),
            "facade: PerformanceConfig: no setting is called 'enable_ampp', did you mean enable_amp?");
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { config.set("mixed_precison", true); }),
              HasSubstr("did you mean mixed_precision?"));
  EXPECT_EQ(config, before);
  EXPECT_EQ(config.set_by("num_workers"), SetBy::by_default);
}

TEST(PerformanceConfig, RefusesTwoSettingsThatWereBothSaidAndCannotBothHold) {
  EXPECT_EQ(refusal({.num_workers = 0, .persistent_workers = true}),
            "facade: num_workers: wanted at least 1 beside persistent_workers=true, found 0");
  EXPECT_THAT(refusal({.num_workers = 0, .prefetch_factor = 2}), HasSubstr("prefetch_factor=2"));
  EXPECT_THAT(refusal({.enable_caching = true, .cache_size = 0}), HasSubstr("cache_size"));
  EXPECT_THAT(refusal({.enable_parallelization = true, .max_workers = 0}), HasSubstr("max_workers"));
  EXPECT_NO_THROW(PerformanceConfig({.num_workers = 0}));  // The other one is a default.
  EXPECT_NO_THROW(PerformanceConfig({.num_workers = 0, .persistent_workers = false}));
}

TEST(PerformanceConfig, GoesThroughAFileOfWhatWasSaid) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "config.json";
  const PerformanceConfig config({.optimization_level = OptimizationLevel::ultra,
                                  .gradient_accumulation_steps = AUTOTUNE,
                                  .memory_threshold = 0.5,
                                  .mixed_precision = false});
  config.save(path);
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(nlohmann::json::parse(text), nlohmann::json({{"optimization_level", "ultra"},
                                                         {"enable_amp", false},
                                                         {"gradient_accumulation_steps", "auto"},
                                                         {"memory_threshold", 0.5}}));
  EXPECT_EQ(PerformanceConfig::load(path), config);
  EXPECT_EQ(nlohmann::json::parse(config.to_json()).size(), performance_setting_names().size());
}

TEST(PerformanceConfig, OfAFileNamesThatFileAndWhatIsWrongInIt) {
  const auto refusal_of = [](std::string_view text) {
    return error_of(ErrorCode::invalid_argument, [&] { PerformanceConfig::from_json(text, "a.json"); });
  };
  EXPECT_EQ(refusal_of("{"), "facade: a.json: wanted a JSON object with settings by name, found no JSON");
  EXPECT_EQ(refusal_of("[1]"), "facade: a.json: wanted a JSON object with settings by name, found array");
  EXPECT_THAT(refusal_of(R"({"cache_sise": 1})"),
              StartsWith("a.json: facade: PerformanceConfig: no setting is called"));
  EXPECT_THAT(refusal_of(R"({"cache_size": -1})"), StartsWith("a.json: cache_size must be"));
  EXPECT_THAT(refusal_of(R"({"cache_size": null})"), HasSubstr("cache_size: wanted a number, a text"));
  EXPECT_THAT(refusal_of(R"({"enable_amp": true, "mixed_precision": false})"),
              HasSubstr("enable_amp: wanted one value"));
  EXPECT_THAT(error_of(ErrorCode::not_found, [] { PerformanceConfig::load("no/such.json"); }),
              HasSubstr("no/such.json"));
}

TEST(PerformanceConfig, TakesOverridesAsACommandIsGivenThem) {
  const std::vector<std::string> texts{"num_workers=8", "--mixed_precision=false", "optimization_level=basic",
                                       "gradient_accumulation_steps=auto", "memory_threshold=0.5"};
  const PerformanceConfig config = PerformanceConfig({.cache_size = 7}).with_overrides(texts);
  EXPECT_EQ(config->num_workers, 8);
  EXPECT_FALSE(config->enable_amp);
  EXPECT_EQ(config->optimization_level, OptimizationLevel::basic);
  EXPECT_EQ(config->gradient_accumulation_steps, AUTOTUNE);
  EXPECT_EQ(config->memory_threshold, 0.5);
  EXPECT_EQ(config->cache_size, 7);
  for (const std::string text : {"num_workers", "=8", "--", "--=8"}) {
    EXPECT_EQ(error_of(ErrorCode::invalid_argument,
                       [&] { PerformanceConfig().with_overrides(std::vector<std::string>{text}); }),
              "facade: override: wanted NAME=VALUE, found '" + text + "'");
  }
}

}  // namespace
}  // namespace headrace::facade
