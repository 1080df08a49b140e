#include <headrace/live_tuner.h>

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/fail.h"
#include "insight/tune/ledger_json.h"

namespace headrace {
namespace {

using ledger_json::number;
using nlohmann::ordered_json;

constexpr const char* kFormat = "headrace-live-ledger";
constexpr int kVersion = 1;
constexpr std::size_t kTrialsMax = 1000;  // Far more than there are knobs.

ordered_json turn(const LiveTurn& value) {
  return {{"update", value.update}, {"settings", ledger_json::settings(value.settings)}, {"why", value.why}};
}

LiveTurn turn(const ordered_json& json) {
  return {json.at("update").get<std::int64_t>(), ledger_json::settings(json.at("settings")),
          json.at("why").get<std::string>()};
}

ordered_json estimate(const LiveLedger::Estimate& value) {
  ordered_json json;
  json["gain"] = value.gain ? ledger_json::interval(*value.gain) : ordered_json(nullptr);
  json["pairs"] = value.pairs;
  json["wealth_for"] = number(value.wealth_for);
  json["wealth_against"] = number(value.wealth_against);
  json["pairs_needed"] = value.pairs_needed ? ordered_json(*value.pairs_needed) : ordered_json(nullptr);
  json["timed_only"] = value.timed_only;
  return json;
}

LiveLedger::Estimate estimate(const ordered_json& json) {
  LiveLedger::Estimate value;
  if (!json.at("gain").is_null()) value.gain = ledger_json::interval(json.at("gain"));
  value.pairs = json.at("pairs");
  value.wealth_for = number(json.at("wealth_for"));
  value.wealth_against = number(json.at("wealth_against"));
  if (!json.at("pairs_needed").is_null()) value.pairs_needed = json.at("pairs_needed").get<std::int64_t>();
  value.timed_only = json.at("timed_only");
  return value;
}

[[noreturn]] void fail_damaged(std::string_view source, const std::string& found) {
  fail(ErrorCode::corrupt_data, "tune: {} is a damaged live ledger: {}", source, found);
}

const ordered_json& list_of(const ordered_json& json, const char* key, std::size_t count_max, std::string_view source) {
  const auto list = json.find(key);
  if (list == json.end()) fail_damaged(source, fmt::format("{} is missing", key));
  if (list->is_array() && list->size() <= count_max) return *list;
  fail_damaged(source, fmt::format("wanted a list of at most {} {}, found {}", count_max, key,
                                   list->is_array() ? std::to_string(list->size()) : list->type_name()));
}

// By `read`, each entry of a list; an entry of another form is named by its place.
template <class Value>
std::vector<Value> values_of(const ordered_json& list, const char* key, std::string_view source,
                             Value (*read)(const ordered_json&)) {
  std::vector<Value> values;
  for (const ordered_json& entry : list) {
    try {
      values.push_back(read(entry));
    } catch (const ordered_json::exception& error) {
      fail_damaged(source, fmt::format("{}[{}]: {}", key, values.size(), error.what()));
    }
  }
  return values;
}

std::vector<LiveTurn> turns_of(const ordered_json& json, std::string_view source) {
  auto turns = values_of<LiveTurn>(list_of(json, "turns", LiveLedger::kTurnsMax, source), "turns", source, turn);
  std::int64_t least = 1;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    if (turns[i].update < least) {
      fail_damaged(source, fmt::format("turns[{}].update: wanted at least {}, found {}", i, least, turns[i].update));
    }
    least = turns[i].update;
  }
  return turns;
}

LiveLedger parse_members(const ordered_json& json, std::string_view source) {
  LiveLedger ledger;
  ledger.ledger = parse_ledger(json.at("ledger").dump(), source);
  ledger.turns = turns_of(json, source);
  ledger.estimates =
      values_of<LiveLedger::Estimate>(list_of(json, "estimates", kTrialsMax, source), "estimates", source, estimate);
  if (ledger.estimates.size() != ledger.ledger.trials.size()) {
    fail_damaged(source, fmt::format("{} trials, {} estimates", ledger.ledger.trials.size(), ledger.estimates.size()));
  }
  ledger.updates = json.at("updates");
  ledger.counted_units = json.at("counted_units");
  ledger.lost_s = number(json.at("lost_s"));
  ledger.lost_most_s = number(json.at("lost_most_s"));
  ledger.lost_allowed_s = number(json.at("lost_allowed_s"));
  ledger.ended = json.at("ended");
  ledger.end_reason = json.at("end_reason");
  return ledger;
}

// Of a text that is no live ledger, for a person.
std::string kind_of(const ordered_json& json) {
  if (json.is_discarded()) return "a text that is no whole JSON document";
  if (!json.is_object()) return fmt::format("JSON of type {}", json.type_name());
  const auto format = json.find("format");
  return format == json.end() ? "one without a format" : fmt::format("format {}", format->dump());
}

}  // namespace

std::string json_text(const LiveLedger& ledger) {
  ordered_json json = {{"format", kFormat}, {"version", kVersion}};
  json["ledger"] = to_json(ledger.ledger);
  json["turns"] = ordered_json::array();
  for (const LiveTurn& value : ledger.turns) json["turns"].push_back(turn(value));
  json["estimates"] = ordered_json::array();
  for (const LiveLedger::Estimate& value : ledger.estimates) json["estimates"].push_back(estimate(value));
  json["updates"] = ledger.updates;
  json["counted_units"] = ledger.counted_units;
  json["lost_s"] = number(ledger.lost_s);
  json["lost_most_s"] = number(ledger.lost_most_s);
  json["lost_allowed_s"] = number(ledger.lost_allowed_s);
  json["ended"] = ledger.ended;
  json["end_reason"] = ledger.end_reason;
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

LiveLedger parse_live_ledger(std::string_view text, std::string_view source) {
  const auto json = ordered_json::parse(text, nullptr, false);
  if (!json.is_object() || json.value("format", ordered_json()) != kFormat) {
    fail(ErrorCode::corrupt_data, "tune: {} is not a live ledger: wanted a JSON document with format \"{}\", found {}",
         source, kFormat, kind_of(json));
  }
  const auto version = json.value("version", ordered_json());
  if (version != kVersion) {
    fail(ErrorCode::unsupported, "tune: {} has live ledger version {}, known here is {}", source, version.dump(),
         kVersion);
  }
  try {
    return parse_members(json, source);
  } catch (const ordered_json::exception& error) {
    fail_damaged(source, error.what());
  }
}

}  // namespace headrace
