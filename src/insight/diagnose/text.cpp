#include "insight/diagnose/detail/text.h"

#include <headrace/report.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

namespace headrace::detail {
namespace {

constexpr char32_t kInvalid = 0xFFFFFFFF;
constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Character {
  char32_t code;     // kInvalid: not UTF-8.
  std::size_t size;  // Bytes; of an invalid sequence 1, so that reading goes on with the next byte.
};

// The character at `position`, by the table of well-formed sequences (Unicode 15, table 3-7).
Character character_at(std::string_view text, std::size_t position) {
  const auto byte = [&](std::size_t offset) -> std::uint32_t {
    return position + offset < text.size() ? static_cast<unsigned char>(text[position + offset]) : 0U;
  };
  const auto continues = [&](std::size_t offset) { return (byte(offset) & 0xC0U) == 0x80U; };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first >= 0xC2 && first < 0xE0 && continues(1)) return {(first & 0x1FU) << 6U | (byte(1) & 0x3FU), 2};
  if (first >= 0xE0 && first < 0xF0 && continues(1) && continues(2)) {
    const char32_t code = (first & 0x0FU) << 12U | (byte(1) & 0x3FU) << 6U | (byte(2) & 0x3FU);
    if (code >= 0x800 && (code < 0xD800 || code > 0xDFFF)) return {code, 3};
  }
  if (first >= 0xF0 && first < 0xF5 && continues(1) && continues(2) && continues(3)) {
    const char32_t code =
        (first & 0x07U) << 18U | (byte(1) & 0x3FU) << 12U | (byte(2) & 0x3FU) << 6U | (byte(3) & 0x3FU);
    if (code >= 0x10000 && code <= 0x10FFFF) return {code, 4};
  }
  return {kInvalid, 1};
}

// What must not reach a page or a terminal: C0, DEL and C1 (a terminal obeys them), and the marks that reorder text (a
// name could then show another than it is). Noncharacters and separators of lines with them.
bool is_forbidden(char32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x200E || code == 0x200F || code == 0x061C ||
         (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069) || (code & 0xFFFEU) == 0xFFFE ||
         (code >= 0xFDD0 && code <= 0xFDEF) || code == 0xFEFF;
}

bool within(char32_t code, const std::pair<char32_t, char32_t>* begin, const std::pair<char32_t, char32_t>* end) {
  for (const auto* range = begin; range != end; ++range) {
    if (code >= range->first && code <= range->second) return true;
  }
  return false;
}

int width_of(char32_t code) {
  static constexpr std::array<std::pair<char32_t, char32_t>, 7> kNone{{{0x0300, 0x036F},
                                                                       {0x0483, 0x0489},
                                                                       {0x0591, 0x05BD},
                                                                       {0x200B, 0x200D},
                                                                       {0x20D0, 0x20FF},
                                                                       {0xFE00, 0xFE0F},
                                                                       {0xFE20, 0xFE2F}}};
  static constexpr std::array<std::pair<char32_t, char32_t>, 9> kWide{{{0x1100, 0x115F},
                                                                       {0x2E80, 0x303E},
                                                                       {0x3041, 0xA4CF},
                                                                       {0xAC00, 0xD7A3},
                                                                       {0xF900, 0xFAFF},
                                                                       {0xFE30, 0xFE6F},
                                                                       {0xFF00, 0xFF60},
                                                                       {0x1F300, 0x1FAFF},
                                                                       {0x20000, 0x3FFFD}}};
  if (within(code, kNone.data(), kNone.data() + kNone.size())) return 0;
  return within(code, kWide.data(), kWide.data() + kWide.size()) ? 2 : 1;
}

// How many bytes of `text` fit into `width` columns.
std::size_t bytes_within(std::string_view text, int width) {
  int used = 0;
  std::size_t position = 0;
  while (position < text.size()) {
    const Character character = character_at(text, position);
    used += width_of(character.code);
    if (used > width) break;
    position += character.size;
  }
  return position;
}

}  // namespace

std::string clean_text(std::string_view text) {
  const std::string open = without_credentials(std::string(text));
  std::string clean;
  clean.reserve(open.size());
  for (std::size_t position = 0; position < open.size();) {
    const Character character = character_at(open, position);
    if (character.code == '\n' || character.code == '\t' || character.code == '\r') {
      clean += ' ';
    } else if (character.code == kInvalid || is_forbidden(character.code)) {
      clean += kReplacement;
    } else {
      clean.append(open, position, character.size);
    }
    position += character.size;
  }
  return clean;
}

std::string html_text(std::string_view text, int columns_max) {
  std::string escaped;
  const std::string clean = fitted(clean_text(text), columns_max);
  for (std::size_t i = 0; i < clean.size(); ++i) {
    switch (clean[i]) {
      case ' ':  // "21 %" stays on one line.
        escaped += clean.compare(i, 2, " %") == 0 ? "\u00a0" : " ";
        break;
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += clean[i];
    }
  }
  return escaped;
}

int columns(std::string_view text) {
  int sum = 0;
  for (std::size_t position = 0; position < text.size();) {
    const Character character = character_at(text, position);
    sum += width_of(character.code);
    position += character.size;
  }
  return sum;
}

std::string fitted(std::string_view text, int width) {
  if (columns(text) <= width) return std::string(text);
  return std::string(text.substr(0, bytes_within(text, width - 1))) + "…";
}

std::string padded(std::string_view text, int width) {
  std::string result = fitted(text, width);
  result.append(static_cast<std::size_t>(width - columns(result)), ' ');
  return result;
}

std::vector<std::string> wrapped(std::string_view text, int width) {
  std::vector<std::string> lines;
  std::string line;
  for (std::size_t position = 0; position < text.size();) {
    std::size_t space = std::min(text.find(' ', position), text.size());
    if (text.substr(space, 2) == " %") space = std::min(text.find(' ', space + 1), text.size());  // "21 %" stays whole.
    std::string_view word = text.substr(position, space - position);
    position = space + 1;
    if (word.empty()) continue;
    if (!line.empty() && columns(line) + 1 + columns(word) > width) lines.push_back(std::exchange(line, {}));
    while (columns(word) > width) {
      const std::size_t bytes = bytes_within(word, width);
      lines.emplace_back(word.substr(0, bytes));
      word.remove_prefix(bytes);
    }
    if (!line.empty()) line += ' ';
    line += word;
  }
  if (!line.empty()) lines.push_back(line);
  return lines;
}

}  // namespace headrace::detail
