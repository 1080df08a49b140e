// Presets of a PerformanceConfig, other names of its settings, and those that cannot both hold: for C++ and for the
// Python package performance_optimization.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

namespace headrace::facade {

struct PresetSetting {
  std::string_view name;
  std::variant<bool, std::int64_t, std::string_view> value;
};

inline constexpr std::array kBasicPreset{
    PresetSetting{"enable_amp", false},
    PresetSetting{"enable_compile", false},
    PresetSetting{"enable_gradient_checkpointing", false},
    PresetSetting{"enable_memory_format_optimization", false},
    PresetSetting{"gradient_accumulation_steps", std::int64_t{1}},
};
inline constexpr std::array kAdvancedPreset{
    PresetSetting{"enable_amp", true},
    PresetSetting{"enable_compile", true},
    PresetSetting{"enable_gradient_checkpointing", true},
    PresetSetting{"enable_memory_format_optimization", true},
    PresetSetting{"gradient_accumulation_steps", std::int64_t{1}},
};
inline constexpr std::array kUltraPreset{
    PresetSetting{"enable_amp", true},
    PresetSetting{"enable_compile", true},
    PresetSetting{"enable_gradient_checkpointing", true},
    PresetSetting{"enable_memory_format_optimization", true},
    PresetSetting{"gradient_accumulation_steps", std::int64_t{8}},
    PresetSetting{"enable_flash_attention", true},
    PresetSetting{"num_workers", std::int64_t{8}},
};
inline constexpr std::array kCustomPreset{
    PresetSetting{"enable_amp", false},
    PresetSetting{"enable_compile", false},
    PresetSetting{"enable_gradient_checkpointing", false},
    PresetSetting{"enable_memory_format_optimization", false},
    PresetSetting{"enable_caching", false},
    PresetSetting{"enable_parallelization", false},
    PresetSetting{"enable_memory_optimization", false},
    PresetSetting{"enable_profiling", false},
    PresetSetting{"enable_compression", false},
    PresetSetting{"batch_size_optimization", false},
    PresetSetting{"gradient_accumulation", false},
};
inline constexpr std::array kDebugPreset{
    PresetSetting{"optimization_level", std::string_view("basic")},
    PresetSetting{"enable_profiling", true},
    PresetSetting{"enable_memory_profiling", true},
};
// Of minimal_overhead, too, but for the last one.
inline constexpr std::array kProductionPreset{
    PresetSetting{"enable_caching", true},           PresetSetting{"enable_memory_optimization", true},
    PresetSetting{"enable_parallelization", true},   PresetSetting{"enable_amp", true},
    PresetSetting{"gradient_accumulation", true},    PresetSetting{"enable_profiling", false},
    PresetSetting{"batch_size_optimization", false}, PresetSetting{"enable_compression", true},
};
inline constexpr std::array kMinimalOverheadPreset = [] {
  auto preset = kProductionPreset;
  preset.back() = PresetSetting{"enable_compression", false};
  return preset;
}();

struct PerformancePreset {
  std::string_view name;
  std::span<const PresetSetting> settings;
};
// The first four are the levels; custom sets nothing on.
inline constexpr std::array kPerformancePresets{
    PerformancePreset{"basic", kBasicPreset},
    PerformancePreset{"advanced", kAdvancedPreset},
    PerformancePreset{"ultra", kUltraPreset},
    PerformancePreset{"custom", kCustomPreset},
    PerformancePreset{"debug", kDebugPreset},
    PerformancePreset{"production", kProductionPreset},
    PerformancePreset{"minimal_overhead", kMinimalOverheadPreset},
};

// Of what optimize_training_pipeline() and tables tell together. optimization_level is in none; memory_format, which is
// a part of enable_memory_format_optimization, is in none either.
struct SettingComponent {
  std::string_view name;
  std::span<const std::string_view> settings;
};
// The first five are those of loaders.
inline constexpr auto kDataSettings = std::to_array<std::string_view>(
    {"num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "enable_async_data_loading",
     "enable_caching", "cache_size", "enable_compression", "enable_parallelization", "max_workers"});
inline constexpr auto kBatchSettings = std::to_array<std::string_view>({"batch_size_optimization"});
inline constexpr auto kModelSettings = std::to_array<std::string_view>(
    {"enable_memory_format_optimization", "enable_gradient_checkpointing", "enable_compile", "enable_flash_attention"});
inline constexpr auto kTrainingSettings =
    std::to_array<std::string_view>({"enable_amp", "gradient_accumulation", "gradient_accumulation_steps"});
inline constexpr auto kMemorySettings =
    std::to_array<std::string_view>({"enable_memory_optimization", "memory_threshold"});
inline constexpr auto kProfilingSettings =
    std::to_array<std::string_view>({"enable_profiling", "enable_memory_profiling"});
inline constexpr std::array kPerformanceComponents{
    SettingComponent{"data", kDataSettings},     SettingComponent{"batch", kBatchSettings},
    SettingComponent{"model", kModelSettings},   SettingComponent{"training", kTrainingSettings},
    SettingComponent{"memory", kMemorySettings}, SettingComponent{"profiling", kProfilingSettings},
};

struct SettingAlias {
  std::string_view name, setting;
};
inline constexpr std::array kPerformanceAliases{
    SettingAlias{"mixed_precision", "enable_amp"},
    SettingAlias{"enable_mixed_precision", "enable_amp"},
    SettingAlias{"enable_batch_optimization", "batch_size_optimization"},
};

// Where somebody said both: the first at 0, and the second where it is on, or a number above 0.
struct SettingContradiction {
  std::string_view zero, on;
};
inline constexpr std::array kPerformanceContradictions{
    SettingContradiction{"num_workers", "persistent_workers"},
    SettingContradiction{"num_workers", "prefetch_factor"},
    SettingContradiction{"cache_size", "enable_caching"},
    SettingContradiction{"max_workers", "enable_parallelization"},
};

}  // namespace headrace::facade
