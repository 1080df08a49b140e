#include <headrace/facade/performance_optimization_config.h>
#include <headrace/facade/performance_preset_options.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <variant>

#include "core/base/fail.h"
#include "facade/agreed.h"

namespace headrace::facade {
namespace {

constexpr const char* kNotCalled = "wanted a PerformanceOptimizer or ModelOptimizer that sets a model up, found none";
constexpr const char* kOff = "enable_performance_optimization is false";

bool is_mixed(const PerformanceOptimizationConfig& config) {
  return agreed<bool>("mixed precision",
                      {{"enable_mixed_precision", config.enable_mixed_precision},
                       {"mixed_precision", config.mixed_precision},
                       {"enable_amp", config.enable_amp}},
                      true);
}

// What the level chooses; false where its preset does not say.
bool is_of_level(OptimizationLevel level, std::string_view name) {
  for (const PerformancePreset& preset : kPerformancePresets) {
    if (preset.name != choice_name(level)) continue;
    for (const PresetSetting& setting : preset.settings) {
      if (setting.name == name) return std::get<bool>(setting.value);
    }
  }
  return false;
}

Applied row_of(const char* key, bool requested, bool is_on, const Applied* found) {
  const std::string text = requested ? "true" : "false";
  if (!requested) return {key, text, text, ""};
  if (!is_on) return {key, text, "none", kOff};
  if (found == nullptr) return {key, text, "none", kNotCalled};
  return {key, text, found->applied, found->reason};
}

// Applied where a model was set up: what became of each of its choices, their own rows tell.
Applied level_row(OptimizationLevel level, bool is_on, bool is_set_up) {
  const std::string text(choice_name(level));
  if (!is_on) return {"optimization_level", text, "none", kOff};
  if (!is_set_up) return {"optimization_level", text, "none", kNotCalled};
  return {"optimization_level", text, text, ""};
}

void check_level(OptimizationLevel level) {
  if (level != OptimizationLevel::custom) return;
  fail(ErrorCode::invalid_argument, "facade: optimization_level: wanted basic | advanced | ultra, found custom");
}

}  // namespace

PerformanceConfig PerformanceOptimizationConfig::performance_config() const {
  check_level(optimization_level);
  const bool amp = is_mixed(*this);
  if (!enable_performance_optimization) return PerformanceConfig(OptimizationLevel::custom);
  const auto or_level = [this](const std::optional<bool>& said, std::string_view name) {
    return said.value_or(is_of_level(optimization_level, name));
  };
  return PerformanceConfig(PerformanceSettings{
      .optimization_level = OptimizationLevel::custom,
      .enable_amp = amp,
      .enable_compile = enable_model_compilation,
      .enable_gradient_checkpointing = or_level(enable_gradient_checkpointing, "enable_gradient_checkpointing"),
      .enable_flash_attention = or_level(enable_flash_attention, "enable_flash_attention"),
      .enable_memory_format_optimization = enable_memory_optimization});
}

std::vector<Applied> PerformanceOptimizationConfig::report(std::span<const Applied> status) const {
  check_level(optimization_level);
  const bool is_on = enable_performance_optimization;
  const Applied of_stability{"", "", "true", ""};
  const auto found = [status](std::string_view name) -> const Applied* {
    const auto place =
        std::find_if(status.begin(), status.end(), [name](const Applied& row) { return row.key == name; });
    return place == status.end() ? nullptr : &*place;
  };
  std::vector<Applied> rows{
      level_row(optimization_level, is_on, found("enable_gradient_checkpointing") != nullptr),
      row_of("integrate_with_stability", integrate_with_stability, is_on, &of_stability),
      row_of("enable_mixed_precision", is_mixed(*this), is_on, found("enable_amp")),
      row_of("enable_model_compilation", enable_model_compilation, is_on, found("enable_compile")),
      row_of("enable_memory_optimization", enable_memory_optimization, is_on,
             found("enable_memory_format_optimization"))};
  for (const auto& [name, said] : {std::pair("enable_gradient_checkpointing", enable_gradient_checkpointing),
                                   std::pair("enable_flash_attention", enable_flash_attention)}) {
    if (said) rows.push_back(row_of(name, *said, is_on, found(name)));
  }
  return rows;
}

}  // namespace headrace::facade
