// A configuration of performance optimization under the names of the Python package performance_optimization, and who
// set which setting.
#pragma once

#include <headrace/facade/performance_options.h>
#include <headrace/option_fields.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::facade {

struct GpuOptimizationConfig;

// A setting in which two configurations differ.
struct SettingDifference {
  std::string name;
  OptionValue here, there;
};

// Who said a setting first: the user, a preset, the level, a table of hardware, nobody.
enum class SetBy { explicitly, preset, level, hardware, by_default };
std::string_view to_string(SetBy set_by);  // "explicit", "preset", "level", "hardware", "default".

// A value. A level gives defaults, and what is said goes before it:
//
//   level            | enable_amp, enable_compile, enable_gradient_checkpointing, | gradient_accumulation_steps
//                    | enable_memory_format_optimization                          |
//   none, which is   | on                                                         | 4
//   advanced         |                                                            |
//   basic            | off                                                        | 1
//   advanced         | on                                                         | 1
//   ultra            | on, with enable_flash_attention and num_workers 8          | 8
//   custom           | off, with every switch off that is on by default, but      | 4
//                    | those of loaders                                           |
//
// Under custom gradient_accumulation is on where gradient_accumulation_steps is said.
//
// Error{invalid_argument} of all that sets: no setting is called so (the nearest one is named), a value out of range or
// of another type, two names of one setting that differ, or two settings that cannot both hold, as num_workers = 0
// beside persistent_workers = true. What throws changes nothing.
class PerformanceConfig {
 public:
  PerformanceConfig();
  explicit PerformanceConfig(const PerformanceSettings& settings);
  explicit PerformanceConfig(OptimizationLevel level);
  // "basic", "advanced", "ultra", "custom", "debug", "production" or "minimal_overhead"; what is said goes before it.
  static PerformanceConfig preset(std::string_view name, const PerformanceSettings& settings = {});

  const PerformanceValues& values() const { return values_; }
  const PerformanceValues* operator->() const { return &values_; }
  // By any of its names; a choice by its text.
  OptionValue get(std::string_view name) const;
  void set(std::string_view name, const OptionValue& value);
  SetBy set_by(std::string_view name) const;

  // A copy, of which batch settings that nobody has said are the table's; nullopt, as without CUDA: the same.
  PerformanceConfig with_hardware(const std::optional<GpuOptimizationConfig>& table) const;
  // A copy with these, each as "num_workers=8" or "--num_workers=8", as a command is given them.
  PerformanceConfig with_overrides(std::span<const std::string> texts) const;

  // All settings in their order, on several lines.
  std::string to_json() const;
  // What the user, a preset or a table of hardware has said, as JSON, whole or not at all. Error{io}.
  void save(const std::filesystem::path& path) const;
  // Of a JSON object with settings by name. Errors begin with `source`.
  static PerformanceConfig from_json(std::string_view text, std::string_view source = "JSON");
  // Error{not_found}, {io}: it cannot be read.
  static PerformanceConfig load(const std::filesystem::path& path);

  // In which settings the two differ, in their order.
  std::vector<SettingDifference> diff(const PerformanceConfig& other) const;
  // A line for each setting: its component, name, value and who set it. The text of Python's table().
  std::string table() const;
  // The same settings, whoever said them.
  bool operator==(const PerformanceConfig& other) const { return values_ == other.values_; }

 private:
  using Said = std::map<std::string, SetBy, std::less<>>;

  void say(std::string_view name, const OptionValue& value, SetBy set_by);
  void fill();
  void check_contradictions() const;
  std::string json_of(bool said_alone) const;

  PerformanceValues values_;
  Said said_;  // Of what is not in it the default is in force.
};

// A line for each, below a head. The text of Python's str() of a diff().
std::string table(std::span<const SettingDifference> differences);

// "optimization_level" and so on, in the order of PerformanceValues.
std::span<const std::string> performance_setting_names();

}  // namespace headrace::facade
