#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/facade/performance_config.h>
#include <headrace/facade/performance_preset_options.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

namespace headrace::facade {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using testing::UnorderedElementsAreArray;

std::vector<std::string> names_of(const std::vector<SettingDifference>& differences) {
  std::vector<std::string> names;
  for (const SettingDifference& each : differences) names.push_back(each.name);
  return names;
}

// tests/facade_config_test.py has the same texts of Python's.
TEST(PerformanceConfigTable, TheTwoPresetsOfProductionDifferByCompressionAlone) {
  const auto differences = PerformanceConfig::preset("minimal_overhead").diff(PerformanceConfig::preset("production"));
  ASSERT_THAT(names_of(differences), ElementsAre("enable_compression"));
  EXPECT_EQ(differences[0].here, OptionValue(false));
  EXPECT_EQ(differences[0].there, OptionValue(true));
  EXPECT_EQ(table(differences),
            "setting             here   there\n"
            "enable_compression  False  True");
}

TEST(PerformanceConfigTable, EqualConfigurationsDifferInNothingWhoeverSaidThem) {
  const PerformanceConfig said({.optimization_level = OptimizationLevel::basic, .enable_amp = false});
  EXPECT_THAT(said.diff(PerformanceConfig(OptimizationLevel::basic)), IsEmpty());
  EXPECT_EQ(table({}), "setting  here  there");
}

TEST(PerformanceConfigTable, DifferencesAreInTheOrderOfTheSettings) {
  EXPECT_THAT(names_of(PerformanceConfig(OptimizationLevel::ultra).diff(PerformanceConfig(OptimizationLevel::basic))),
              ElementsAre("optimization_level", "enable_amp", "enable_compile", "enable_gradient_checkpointing",
                          "enable_flash_attention", "enable_memory_format_optimization", "num_workers",
                          "gradient_accumulation_steps"));
}

TEST(PerformanceConfigTable, TellsOfEachSettingItsValueAndWhoSetIt) {
  PerformanceConfig config({.optimization_level = OptimizationLevel::ultra, .cache_size = 9});
  config.set("gradient_accumulation_steps", AUTOTUNE);
  const std::string text = config.table();
  EXPECT_THAT(text, StartsWith("component  setting                            value          set by\n"
                               "           optimization_level                 ultra          explicit\n"));
  for (const char* line : {"data       num_workers                        8              level",
                           "data       cache_size                         9              explicit",
                           "memory     memory_threshold                   0.8            default",
                           "training   gradient_accumulation_steps        auto           explicit",
                           "model      enable_memory_format_optimization  True           level",
                           "model      memory_format                      channels_last  default"}) {
    EXPECT_THAT(text, HasSubstr(std::string("\n") + line));
  }
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), std::ssize(performance_setting_names()));
}

TEST(PerformanceConfigTable, EverySettingIsInOneComponentButTwo) {
  std::vector<std::string> placed{"optimization_level", "memory_format"};
  for (const SettingComponent& component : kPerformanceComponents) {
    placed.insert(placed.end(), component.settings.begin(), component.settings.end());
  }
  EXPECT_THAT(placed, UnorderedElementsAreArray(performance_setting_names()));
}

}  // namespace
}  // namespace headrace::facade
