#include <headrace/facade/hardware.h>
#include <headrace/facade/performance_config.h>
#include <headrace/facade/performance_preset_options.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/base/nearest_name.h"

namespace headrace::facade {
namespace {

constexpr std::int64_t kFileBytesMax = 1 << 20;
constexpr std::string_view kLevel = "optimization_level", kSteps = "gradient_accumulation_steps";

template <class Value>
OptionValue option_value(const Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    return std::string(choice_name(value));
  } else {
    return value;
  }
}

// What of PerformanceSettings is said.
struct Given {
  std::vector<std::pair<std::string, OptionValue>> settings{};

  template <class Value, class... Rest>
  void operator()(const char* name, const std::optional<Value>& value, const Rest&...) {
    if (value) settings.emplace_back(name, option_value(*value));
  }
};

std::vector<std::pair<std::string, OptionValue>> given_in(const PerformanceSettings& settings) {
  Given given;
  describe(given, settings);
  given("mixed_precision", settings.mixed_precision);
  given("enable_mixed_precision", settings.enable_mixed_precision);
  given("enable_batch_optimization", settings.enable_batch_optimization);
  return std::move(given.settings);
}

std::string_view setting_of(std::string_view name) {
  const auto of_name = [name](const SettingAlias& alias) { return alias.name == name; };
  const auto* const alias = std::find_if(kPerformanceAliases.begin(), kPerformanceAliases.end(), of_name);
  return alias == kPerformanceAliases.end() ? name : alias->setting;
}

std::string did_you_mean(const std::vector<std::string>& names, std::string_view name) {
  const std::string nearest = nearest_name(names, name);
  return nearest.empty() ? "" : fmt::format(", did you mean {}?", nearest);
}

[[noreturn]] void fail_unknown(std::string_view name) {
  const std::span<const std::string> settings = performance_setting_names();
  std::vector<std::string> names(settings.begin(), settings.end());
  for (const SettingAlias& alias : kPerformanceAliases) names.emplace_back(alias.name);
  fail(ErrorCode::invalid_argument, "facade: PerformanceConfig: no setting is called '{}'{}", name,
       did_you_mean(names, name));
}

// Refers to `values`.
Field field_of(PerformanceValues& values, std::string_view name) {
  std::vector<Field> fields = fields_of(values);
  const auto found =
      std::find_if(fields.begin(), fields.end(), [&](const Field& field) { return field.key == setting_of(name); });
  if (found == fields.end()) fail_unknown(name);
  return std::move(*found);
}

OptionValue value_of(const PresetSetting& setting) {
  const auto as_option = [](const auto& value) -> OptionValue {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, std::string_view>) {
      return std::string(value);
    } else {
      return value;
    }
  };
  return std::visit(as_option, setting.value);
}

const PerformancePreset& preset_of(std::string_view name) {
  const auto of_name = [name](const PerformancePreset& preset) { return preset.name == name; };
  const auto* const preset = std::find_if(kPerformancePresets.begin(), kPerformancePresets.end(), of_name);
  if (preset != kPerformancePresets.end()) return *preset;
  std::vector<std::string> names;
  std::string all;
  for (const PerformancePreset& known : kPerformancePresets) {
    names.emplace_back(known.name);
    all += fmt::format("{}{}", all.empty() ? "" : " | ", known.name);
  }
  fail(ErrorCode::invalid_argument, "facade: preset: wanted {}, found '{}'{}", all, name, did_you_mean(names, name));
}

// JSON writes a whole number that is meant as a real one without a point.
OptionValue value_of(const nlohmann::ordered_json& json, std::string_view name) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  fail(ErrorCode::invalid_argument, "facade: {}: wanted a number, a text, true or false, found {}", name, json.dump());
}

nlohmann::ordered_json json_of(const OptionValue& value) {
  return std::visit([](const auto& held) { return nlohmann::ordered_json(held); }, value);
}

bool is_zero(const OptionValue& value) {
  const auto* const number = std::get_if<std::int64_t>(&value);
  return number != nullptr && *number == 0;
}

