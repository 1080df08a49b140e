#include "media/codec/decode.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "core/base/fail.h"
#include "media/codec/baseline_reader.h"
#include "media/codec/detail/png_reader.h"
#include "media/codec/jpeg_reader.h"

namespace headrace::codec {
namespace {

struct Magic {
  std::size_t at;
  std::string_view bytes;
  const char* format;
};
constexpr Magic kOtherFormats[] = {
    {0, "GIF8", "GIF"},
    {8, "WEBP", "WebP"},
    {0, "BM", "BMP"},
    {0, std::string_view("II*\0", 4), "TIFF"},
    {0, std::string_view("MM\0*", 4), "TIFF"},
    {4, "ftyp", "HEIF or AVIF"},
    {0, std::string_view("\0\0\0\x0CjP  ", 8), "JPEG 2000"},
    {0, "\xFF\x0A", "JPEG XL"},
};

// The first bytes as text where they can be printed, else as numbers.
std::string beginning(std::string_view bytes) {
  bytes = bytes.substr(0, 16);
  const bool printable =
      std::all_of(bytes.begin(), bytes.end(), [](char c) { return (c >= ' ' && c <= '~') || c == '\n' || c == '\r'; });
  std::string text;
  for (const char c : bytes) {
    if (!printable) {
      text += fmt::format("{}{:02x}", text.empty() ? "" : " ", static_cast<unsigned char>(c));
    } else {
      text += c < ' ' ? ' ' : c;
    }
  }
  return printable ? "\"" + text + "\"" : text;
}

[[noreturn]] void refuse(std::span<const std::uint8_t> bytes) {
  if (bytes.empty()) fail(ErrorCode::corrupt_data, "codec: a file of 0 bytes; wanted a JPEG or PNG");
  const std::string_view text{reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  for (const Magic& magic : kOtherFormats) {
    if (text.size() < magic.at || text.substr(magic.at, magic.bytes.size()) != magic.bytes) continue;
    fail(ErrorCode::unsupported, "codec: a {} file; wanted a JPEG or PNG", magic.format);
  }
  fail(ErrorCode::corrupt_data, "codec: not a JPEG or PNG: {} bytes that begin with {}", bytes.size(), beginning(text));
}

}  // namespace

struct Decoder::Impl {
  enum class Format { baseline_jpeg, jpeg, png };

  detail::BaselineReader baseline;
  detail::JpegReader jpeg;
  detail::PngReader png;
  Format format = Format::png;
  std::span<const std::uint8_t> bytes;
  std::int64_t pixels_max = 0;
  int divisor = 1;
  std::int64_t refused_indices = 0;
  ImageInfo info;  // 0 x 0: no image is open.

  ImageInfo open(int channels) {
    if (!detail::JpegReader::recognises(bytes)) {
      format = Format::png;
      return png.open(bytes, channels, pixels_max);
    }
    const auto found = baseline.open(bytes, channels);
    if (found && std::int64_t{found->height} * found->width <= pixels_max) {
      format = Format::baseline_jpeg;
      return *found;
    }
    format = Format::jpeg;
    return jpeg.open(bytes, channels, pixels_max);
  }

  void check(const Box& box, std::span<const std::uint8_t> out) const {
    HEADRACE_CHECK(info.height > 0, "codec: decode() without an open image");
    HEADRACE_CHECK(box.y >= 0 && box.x >= 0 && box.height >= 1 && box.width >= 1 && box.height <= info.height - box.y &&
                       box.width <= info.width - box.x,
                   "codec: {} x {} pixels at {}, {} of an image of {} x {}", box.height, box.width, box.y, box.x,
                   info.height, info.width);
    const auto size = static_cast<std::size_t>(box.height) * static_cast<std::size_t>(box.width) *
                      static_cast<std::size_t>(info.channels);
    HEADRACE_CHECK(out.size() == size, "codec: {} bytes for {} x {} pixels of {} channels", out.size(), box.height,
                   box.width, info.channels);
  }

  void decode(const Box& box, std::span<std::uint8_t> out) {
    switch (format) {
      case Format::baseline_jpeg:
        if (baseline.decode(box, out)) return;
        jpeg.open(bytes, info.channels, pixels_max);
        jpeg.shrink(divisor);
        return jpeg.decode(box, out);
      case Format::jpeg:
        return jpeg.decode(box, out);
      case Format::png:
        return png.decode(box, out);
    }
  }
};

Decoder::Decoder() : impl_(std::make_unique<Impl>()) {}
Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

ImageInfo Decoder::open(std::span<const std::uint8_t> bytes, int channels, std::int64_t pixels_max) {
  if (channels != 1 && channels != 3) {
    fail(ErrorCode::invalid_argument, "codec: images decoded to {} channels; wanted 1 or 3", channels);
  }
  impl_->info = {};
  if (!detail::JpegReader::recognises(bytes) && !detail::PngReader::recognises(bytes)) refuse(bytes);
  impl_->bytes = bytes;
  impl_->pixels_max = pixels_max;
  impl_->divisor = 1;
  impl_->info = impl_->open(channels);
  return impl_->info;
}

bool Decoder::can_shrink() const noexcept {
  return impl_->info.height > 0 && impl_->format != Impl::Format::png;
}

ImageInfo Decoder::shrink(int divisor) {
  HEADRACE_CHECK(can_shrink() && (divisor == 1 || divisor == 2 || divisor == 4 || divisor == 8),
                 "codec: an image shrunk by {}", divisor);
  Impl& self = *impl_;
  self.divisor = divisor;
  self.info = self.format == Impl::Format::baseline_jpeg ? self.baseline.shrink(divisor) : self.jpeg.shrink(divisor);
  return self.info;
}

void Decoder::decode(const Box& box, std::span<std::uint8_t> out) {
  impl_->check(box, out);
  impl_->decode(box, out);
}

void Decoder::decode(const Box& box, std::span<std::uint8_t> out, const EntropyIndex& index) {
  Impl& self = *impl_;
  self.check(box, out);
  if (self.format == Impl::Format::baseline_jpeg && self.baseline.fits(index) &&
      self.baseline.decode(box, out, &index)) {
    return;
  }
  ++self.refused_indices;
  self.decode(box, out);
}

std::int64_t Decoder::refused_indices() const noexcept {
  return impl_->refused_indices;
}

}  // namespace headrace::codec
