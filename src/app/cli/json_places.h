// Values in documents that may have any form: what is not there, or of another type, is none.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace headrace::json_places {

// The value at a path of keys, or null where the document has none.
inline const nlohmann::ordered_json& at(const nlohmann::ordered_json& document,
                                        std::initializer_list<const char*> path) {
  static const nlohmann::ordered_json nothing;
  const nlohmann::ordered_json* place = &document;
  for (const char* key : path) {
    if (!place->is_object() || !place->contains(key)) return nothing;
    place = &(*place)[key];
  }
  return *place;
}

inline std::optional<double> number(const nlohmann::ordered_json& value) {
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

inline std::string text(const nlohmann::ordered_json& value) {
  return value.is_string() ? value.get<std::string>() : std::string{};
}

// The numbers of a list; empty where one of them is none.
inline std::vector<double> numbers(const nlohmann::ordered_json& list) {
  std::vector<double> values;
  if (!list.is_array()) return values;
  for (const nlohmann::ordered_json& value : list) {
    if (!value.is_number()) return {};
    values.push_back(value.get<double>());
  }
  return values;
}

}  // namespace headrace::json_places
