// A setting of a PerformanceConfig as every switch reports itself.
#pragma once

#include <headrace/error.h>
#include <headrace/facade/performance_config.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace headrace::facade {

// What is not asked for needs no reason: false, and 0.
inline bool is_requested(const OptionValue& value) {
  if (const auto* const on = std::get_if<bool>(&value)) return *on;
  if (const auto* const whole = std::get_if<std::int64_t>(&value)) return *whole != 0;
  if (const auto* const real = std::get_if<double>(&value)) return *real != 0;
  return true;
}

// `reason`: why it is not applied, and "none" is; empty: it is.
inline Applied setting_row(const PerformanceConfig& config, std::string_view name, std::string_view reason) {
  const OptionValue value = config.get(name);
  const auto* const choice = std::get_if<std::string>(&value);
  const std::string text = choice != nullptr ? *choice : to_toml(value);
  if (reason.empty() || !is_requested(value)) return {std::string(name), text, text, ""};
  return {std::string(name), text, "none", std::string(reason)};
}

}  // namespace headrace::facade
