#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/facade/performance_optimization_config.h>
#include <headrace/facade/performance_optimizer.h>

#include <string>
#include <vector>

#include "core/base/error_of.h"

namespace headrace::facade {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> keys_of(const std::vector<Applied>& rows) {
  std::vector<std::string> keys;
  for (const Applied& row : rows) keys.push_back(row.key);
  return keys;
}

TEST(PerformanceOptimizationConfig, TheExampleBecomesAPerformanceConfigOfWhatItAsksFor) {
  const PerformanceOptimizationConfig config{.enable_performance_optimization = true,
                                             .optimization_level = OptimizationLevel::advanced,
                                             .integrate_with_stability = true,
                                             .enable_mixed_precision = true,
                                             .enable_model_compilation = true,
                                             .enable_memory_optimization = true};
  const PerformanceConfig wanted({.optimization_level = OptimizationLevel::custom,
                                  .enable_amp = true,
                                  .enable_compile = true,
                                  .enable_gradient_checkpointing = true,
                                  .enable_memory_format_optimization = true});
  EXPECT_EQ(config.performance_config(), wanted);
  EXPECT_EQ(PerformanceOptimizationConfig().performance_config(), wanted);  // Its values are the defaults.
}

TEST(PerformanceOptimizationConfig, ALevelChoosesWhatNobodyHasSaid) {
  using Config = PerformanceOptimizationConfig;
  const auto values = [](const Config& config) { return config.performance_config().values(); };
  EXPECT_FALSE(values(Config{.optimization_level = OptimizationLevel::basic}).enable_gradient_checkpointing);
  EXPECT_TRUE(values(Config{.optimization_level = OptimizationLevel::ultra}).enable_flash_attention);
  EXPECT_FALSE(values(Config{.optimization_level = OptimizationLevel::ultra, .enable_flash_attention = false})
                   .enable_flash_attention);
  EXPECT_FALSE(values(Config{.mixed_precision = false}).enable_amp);
  EXPECT_EQ(Config{.enable_performance_optimization = false}.performance_config(),
            PerformanceConfig(OptimizationLevel::custom));
}

TEST(PerformanceOptimizationConfig, ReportsWhatBecameOfEachSetting) {
  const PerformanceOptimizationConfig config{.enable_mixed_precision = false, .enable_flash_attention = true};
  PerformanceOptimizer optimizer(config.performance_config());
  optimizer.model_optimizer().optimize_model(ModelState{});
  const std::vector<Applied> rows = config.report(optimizer.get_optimization_status());
  ASSERT_THAT(keys_of(rows),
              ElementsAre("optimization_level", "integrate_with_stability", "enable_mixed_precision",
                          "enable_model_compilation", "enable_memory_optimization", "enable_flash_attention"));
  EXPECT_EQ(rows[0].applied, "advanced");
  EXPECT_EQ(rows[1].applied, "true");
  EXPECT_EQ(rows[2].applied, "false");
  EXPECT_EQ(rows[2].reason, "");
  EXPECT_THAT(rows[3].reason, HasSubstr("torch.compile"));
  EXPECT_THAT(rows[4].reason, HasSubstr("wanted a parameter of 4 dimensions"));
  EXPECT_EQ(rows[5].applied, "none");
  for (const Applied& row : config.report()) {
    if (row.key == "integrate_with_stability") continue;  // Which no model is set up for.
    const bool is_asked = row.requested != "false";
    EXPECT_EQ(row.applied, is_asked ? "none" : "false") << row.key;
    EXPECT_EQ(row.reason.empty(), !is_asked) << row.key;
  }
  for (const Applied& row : PerformanceOptimizationConfig{.enable_performance_optimization = false}.report()) {
    EXPECT_EQ(row.reason, "enable_performance_optimization is false") << row.key;
  }
}

TEST(PerformanceOptimizationConfig, RefusesTheLevelCustomAndNamesThatDisagree) {
  const auto refusal = [](const PerformanceOptimizationConfig& config) {
    return error_of(ErrorCode::invalid_argument, [&] { config.performance_config(); });
  };
  EXPECT_EQ(refusal({.optimization_level = OptimizationLevel::custom}),
            "facade: optimization_level: wanted basic | advanced | ultra, found custom");
  EXPECT_THAT(refusal({.enable_mixed_precision = true, .enable_amp = false}),
              HasSubstr("mixed precision: wanted one value, found enable_mixed_precision=true, enable_amp=false"));
}

}  // namespace
}  // namespace headrace::facade
