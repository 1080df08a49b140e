#include "app/cli/flag_number.h"

#include <charconv>

#include "core/base/fail.h"

namespace headrace {

std::int64_t number_in(const std::string& flag, const std::string& text, std::int64_t low, std::int64_t high) {
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || stop != text.data() + text.size() || !(value >= low && value <= high)) {
    fail(ErrorCode::invalid_argument, "{} must be {} to {}, found \"{}\"", flag, low, high, text);
  }
  return value;
}

}  // namespace headrace
