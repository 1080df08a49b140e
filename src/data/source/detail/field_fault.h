// How a fault of one field is put into words.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "data/source/payload_check.h"

namespace headrace::detail {

template <class... Args>
FieldFault field_fault(ErrorCode code, const FieldSpec& field, fmt::format_string<Args...> format, Args&&... args) {
  return {code, fmt::format("field {}: {}", field.name, fmt::format(format, std::forward<Args>(args)...))};
}

template <class... Args>
FieldFault corrupt_field(const FieldSpec& field, fmt::format_string<Args...> format, Args&&... args) {
  return field_fault(ErrorCode::corrupt_data, field, format, std::forward<Args>(args)...);
}

}  // namespace headrace::detail
