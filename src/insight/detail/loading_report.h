// What the report says of loading: a table of its stages and one of what the loader changed by itself.
#pragma once

#include <headrace/insight.h>

#include <cstdint>
#include <string>

namespace headrace::detail {

std::string loading_html(const Report& report);  // Empty when nothing is known of it.
std::string count_text(std::int64_t count);      // "240,000".
// "1.20 s for input", "0.30 s for room", both, or nothing.
std::string waits_text(const Report::Stage& stage);
// "kept", "rolled back" or "not measured".
const char* outcome_text(const Report::Decision& decision);

}  // namespace headrace::detail
