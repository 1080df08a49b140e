#include "data/store/file_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "core/base/utf8.h"

namespace headrace {
namespace {

// The code points of `name`, in order: take(code point, its bytes).
template <class Take>
void each_code_point(std::string_view name, const Take& take) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(name[i]); };
  std::size_t at = 0;
  while (at < name.size()) {
    const std::size_t text_end = at + utf8_text_length(name.substr(at));
    while (at < text_end) {
      const unsigned first = byte(at);
      const std::size_t length = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
      char32_t value = length == 1 ? first : first & (0x7FU >> length);
      for (std::size_t i = 1; i < length; ++i) value = value << 6 | (byte(at + i) & 0x3FU);
      take(value, name.substr(at, length));
      at += length;
    }
    if (at == name.size()) return;
    take(char32_t{0xDC00} + byte(at), name.substr(at, 1));
    ++at;
  }
}

std::u32string decode(std::string_view name) {
  std::u32string all;
  each_code_point(name, [&](char32_t value, std::string_view) { all += value; });
  return all;
}

bool is_control(char32_t value) {
  return value < 0x20 || (value >= 0x7F && value < 0xA0) || value == 0x2028 || value == 0x2029;
}

}  // namespace

std::string printable_name(std::string_view name) {
  std::string text;
  each_code_point(name, [&](char32_t value, std::string_view bytes) {
    const bool is_text = !is_control(value) && (value < 0xDC00 || value > 0xDCFF);
    if (is_text) {
      text += bytes;
      return;
    }
    for (const char byte : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  });
  return text;
}

bool python_less(std::string_view left, std::string_view right) {
  const auto [at_left, at_right] = std::mismatch(left.begin(), left.end(), right.begin(), right.end());
  const auto is_ascii = [](std::string_view text, auto at) { return at == text.end() || (*at & 0x80) == 0; };
  if (is_ascii(left, at_left) && is_ascii(right, at_right)) {  // What is alike before them decodes alike.
    if (at_right == right.end()) return false;
    return at_left == left.end() || *at_left < *at_right;
  }
  return decode(left) < decode(right);
}

}  // namespace headrace
