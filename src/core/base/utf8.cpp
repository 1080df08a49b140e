#include "core/base/utf8.h"

#include <cstdint>
#include <cstring>

namespace headrace {
namespace {

// Bytes of the UTF-8 character that `text` begins with, or 0: not UTF-8 (Unicode 15, table 3-7) or NUL.
std::size_t character_length(std::string_view text) {
  const auto byte = [text](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : static_cast<unsigned char>(0);
  };
  const auto follows = [&byte](std::size_t i) { return byte(i) >= 0x80 && byte(i) <= 0xBF; };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80) return first == 0 ? 0 : 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const unsigned low = first == 0xE0 ? 0xA0 : 0x80, high = first == 0xED ? 0x9F : 0xBF;
    return second >= low && second <= high && follows(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const unsigned low = first == 0xF0 ? 0x90 : 0x80, high = first == 0xF4 ? 0x8F : 0xBF;
    return second >= low && second <= high && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::size_t utf8_text_length(std::string_view bytes) noexcept {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const std::size_t length = character_length(bytes.substr(done));
    if (length == 0) break;
    done += length;
  }
  return done;
}

std::size_t utf8_length(std::string_view bytes) noexcept {
  std::size_t done = 0;
  while (done < bytes.size()) {
    std::uint64_t eight = 0;
    while (bytes.size() - done >= sizeof eight) {  // Most texts are ASCII: eight characters at once.
      std::memcpy(&eight, bytes.data() + done, sizeof eight);
      if ((eight & 0x8080'8080'8080'8080) != 0) break;
      done += sizeof eight;
    }
    if (done == bytes.size()) break;
    const std::size_t length = bytes[done] == '\0' ? 1 : character_length(bytes.substr(done));
    if (length == 0) break;
    done += length;
  }
  return done;
}

}  // namespace headrace
