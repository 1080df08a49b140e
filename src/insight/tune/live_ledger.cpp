#include <headrace/live_tuner.h>

#include <nlohmann/json.hpp>

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

const ordered_json& list_of(const ordered_json& json, const char* key, std::size_t count_max, std::string_view source) {
  const ordered_json& list = json.at(key);
  if (list.is_array() && list.size() <= count_max) return list;
  fail(ErrorCode::corrupt_data, "tune: {} is a damaged live ledger: wanted a list of at most {} {}, found {}", source,
       count_max, key, list.is_array() ? std::to_string(list.size()) : list.type_name());
}

LiveLedger parse_members(const ordered_json& json, std::string_view source) {
  LiveLedger ledger;
  ledger.ledger = parse_ledger(json.at("ledger").dump(), source);
  for (const auto& value : list_of(json, "turns", LiveLedger::kTurnsMax, source)) ledger.turns.push_back(turn(value));
  for (const auto& value : list_of(json, "estimates", kTrialsMax, source)) ledger.estimates.push_back(estimate(value));
  if (ledger.estimates.size() != ledger.ledger.trials.size()) {
    fail(ErrorCode::corrupt_data, "tune: {} is a damaged live ledger: {} trials, {} estimates", source,
         ledger.ledger.trials.size(), ledger.estimates.size());
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
    fail(ErrorCode::corrupt_data, "tune: {} is not a live ledger: wanted a JSON document with format \"{}\"", source,
         kFormat);
  }
  const auto version = json.value("version", ordered_json());
  if (version != kVersion) {
    fail(ErrorCode::unsupported, "tune: {} has live ledger version {}, known here is {}", source, version.dump(),
         kVersion);
  }
  try {
    return parse_members(json, source);
  } catch (const ordered_json::exception& error) {
    fail(ErrorCode::corrupt_data, "tune: {} is a damaged live ledger: {}", source, error.what());
  }
}

}  // namespace headrace
