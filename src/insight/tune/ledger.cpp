#include <headrace/option_fields.h>
#include <headrace/tune.h>

#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/base/fail.h"
#include "insight/diagnose/json.h"
#include "insight/tune/ledger_json.h"

namespace headrace {

using nlohmann::ordered_json;

namespace ledger_json {

ordered_json number(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

ordered_json number(const std::optional<double>& value) {
  return value ? number(*value) : ordered_json(nullptr);
}

double number(const ordered_json& json) {
  return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

ordered_json interval(const Interval& value) {
  return {{"median", number(value.median)}, {"low", number(value.low)}, {"high", number(value.high)}};
}

Interval interval(const ordered_json& json) {
  return {number(json.at("median")), number(json.at("low")), number(json.at("high"))};
}

ordered_json settings(const Settings& values) {
  auto json = ordered_json::object();
  for (const auto& [key, value] : values) json[key] = value;
  return json;
}

Settings settings(const ordered_json& json) {
  Settings values;
  for (const auto& [key, value] : json.items()) values.emplace(key, value.get<std::string>());
  return current_settings(values);
}

}  // namespace ledger_json

namespace {

using ledger_json::interval;
using ledger_json::number;
using ledger_json::settings;

constexpr const char* kFormat = "headrace-ledger";
constexpr int kVersion = 1;

constexpr auto kClassNames = choices(NumericClass::rounding);
constexpr std::array kVerdictNames = {std::pair{Verdict::kept, "kept"}, std::pair{Verdict::refused, "refused"},
                                      std::pair{Verdict::inconclusive, "inconclusive"},
                                      std::pair{Verdict::failed, "failed"}};
constexpr std::array kReasonNames = {std::pair{Reason::none, "none"},
                                     std::pair{Reason::slower, "slower"},
                                     std::pair{Reason::no_gain, "no_gain"},
                                     std::pair{Reason::numerics, "numerics"},
                                     std::pair{Reason::memory, "memory"},
                                     std::pair{Reason::budget, "budget"},
                                     std::pair{Reason::error, "error"},
                                     std::pair{Reason::fixed, "fixed"},
                                     std::pair{Reason::not_quiet, "not_quiet"},
                                     std::pair{Reason::not_allowed, "not_allowed"},
                                     std::pair{Reason::carries_over, "carries_over"}};

constexpr std::array kSwitchesNames = {
    std::pair{Switches::live_step, "live_step"}, std::pair{Switches::live_epoch, "live_epoch"},
    std::pair{Switches::rebuild, "rebuild"}, std::pair{Switches::new_process, "new_process"}};

template <class Names, class Value>
const char* name_of(const Names& names, Value value) noexcept {
  for (const auto& [known, name] : names) {
    if (known == value) return std::string_view(name).data();
  }
  return "?";
}

template <class Names>
auto value_named(const Names& names, const std::string& text, std::string_view source) {
  for (const auto& [value, name] : names) {
    if (text == name) return value;
  }
  fail(ErrorCode::corrupt_data, "tune: {} is a damaged ledger: unknown name \"{}\"", source, text);
}

ordered_json numbers(const std::vector<double>& values) {
  auto json = ordered_json::array();
  for (const double value : values) json.push_back(number(value));
  return json;
}

std::vector<double> numbers(const ordered_json& json) {
  std::vector<double> values;
  for (const auto& value : json) values.push_back(number(value));
  return values;
}

std::optional<double> optional_number(const ordered_json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? std::nullopt : std::optional(found->get<double>());
}

constexpr std::array kQuietFigures = {std::pair{"scatter", &Quietness::scatter},
                                      std::pair{"lag", &Quietness::lag},
                                      std::pair{"own", &Quietness::own},
                                      std::pair{"others", &Quietness::others},
                                      std::pair{"steal", &Quietness::steal},
                                      std::pair{"idle", &Quietness::idle},
                                      std::pair{"pressure", &Quietness::pressure},
                                      std::pair{"pressure_avg10", &Quietness::pressure_avg10},
                                      std::pair{"group_pressure", &Quietness::group_pressure},
                                      std::pair{"group_pressure_avg10", &Quietness::group_pressure_avg10}};

ordered_json quietness(const Quietness& value) {
  ordered_json json = {{"quiet", value.quiet ? ordered_json(*value.quiet) : ordered_json(nullptr)},
                       {"cores_taken", value.cores_taken},
                       {"sentence", value.sentence},
                       {"blocks", value.blocks},
                       {"block_s", number(value.block_s)}};
  for (const auto& [name, figure] : kQuietFigures) json[name] = number(value.*figure);
  json["pairs_needed"] = value.pairs_needed;
  json["candidates_wanted"] = value.candidates_wanted;
  json["candidates_held"] = value.candidates_held;
  return json;
}

Quietness quietness(const ordered_json& json) {
  Quietness value;
  if (!json.at("quiet").is_null()) value.quiet = json.at("quiet").get<bool>();
  value.cores_taken = json.at("cores_taken");
  value.sentence = json.at("sentence");
  value.blocks = json.at("blocks");
  value.block_s = number(json.at("block_s"));
  for (const auto& [name, figure] : kQuietFigures) value.*figure = optional_number(json, name);
  value.pairs_needed = json.at("pairs_needed");
  value.candidates_wanted = json.at("candidates_wanted");
  value.candidates_held = json.at("candidates_held");
  return value;
}

ordered_json trial(const Trial& value) {
  ordered_json json = {{"name", value.name},
                       {"verdict", to_string(value.verdict)},
                       {"reason", to_string(value.reason)},
                       {"sentence", value.sentence},
                       {"pairs", value.pairs}};
  json["gain"] = value.gain ? interval(*value.gain) : ordered_json(nullptr);
  json["numerics"] = {{"class", to_string(value.numerics.numeric_class)},
                      {"checked", value.numerics.checked},
                      {"passed", value.numerics.passed},
                      {"value", value.numerics.checked ? number(value.numerics.value) : ordered_json(nullptr)},
                      {"tolerance", value.numerics.checked ? number(value.numerics.tolerance) : ordered_json(nullptr)},
                      {"measure", value.numerics.measure},
                      {"baseline_error", number(value.numerics.baseline_error)},
                      {"why_not_float64", value.numerics.why_not_float64}};
  json["changes"] = settings(value.changes);
  json["removed_again"] = value.removed_again;
  json["baseline_s"] = numbers(value.baseline_s);
  json["candidate_s"] = numbers(value.candidate_s);
  json["late_share"] = value.late_share;
  return json;
}

Trial trial(const ordered_json& json, std::string_view source) {
  Trial value;
  value.name = json.at("name");
  value.verdict = value_named(kVerdictNames, json.at("verdict"), source);
  value.reason = value_named(kReasonNames, json.at("reason"), source);
  value.sentence = json.at("sentence");
  value.pairs = json.at("pairs");
  if (!json.at("gain").is_null()) value.gain = interval(json.at("gain"));
  const auto& numerics = json.at("numerics");
  value.numerics.numeric_class = value_named(kClassNames, numerics.at("class"), source);
  value.numerics.checked = numerics.at("checked");
  value.numerics.passed = numerics.at("passed");
  if (value.numerics.checked) {
    value.numerics.value = number(numerics.at("value"));
    value.numerics.tolerance = number(numerics.at("tolerance"));
  }
  value.numerics.measure = numerics.at("measure");
  value.numerics.baseline_error = optional_number(numerics, "baseline_error");  // Older ledgers lack these two.
  value.numerics.why_not_float64 = numerics.value("why_not_float64", "");
  value.changes = settings(json.at("changes"));
  value.removed_again = json.at("removed_again");
  value.baseline_s = numbers(json.at("baseline_s"));
  value.candidate_s = numbers(json.at("candidate_s"));
  value.late_share = json.value("late_share", 0.0);  // Ledgers of 0.1 lack it.
  return value;
}

}  // namespace

const char* to_string(NumericClass numeric_class) noexcept {
  return name_of(kClassNames, numeric_class);
}
const char* to_string(Switches switches) noexcept {
  return name_of(kSwitchesNames, switches);
}
const char* to_string(Verdict verdict) noexcept {
  return name_of(kVerdictNames, verdict);
}
const char* to_string(Reason reason) noexcept {
  return name_of(kReasonNames, reason);
}

ordered_json to_json(const Ledger& ledger) {
  ordered_json json = {{"format", kFormat}, {"version", kVersion}};
  json["baseline"] = {{"samples_per_second", number(ledger.baseline_samples_per_second)},
                      {"settings", settings(ledger.baseline)}};
  json["best"] = {{"samples_per_second", number(ledger.best_samples_per_second)}, {"settings", settings(ledger.best)}};
  json["speedup"] = interval(ledger.speedup);
  json["speedup"]["pairs"] = ledger.speedup_pairs;
  json["speedup"]["baseline_s"] = numbers(ledger.baseline_s);
  json["speedup"]["best_s"] = numbers(ledger.best_s);
  json["budget_s"] = number(ledger.budget_s);
  json["spent_s"] = number(ledger.spent_s);
  json["quietness"] = quietness(ledger.quietness);
  json["trials"] = ordered_json::array();
  for (const auto& value : ledger.trials) json["trials"].push_back(trial(value));
  return json;
}

Ledger parse_ledger(std::string_view text, std::string_view source) {
  const auto json = ordered_json::parse(text, nullptr, false);
  if (!json.is_object() || json.value("format", ordered_json()) != kFormat) {
    fail(ErrorCode::corrupt_data, "tune: {} is not a ledger: wanted a JSON document with format \"{}\"", source,
         kFormat);
  }
  const auto version = json.value("version", ordered_json());
  if (version != kVersion) {
    fail(ErrorCode::unsupported, "tune: {} has ledger version {}, known here is {}", source, version.dump(), kVersion);
  }
  try {
    Ledger ledger;
    ledger.baseline_samples_per_second = number(json.at("baseline").at("samples_per_second"));
    ledger.baseline = settings(json.at("baseline").at("settings"));
    ledger.best_samples_per_second = number(json.at("best").at("samples_per_second"));
    ledger.best = settings(json.at("best").at("settings"));
    ledger.speedup = interval(json.at("speedup"));
    ledger.speedup_pairs = json.at("speedup").at("pairs");
    // Ledgers of 0.1 lack the blocks.
    ledger.baseline_s = numbers(json.at("speedup").value("baseline_s", ordered_json::array()));
    ledger.best_s = numbers(json.at("speedup").value("best_s", ordered_json::array()));
    ledger.budget_s = number(json.at("budget_s"));
    ledger.spent_s = number(json.at("spent_s"));
    if (json.contains("quietness")) ledger.quietness = quietness(json.at("quietness"));  // Older ledgers lack it.
    for (const auto& value : json.at("trials")) ledger.trials.push_back(trial(value, source));
    return ledger;
  } catch (const ordered_json::exception& error) {
    fail(ErrorCode::corrupt_data, "tune: {} is a damaged ledger: {}", source, error.what());
  }
}

std::string json_text(const Ledger& ledger) {
  return to_json(ledger).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace headrace
