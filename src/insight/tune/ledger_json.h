// The ledger as a JSON document, for those who build larger documents of it.
#pragma once

#include <headrace/ledger.h>

#include <nlohmann/json_fwd.hpp>
#include <optional>

namespace headrace {

// ledger.json: {"format": "headrace-ledger", "version": 1, ...}. Numbers that are not finite become null. Sentences may
// hold bytes of foreign exceptions: dump with error_handler_t::replace.
nlohmann::ordered_json to_json(const Ledger& ledger);

// What ledgers of every kind are written with, and read. Reading throws what nlohmann::json throws for another type.
namespace ledger_json {

nlohmann::ordered_json number(double value);                        // null where it is not finite.
nlohmann::ordered_json number(const std::optional<double>& value);  // null where there is none, too.
double number(const nlohmann::ordered_json& json);                  // null as NaN.
nlohmann::ordered_json interval(const Interval& value);             // {"median", "low", "high"}.
Interval interval(const nlohmann::ordered_json& json);
nlohmann::ordered_json settings(const Settings& values);  // An object of texts.
Settings settings(const nlohmann::ordered_json& json);    // Keys of earlier versions under the names they have now.

}  // namespace ledger_json

}  // namespace headrace
