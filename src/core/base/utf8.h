// Which bytes are text.
#pragma once

#include <cstddef>
#include <string_view>

namespace headrace {

// Bytes at the front of `bytes` that are UTF-8 without NUL: bytes.size() when all are.
std::size_t utf8_text_length(std::string_view bytes) noexcept;

// The same where NUL is a character like any other: of bytes that come with their size.
std::size_t utf8_length(std::string_view bytes) noexcept;

}  // namespace headrace
