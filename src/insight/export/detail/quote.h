// Texts as CSV and JSON hold them.
#pragma once

#include <string>

namespace headrace::detail {

// In quotation marks where RFC 4180 wants them: a comma, a quotation mark or a line end within.
std::string csv_field(const std::string& text);

// With its quotation marks; bytes that are not UTF-8 become U+FFFD.
std::string json_string(const std::string& text);

// A number as JSON has it; null for what is not finite.
std::string json_number(double value);

}  // namespace headrace::detail
