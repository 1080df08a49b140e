#include "media/codec/image_size.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "media/codec/detail/png_reader.h"
#include "media/codec/jpeg_reader.h"

namespace headrace::codec {
namespace {

constexpr std::size_t kPngFrontBytes = 24;  // Signature, and of the first chunk its length, type, width and height.
constexpr std::size_t kFrameBytes = 7;      // Of a frame's segment: its length, precision, height and width.
constexpr std::size_t kNextBytes = 64;      // Asked for beyond a segment that ends the bytes: what follows it.

std::uint32_t number_at(std::span<const std::uint8_t> bytes, std::size_t at, int count) {
  std::uint32_t number = 0;
  for (int i = 0; i < count; ++i) number = number << 8 | bytes[at + static_cast<std::size_t>(i)];
  return number;
}

HeaderSize size_of(std::uint32_t height, std::uint32_t width) {
  constexpr std::uint32_t kMax = std::numeric_limits<int>::max();
  if (height == 0 || width == 0 || height > kMax || width > kMax) return {};
  return {static_cast<int>(height), static_cast<int>(width)};
}

HeaderSize size_of_png(std::span<const std::uint8_t> front) {
  if (front.size() < kPngFrontBytes) return {.wanted = kPngFrontBytes};
  const std::string_view type{reinterpret_cast<const char*>(front.data()) + 12, 4};
  return type == "IHDR" ? size_of(number_at(front, 20, 4), number_at(front, 16, 4)) : HeaderSize{};
}

// Without a segment: TEM, the restarts.
bool stands_alone(std::uint8_t marker) {
  return marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7);
}

// SOF0 to SOF15, among which are the markers of Huffman tables, of JPEG extensions and of arithmetic coding.
bool begins_frame(std::uint8_t marker) {
  return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

// SOI, EOI and SOS: nothing behind them says more about this image.
bool ends_header(std::uint8_t marker) {
  return marker >= 0xD8 && marker <= 0xDA;
}

// From marker to marker, past what lies between them and belongs to none, as libjpeg goes.
HeaderSize size_of_jpeg(std::span<const std::uint8_t> front) {
  std::size_t at = 2;
  for (;;) {
    while (at < front.size() && front[at] != 0xFF) ++at;
    while (at < front.size() && front[at] == 0xFF) ++at;
    if (at + 1 + kFrameBytes > front.size()) return {.wanted = at + 1 + kFrameBytes + kNextBytes};
    const std::uint8_t marker = front[at++];
    if (marker == 0 || stands_alone(marker)) continue;
    if (ends_header(marker)) return {};
    const std::uint32_t length = number_at(front, at, 2);
    if (begins_frame(marker)) return size_of(number_at(front, at + 3, 2), number_at(front, at + 5, 2));
    if (length < 2) return {};
    at += length;
  }
}

}  // namespace

HeaderSize header_size(std::span<const std::uint8_t> front) noexcept {
  if (detail::JpegReader::recognises(front)) return size_of_jpeg(front);
  if (detail::PngReader::recognises(front)) return size_of_png(front);
  constexpr std::size_t kSignatureBytes = 8;  // The longer one, PNG's.
  return {.wanted = front.size() < kSignatureBytes ? kPngFrontBytes : 0};
}

}  // namespace headrace::codec
