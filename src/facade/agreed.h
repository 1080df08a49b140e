// One setting that may be given under several names.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/fail.h"

namespace headrace::facade {

// The value that it has by all of the names that are given, or `otherwise` where none is. Error{invalid_argument}: two
// of them differ.
template <class Value>
Value agreed(std::string_view setting, std::initializer_list<std::pair<std::string_view, std::optional<Value>>> values,
             Value otherwise) {
  std::optional<Value> first;
  bool differ = false;
  std::string found;
  for (const auto& [name, value] : values) {
    if (!value) continue;
    if (!first) {
      first = value;  // Not compared with itself: NaN differs from NaN.
    } else if (*value != *first) {
      differ = true;
    }
    found += fmt::format("{}{}={}", found.empty() ? "" : ", ", name, *value);
  }
  if (differ) {
    fail(ErrorCode::invalid_argument, "facade: {}: wanted one value, found {}, which are names of the same setting",
         setting, found);
  }
  return first.value_or(otherwise);
}

}  // namespace headrace::facade
