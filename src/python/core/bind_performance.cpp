#include <headrace/facade/performance_options.h>
#include <headrace/facade/performance_preset_options.h>
#include <headrace/option_fields.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <variant>

#include "python/core/bindings.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

using nlohmann::ordered_json;

ordered_json json_of_field(const Field& field) {
  ordered_json json;
  json["default"] = std::visit([](const auto& value) { return ordered_json(value); }, field.get());
  if (field.kind == FieldKind::choice) json["choices"] = field.choices;
  if (field.kind == FieldKind::integer) {
    json["whole_range"] =
        ordered_json::array({static_cast<std::int64_t>(field.low), static_cast<std::int64_t>(field.high)});
    json["or_auto"] = field.or_auto;
  }
  if (field.kind == FieldKind::real) json["range"] = ordered_json::array({field.low, field.high});
  return json;
}

ordered_json json_of_preset(const facade::PerformancePreset& preset) {
  ordered_json json = ordered_json::object();
  for (const facade::PresetSetting& setting : preset.settings) {
    json[std::string(setting.name)] = std::visit([](const auto& value) { return ordered_json(value); }, setting.value);
  }
  return json;
}

ordered_json performance_settings() {
  facade::PerformanceValues values;
  ordered_json settings, presets, aliases, contradictions, components;
  for (const Field& field : fields_of(values)) settings[field.key] = json_of_field(field);
  for (const auto& preset : facade::kPerformancePresets) presets[std::string(preset.name)] = json_of_preset(preset);
  for (const auto& alias : facade::kPerformanceAliases) aliases[std::string(alias.name)] = std::string(alias.setting);
  for (const auto& [zero, on] : facade::kPerformanceContradictions) {
    contradictions.push_back(ordered_json::array({std::string(zero), std::string(on)}));
  }
  for (const auto& [name, names] : facade::kPerformanceComponents) {
    ordered_json& list = components[std::string(name)] = ordered_json::array();
    for (const std::string_view setting : names) list.push_back(std::string(setting));
  }
  return {{"settings", settings},
          {"presets", presets},
          {"aliases", aliases},
          {"contradictions", contradictions},
          {"components", components}};
}

}  // namespace

void register_performance(nb::module_& module) {
  module.def(
      "performance_settings", [] { return object_of(performance_settings()); },
      "The table behind performance_optimization.PerformanceConfig: settings with default and range, presets, aliases, "
      "contradictions, components.");
}

}  // namespace headrace::python
