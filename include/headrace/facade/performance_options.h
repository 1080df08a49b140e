// The settings of a PerformanceConfig, for C++ and for the Python package performance_optimization: names, defaults,
// ranges. Presets are in performance_preset_options.h.
#pragma once

#include <headrace/options.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <optional>
#include <type_traits>

namespace headrace::facade {

enum class OptimizationLevel { basic, advanced, ultra, custom };
constexpr auto choices(OptimizationLevel) {
  using enum OptimizationLevel;
  return std::array{Choice<OptimizationLevel>{basic, "basic"}, Choice<OptimizationLevel>{advanced, "advanced"},
                    Choice<OptimizationLevel>{ultra, "ultra"}, Choice<OptimizationLevel>{custom, "custom"}};
}

// As the published examples have them; headrace::MemoryFormat has those that the engine lays out.
enum class MemoryFormat { contiguous, channels_last, channels_last_3d, preserve };
constexpr auto choices(MemoryFormat) {
  using enum MemoryFormat;
  return std::array{
      Choice<MemoryFormat>{contiguous, "contiguous"}, Choice<MemoryFormat>{channels_last, "channels_last"},
      Choice<MemoryFormat>{channels_last_3d, "channels_last_3d"}, Choice<MemoryFormat>{preserve, "preserve"}};
}

// What a configuration comes to.
struct PerformanceValues {
  OptimizationLevel optimization_level = OptimizationLevel::advanced;
  bool enable_amp = false;
  bool enable_compile = false;
  bool enable_gradient_checkpointing = false;
  bool enable_flash_attention = false;
  bool enable_memory_format_optimization = false;
  MemoryFormat memory_format = MemoryFormat::channels_last;
  std::int64_t num_workers = 4;
  bool pin_memory = true;
  bool persistent_workers = true;
  std::int64_t prefetch_factor = 2;
  bool enable_async_data_loading = true;
  bool gradient_accumulation = true;
  std::int64_t gradient_accumulation_steps = 4;  // AUTOTUNE: by the batch size.
  bool enable_profiling = true;
  bool enable_memory_profiling = false;
  bool enable_caching = true;
  bool enable_parallelization = true;
  bool enable_memory_optimization = true;
  bool enable_compression = true;
  std::int64_t cache_size = 1000;
  std::int64_t max_workers = 0;  // Where nobody says it, a PerformanceConfig has the machine's cores.
  double memory_threshold = 0.8;
  bool batch_size_optimization = true;

  bool operator==(const PerformanceValues&) const = default;
};

// What somebody says of them; the rest is a level's or the defaults.
struct PerformanceSettings {
  std::optional<OptimizationLevel> optimization_level{};
  std::optional<bool> enable_amp{};
  std::optional<bool> enable_compile{};
  std::optional<bool> enable_gradient_checkpointing{};
  std::optional<bool> enable_flash_attention{};
  std::optional<bool> enable_memory_format_optimization{};
  std::optional<MemoryFormat> memory_format{};
  std::optional<std::int64_t> num_workers{};
  std::optional<bool> pin_memory{};
  std::optional<bool> persistent_workers{};
  std::optional<std::int64_t> prefetch_factor{};
  std::optional<bool> enable_async_data_loading{};
  std::optional<bool> gradient_accumulation{};
  std::optional<std::int64_t> gradient_accumulation_steps{};
  std::optional<bool> enable_profiling{};
  std::optional<bool> enable_memory_profiling{};
  std::optional<bool> enable_caching{};
  std::optional<bool> enable_parallelization{};
  std::optional<bool> enable_memory_optimization{};
  std::optional<bool> enable_compression{};
  std::optional<std::int64_t> cache_size{};
  std::optional<std::int64_t> max_workers{};
  std::optional<double> memory_threshold{};
  std::optional<bool> batch_size_optimization{};
  // Other names: of enable_amp two, of batch_size_optimization one.
  std::optional<bool> mixed_precision{};
  std::optional<bool> enable_mixed_precision{};
  std::optional<bool> enable_batch_optimization{};
};

template <class Options>
concept PerformanceFields = std::same_as<std::remove_const_t<Options>, PerformanceValues> ||
    std::same_as<std::remove_const_t<Options>, PerformanceSettings>;

template <class Visitor, PerformanceFields Options>
void describe(Visitor& visit, Options& o) {
  visit("optimization_level", o.optimization_level, "Which defaults several settings have.");
  visit("enable_amp", o.enable_amp, "Mixed precision where the model is on CUDA.");
  visit("enable_compile", o.enable_compile, "Compile the model.");
  visit("enable_gradient_checkpointing", o.enable_gradient_checkpointing, "Recompute activations in the backward.");
  visit("enable_flash_attention", o.enable_flash_attention, "Ask attention for the flash kernel.");
  visit("enable_memory_format_optimization", o.enable_memory_format_optimization,
        "Lay the model out as memory_format.");
  visit("memory_format", o.memory_format, "Layout of weights and images.");
  visit("num_workers", o.num_workers, Range<std::int64_t>{0, 256}, "Workers that load.");
  visit("pin_memory", o.pin_memory, "Batches in page-locked memory.");
  visit("persistent_workers", o.persistent_workers, "Workers stay from epoch to epoch.");
  visit("prefetch_factor", o.prefetch_factor, Range<std::int64_t>{1, 64}, "Batches that a worker prepares ahead.");
  visit("enable_async_data_loading", o.enable_async_data_loading, "Load beside training.");
  visit("gradient_accumulation", o.gradient_accumulation, "Several batches in an update.");
  visit("gradient_accumulation_steps", o.gradient_accumulation_steps, Range<std::int64_t>{1, 1 << 20, kOrAuto},
        "How many.");
  visit("enable_profiling", o.enable_profiling, "Measure epochs.");
  visit("enable_memory_profiling", o.enable_memory_profiling, "Measure memory over time.");
  visit("enable_caching", o.enable_caching, "Keep samples in memory.");
  visit("enable_parallelization", o.enable_parallelization, "Use pools of workers.");
  visit("enable_memory_optimization", o.enable_memory_optimization, "Give unused memory back between epochs.");
  visit("enable_compression", o.enable_compression, "Compress what is kept.");
  visit("cache_size", o.cache_size, Range<std::int64_t>{0, 1'000'000'000'000}, "Entries of a cache.");
  visit("max_workers", o.max_workers, Range<std::int64_t>{0, 1024}, "Workers of pools.");
  visit("memory_threshold", o.memory_threshold, Range<double>{0.0, 1.0},
        "Share of a device's memory above which unused memory is given back; 0: never.");
  visit("batch_size_optimization", o.batch_size_optimization, "Search the batch size.");
}

}  // namespace headrace::facade
