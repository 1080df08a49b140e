// Whole numbers of the command's flags, read without the locale, which CLI11's own conversion follows.
#pragma once

#include <cstdint>
#include <string>

namespace headrace {

// Error{invalid_argument}: "FLAG must be LOW to HIGH, found "TEXT"".
std::int64_t number_in(const std::string& flag, const std::string& text, std::int64_t low, std::int64_t high);

}  // namespace headrace
