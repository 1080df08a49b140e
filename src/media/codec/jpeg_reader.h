// JPEG through libjpeg-turbo. See Decoder for what is promised.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "media/codec/decode.h"

namespace headrace::codec::detail {

struct JpegState;

class JpegReader {
 public:
  JpegReader();
  ~JpegReader();

  static bool recognises(std::span<const std::uint8_t> bytes) noexcept;
  ImageInfo open(std::span<const std::uint8_t> bytes, int channels, std::int64_t pixels_max = kPixelsMax);
  // As Decoder::shrink().
  ImageInfo shrink(int divisor);
  void decode(const Box& box, std::span<std::uint8_t> out);

 private:
  std::unique_ptr<JpegState> state_;  // Where it is: libjpeg keeps pointers into it.
};

}  // namespace headrace::codec::detail