bool is_on(const OptionValue& value) {
  const auto* const on = std::get_if<bool>(&value);
  return on != nullptr ? *on : !is_zero(value);
}

std::int64_t machine_cores() {
  return std::max<std::int64_t>(std::thread::hardware_concurrency(), 1);
}

}  // namespace

std::string_view to_string(SetBy set_by) {
  switch (set_by) {
    case SetBy::explicitly:
      return "explicit";
    case SetBy::preset:
      return "preset";
    case SetBy::level:
      return "level";
    case SetBy::hardware:
      return "hardware";
    case SetBy::by_default:
      break;
  }
  return "default";
}

std::span<const std::string> performance_setting_names() {
  static const std::vector<std::string> names = [] {
    PerformanceValues values;
    std::vector<std::string> all;
    for (const Field& field : fields_of(values)) all.push_back(field.key);
    return all;
  }();
  return names;
}

PerformanceConfig::PerformanceConfig() {
  fill();
}

PerformanceConfig::PerformanceConfig(OptimizationLevel level)
    : PerformanceConfig(PerformanceSettings{.optimization_level = level}) {}

PerformanceConfig::PerformanceConfig(const PerformanceSettings& settings) {
  std::map<std::string, std::pair<std::string, OptionValue>, std::less<>> first;  // By setting, its name and value.
  for (const auto& [name, value] : given_in(settings)) {
    const auto [place, is_new] = first.try_emplace(std::string(setting_of(name)), name, value);
    if (!is_new && place->second.second != value) {
      fail(ErrorCode::invalid_argument,
           "facade: {}: wanted one value, found {}={}, {}={}, which are names of the same setting", place->first,
           place->second.first, to_toml(place->second.second), name, to_toml(value));
    }
    say(name, value, SetBy::explicitly);
  }
  fill();
  check_contradictions();
}

PerformanceConfig PerformanceConfig::preset(std::string_view name, const PerformanceSettings& settings) {
  const PerformancePreset& preset = preset_of(name);
  PerformanceSettings with_level = settings;
  for (const auto& level : choices(OptimizationLevel{})) {
    if (level.name != name) continue;
    if (!settings.optimization_level) with_level.optimization_level = level.value;
    return PerformanceConfig(with_level);
  }
  PerformanceConfig config(settings);
  for (const PresetSetting& setting : preset.settings) {
    if (config.set_by(setting.name) != SetBy::explicitly) config.say(setting.name, value_of(setting), SetBy::preset);
  }
  config.fill();
  return config;
}

OptionValue PerformanceConfig::get(std::string_view name) const {
  PerformanceValues values = values_;
  return field_of(values, name).get();
}

void PerformanceConfig::set(std::string_view name, const OptionValue& value) {
  PerformanceConfig changed = *this;
  changed.say(name, value, SetBy::explicitly);
  changed.fill();
  changed.check_contradictions();
  *this = std::move(changed);
}

SetBy PerformanceConfig::set_by(std::string_view name) const {
  const std::string_view setting = setting_of(name);
  const std::span<const std::string> names = performance_setting_names();
  if (std::find(names.begin(), names.end(), setting) == names.end()) fail_unknown(name);
  const auto found = said_.find(setting);
  return found == said_.end() ? SetBy::by_default : found->second;
}

PerformanceConfig PerformanceConfig::with_hardware(const std::optional<GpuOptimizationConfig>& table) const {
  PerformanceConfig config = *this;
  if (!table) return config;
  const std::pair<std::string_view, OptionValue> rows[] = {
      {"enable_amp", table->enable_amp}, {"num_workers", table->num_workers}, {"pin_memory", table->pin_memory}};
  for (const auto& [name, value] : rows) {
    const SetBy found = set_by(name);
    if (found == SetBy::by_default || found == SetBy::hardware) config.say(name, value, SetBy::hardware);
  }
  return config;
}

