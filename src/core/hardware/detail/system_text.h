// Small text files of /proc, /sys and /etc, where missing and unreadable mean "not known".
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::detail {

// Above every number of a core or a NUMA node: the largest CONFIG_NR_CPUS of x86-64.
inline constexpr int kCoresMax = 8192;

// Of a process that ends between opening and reading nothing is known, and read() tells so; an iterator over the buffer
// would throw.
inline std::optional<std::string> read_system_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text;
  std::array<char, 4096> part{};
  while (file.read(part.data(), part.size()) || file.gcount() > 0) {
    text.append(part.data(), static_cast<std::size_t>(file.gcount()));
  }
  if (file.bad()) return std::nullopt;
  return text;
}

inline std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

// What stands between blanks, of which there may be several.
inline std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words = split(line, ' ');
  words.erase(std::remove(words.begin(), words.end(), std::string_view{}), words.end());
  return words;
}

// A whole decimal number with nothing behind it.
inline std::optional<std::int64_t> parse_integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The numbers that a list such as "0-3,8" names, ascending and each once. nullopt: it is no such list, or names one
// that is not below `end`.
inline std::optional<std::vector<int>> numbers_of_list(std::string_view list, int end) {
  std::vector<bool> is_named(static_cast<std::size_t>(end));
  for (const std::string_view range : split(trimmed(list), ',')) {
    const std::size_t dash = range.find('-');
    const auto first = parse_integer(range.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : parse_integer(range.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= end) return std::nullopt;
    for (std::int64_t number = *first; number <= *last; ++number) is_named[static_cast<std::size_t>(number)] = true;
  }
  std::vector<int> numbers;
  for (int number = 0; number < end; ++number) {
    if (is_named[static_cast<std::size_t>(number)]) numbers.push_back(number);
  }
  return numbers;
}

// The rest of the first line "key<separator> value".
inline std::optional<std::string> value_of(std::string_view text, std::string_view key, char separator) {
  for (const std::string_view line : split(text, '\n')) {
    const std::size_t at = line.find(separator);
    if (at != std::string_view::npos && trimmed(line.substr(0, at)) == key) {
      return std::string(trimmed(line.substr(at + 1)));
    }
  }
  return std::nullopt;
}

// Bytes of "  16315184 kB", "480M" or "32K".
inline std::optional<std::int64_t> parse_bytes(std::string_view text) {
  text = trimmed(text);
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto number = parse_integer(text.substr(0, digits));
  const std::string_view unit = trimmed(text.substr(digits));
  const int shift = unit == "kB" || unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : unit.empty() ? 0 : -1;
  if (!number || shift < 0 || *number > std::numeric_limits<std::int64_t>::max() >> shift) return std::nullopt;
  return *number << shift;
}

// Of the first line "key:   1234 kB".
inline std::optional<std::int64_t> bytes_of(std::string_view text, std::string_view key) {
  const std::optional<std::string> value = value_of(text, key, ':');
  return value ? parse_bytes(*value) : std::nullopt;
}

}  // namespace headrace::detail
