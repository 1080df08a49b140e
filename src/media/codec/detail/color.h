// Colours of one pixel, with Pillow's integer arithmetic.
#pragma once

#include <cstdint>

namespace headrace::codec::detail {

// ITU-R 601 luma in 16-bit fixed point.
inline std::uint8_t luma(const std::uint8_t* rgb) noexcept {
  return static_cast<std::uint8_t>((rgb[0] * 19595U + rgb[1] * 38470U + rgb[2] * 7471U + 0x8000U) >> 16);
}

// From CMYK as stored by Adobe, 255 meaning no ink: (255 - ink) * (255 - black) / 255, rounded.
inline void rgb_of_inverted_cmyk(const std::uint8_t* cmyk, std::uint8_t* rgb) noexcept {
  const unsigned white = cmyk[3];
  for (int c = 0; c < 3; ++c) {
    const unsigned product = (255U - cmyk[c]) * white + 128U;
    rgb[c] = static_cast<std::uint8_t>(white - ((product + (product >> 8)) >> 8));
  }
}

}  // namespace headrace::codec::detail
