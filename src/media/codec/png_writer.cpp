#include "media/codec/png_writer.h"

#include <png.h>

#include <cstddef>

#include "core/base/fail.h"

namespace headrace::codec {

std::vector<std::uint8_t> png_of(std::span<const std::uint8_t> pixels, int height, int width, int channels) {
  if (channels != 1 && channels != 3) {
    fail(ErrorCode::unsupported, "codec: {} channels do not go into a PNG file; 1 or 3 do", channels);
  }
  HEADRACE_CHECK(height >= 1 && width >= 1 &&
                     pixels.size() == static_cast<std::size_t>(height) * static_cast<std::size_t>(width) *
                                          static_cast<std::size_t>(channels),
                 "codec: {} bytes of pixels as {} x {} x {}", pixels.size(), height, width, channels);
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.height = static_cast<png_uint_32>(height);
  image.width = static_cast<png_uint_32>(width);
  image.format = channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  image.flags = PNG_IMAGE_FLAG_COLORSPACE_NOT_sRGB | PNG_IMAGE_FLAG_FAST;  // The values are all that is known.
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::vector<std::uint8_t> file(size);
  const int written = png_image_write_to_memory(&image, file.data(), &size, 0, pixels.data(), 0, nullptr);
  if (written == 0) {
    const ErrorCode code = ErrorCode::out_of_memory;  // Nothing else can fail: the file has room for any image.
    fail(code, "codec: {} x {} pixels as a PNG file: {}", height, width, image.message);
  }
  file.resize(size);
  return file;
}

}  // namespace headrace::codec