PerformanceConfig PerformanceConfig::with_overrides(std::span<const std::string> texts) const {
  PerformanceConfig config = *this;
  for (const std::string& text : texts) {
    const std::size_t dashes = text.starts_with("--") ? 2 : 0, equals = text.find('=');
    if (equals == std::string::npos || equals == dashes) {
      fail(ErrorCode::invalid_argument, "facade: override: wanted NAME=VALUE, found '{}'", text);
    }
    const std::string name = text.substr(dashes, equals - dashes);
    const Field field = field_of(config.values_, name);
    config.say(name, parse_option(field, text.substr(equals + 1)), SetBy::explicitly);
  }
  config.fill();
  config.check_contradictions();
  return config;
}

std::string PerformanceConfig::to_json() const {
  return json_of(/*said_alone=*/false);
}

void PerformanceConfig::save(const std::filesystem::path& path) const {
  write_file(path, json_of(/*said_alone=*/true) + "\n");
}

PerformanceConfig PerformanceConfig::from_json(std::string_view text, std::string_view source) {
  const auto json = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    fail(ErrorCode::invalid_argument, "facade: {}: wanted a JSON object with settings by name, found {}", source,
         json.is_discarded() ? "no JSON" : json.type_name());
  }
  try {
    PerformanceConfig config;
    std::map<std::string, std::string, std::less<>> first;  // By setting, the name that said it.
    for (const auto& [name, found] : json.items()) {
      const OptionValue value = value_of(found, name);
      const auto [place, is_new] = first.try_emplace(std::string(setting_of(name)), name);
      if (!is_new && config.get(name) != value) {
        fail(ErrorCode::invalid_argument, "facade: {}: wanted one value, found another one by {}", place->second, name);
      }
      config.say(name, value, SetBy::explicitly);
    }
    config.fill();
    config.check_contradictions();
    return config;
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", source, error.what()));
  }
}

PerformanceConfig PerformanceConfig::load(const std::filesystem::path& path) {
  return from_json(read_file(path, kFileBytesMax), path.string());
}

void PerformanceConfig::say(std::string_view name, const OptionValue& value, SetBy set_by) {
  field_of(values_, name).set(value);
  said_.insert_or_assign(std::string(setting_of(name)), set_by);
}

// Gives the settings that nobody has said what the level or the defaults have.
void PerformanceConfig::fill() {
  std::map<std::string_view, OptionValue> of_level;
  for (const PresetSetting& setting : preset_of(choice_name(values_.optimization_level)).settings) {
    of_level.emplace(setting.name, value_of(setting));
  }
  if (!said_.contains(kLevel)) of_level.erase(kSteps);  // The default holds unless a level was chosen.
  // Custom leaves accumulation off to who says nothing of it.
  if (said_.contains(kSteps) && set_by(kSteps) != SetBy::level) of_level.erase("gradient_accumulation");
  std::erase_if(said_, [](const auto& entry) { return entry.second == SetBy::level; });

  PerformanceValues defaults;
  defaults.max_workers = machine_cores();
  const std::vector<Field> fields = fields_of(values_), default_fields = fields_of(defaults);
  for (std::size_t i = 1; i < fields.size(); ++i) {
    const std::string& name = fields[i].key;
    const SetBy found = set_by(name);
    if (found == SetBy::explicitly || found == SetBy::preset) continue;
    if (const auto level = of_level.find(name); level != of_level.end()) {
      fields[i].set(level->second);
      said_.insert_or_assign(name, SetBy::level);
    } else if (found == SetBy::by_default) {
      fields[i].set(default_fields[i].get());
    }
  }
}

void PerformanceConfig::check_contradictions() const {
  for (const auto& [zero, on] : kPerformanceContradictions) {
    const bool are_said = set_by(zero) == SetBy::explicitly && set_by(on) == SetBy::explicitly;
    if (!are_said || !is_zero(get(zero)) || !is_on(get(on))) continue;
    fail(ErrorCode::invalid_argument, "facade: {}: wanted at least 1 beside {}={}, found 0", zero, on,
         to_toml(get(on)));
  }
}

std::string PerformanceConfig::json_of(bool said_alone) const {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const std::string& name : performance_setting_names()) {
    const SetBy found = set_by(name);
    if (said_alone && (found == SetBy::level || found == SetBy::by_default)) continue;
    json[name] = facade::json_of(get(name));
  }
  return json.dump(2);
}

}  // namespace headrace::facade
