// CRC-32C (Castagnoli, RFC 3720 appendix B.4): the checksum of TensorBoard's files.
#pragma once

#include <cstdint>
#include <string_view>

namespace headrace::detail {

// By tables of eight bytes a step (Kounavis and Berry, 2005), about 1 ns a byte at most; any thread.
std::uint32_t crc32c(std::string_view bytes) noexcept;

// As TFRecord files hold it: rotated and shifted, so that the checksum of bytes with their checksum is not always
// alike.
inline std::uint32_t masked_crc32c(std::string_view bytes) noexcept {
  const std::uint32_t crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

}  // namespace headrace::detail
