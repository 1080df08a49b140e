#include "data/transform/normalize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "core/base/fail.h"
#include "data/transform/normalize_kernels.h"

namespace headrace::transform {
namespace {

// Images are arranged in pieces that fit the nearest cache.
constexpr std::ptrdiff_t kPieceBytes = 16 * 1024;

// Pixels of many channels to one plane behind the other.
void split(const std::uint8_t* pixels, std::ptrdiff_t count, int channels, std::uint8_t* out, std::ptrdiff_t plane) {
  if (channels == 3) return normalize_passes::kernels().split3(pixels, count, out, out + plane, out + 2 * plane);
  for (int c = 0; c < channels; ++c) {
    for (std::ptrdiff_t i = 0; i < count; ++i) out[c * plane + i] = pixels[i * channels + c];
  }
}

void copy_mirrored(const std::uint8_t* pixels, std::ptrdiff_t count, int channels, std::uint8_t* out) {
  const std::uint8_t* from = pixels + count * channels;
  std::uint8_t* const end = out + count * channels;
  for (; channels == 1 && end - out >= 8; out += 8) {
    from -= 8;
    std::uint64_t eight;
    std::memcpy(&eight, from, 8);
    eight = __builtin_bswap64(eight);
    std::memcpy(out, &eight, 8);
  }
  for (; out != end; out += channels) {
    from -= channels;
    for (int c = 0; c < channels; ++c) out[c] = from[c];
  }
}

// The columns of a row whose source lies inside the image: [begin, end), possibly empty.
struct Columns {
  std::int64_t begin;
  std::int64_t end;
};

Columns columns_inside(const NormalizeGeometry& geometry) noexcept {
  const std::int64_t width = geometry.width, offset = geometry.offset_x;
  const std::int64_t begin = std::clamp<std::int64_t>(-offset, 0, width);
  const std::int64_t end = std::clamp<std::int64_t>(width - offset, begin, width);
  // A flipped row shows its columns mirrored, the outside ones too.
  return geometry.flip ? Columns{width - end, width - begin} : Columns{begin, end};
}

// Of output row y those of the wanted columns that the image has.
void copy_row(const std::uint8_t* pixels, const NormalizeGeometry& geometry, Columns inside, std::int64_t y,
              Columns wanted, std::uint8_t* out) {
  const std::int64_t source_y = y + geometry.offset_y, channels = geometry.channels;
  const std::int64_t begin = std::clamp(inside.begin, wanted.begin, wanted.end);
  const std::int64_t end = std::clamp(inside.end, begin, wanted.end);
  if (source_y < 0 || source_y >= geometry.height || begin == end) return;
  const std::int64_t column = geometry.flip ? geometry.width - end : begin;
  const std::uint8_t* source = pixels + (source_y * geometry.width + column + geometry.offset_x) * channels;
  out += (begin - wanted.begin) * channels;
  if (geometry.flip) {
    copy_mirrored(source, end - begin, geometry.channels, out);
  } else {
    std::memcpy(out, source, static_cast<std::size_t>((end - begin) * channels));
  }
}

void write_run(const std::uint8_t* values, std::ptrdiff_t count, const PixelForm& form, int channel, std::byte* out) {
  switch (form.type) {
    case PixelType::f32:
      return normalize_passes::kernels().to_float(values, count, *form.table, channel, reinterpret_cast<float*>(out));
    case PixelType::bf16:
      return normalize_passes::kernels().to_bfloat(values, count, *form.table, channel,
                                                   reinterpret_cast<std::uint16_t*>(out));
    case PixelType::u8:
      std::memcpy(out, values, static_cast<std::size_t>(count));
  }
}

// `pixels` pixels one behind the other, which begin at the image's pixel `at`, to their place in the output.
void write_pixels(const std::uint8_t* values, std::ptrdiff_t at, std::ptrdiff_t pixels, std::ptrdiff_t plane,
                  int channels, const PixelForm& form, std::byte* out) {
  const auto size = static_cast<std::ptrdiff_t>(bytes_of(form.type));
  if (form.layout == PixelLayout::nhwc || channels == 1) {
    const int channel = channels == 1 ? 0 : normalize_passes::kEveryChannel;
    return write_run(values, pixels * channels, form, channel, out + at * channels * size);
  }
  std::uint8_t split_values[kPieceBytes];
  split(values, pixels, channels, split_values, pixels);
  for (int c = 0; c < channels; ++c) {
    write_run(split_values + c * pixels, pixels, form, c, out + (c * plane + at) * size);
  }
}

// As the kernels do it.
float quotient(float a, float b) {
  const float reciprocal = 1.0F / b, near = a * reciprocal;
  return std::fma(std::fma(-near, b, a), reciprocal, near);
}

float computed(float stored, float mean, float deviation) {
  return quotient(quotient(stored, 255.0F) - mean, deviation);
}

// bfloat16: rounded to the nearest, ties to even.
void write_number(float value, PixelType type, std::size_t at, std::span<std::byte> out) noexcept {
  if (type == PixelType::f32) {
    std::memcpy(&out[at * sizeof value], &value, sizeof value);
    return;
  }
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto rounded = static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  std::memcpy(&out[at * sizeof rounded], &rounded, sizeof rounded);
}

float of_channel(std::span<const double> values, int channel) {
  return static_cast<float>(values[values.size() == 1 ? 0 : static_cast<std::size_t>(channel)]);
}

}  // namespace

void check_normalization(std::span<const double> mean, std::span<const double> deviation, int channels) {
  if (channels < 1 || channels > 4) {
    fail(ErrorCode::invalid_argument, "transform: images of {} channels; wanted 1 to 4", channels);
  }
  const auto check_count = [channels](const char* name, std::size_t count) {
    if (count == 1 || count == static_cast<std::size_t>(channels)) return;
    fail(ErrorCode::invalid_argument, "transform: {} has {} values, the images have {} channel{}; wanted {}", name,
         count, channels, channels == 1 ? "" : "s", channels == 1 ? "1 value" : fmt::format("1 value or {}", channels));
  };
  check_count("mean", mean.size());
  check_count("std", deviation.size());
  for (int channel = 0; channel < channels; ++channel) {
    const float center = of_channel(mean, channel), scale = of_channel(deviation, channel);
    if (std::isfinite(center) && std::isfinite(scale) && scale > 0) continue;
    fail(ErrorCode::invalid_argument,
         "transform: mean {} and std {} of channel {}; wanted finite float32 and a positive std", center, scale,
         channel);
  }
}

NormalizeTable make_normalize_table(std::span<const double> mean, std::span<const double> deviation, int channels) {
  check_normalization(mean, deviation, channels);
  NormalizeTable table{};
  table.channels = channels;
  table.exact = true;
  for (int channel = 0; channel < channels; ++channel) {
    const float center = of_channel(mean, channel), scale = of_channel(deviation, channel);
    for (int stored = 0; stored < 256; ++stored) {
      const auto value = static_cast<float>(stored);
      table.value[channel][stored] = (value / 255.0F - center) / scale;
      table.exact = table.exact && computed(value, center, scale) == table.value[channel][stored];
    }
    for (int i = channel; i < channels * NormalizeTable::kRepeats; i += channels) {
      table.mean[i] = center;
      table.deviation[i] = scale;
      table.reciprocal[i] = 1.0F / scale;
    }
  }
  return table;
}

std::size_t bytes_of(PixelType type) noexcept {
  return type == PixelType::f32 ? 4 : type == PixelType::bf16 ? 2 : 1;
}

void normalize(std::span<const std::uint8_t> pixels, const NormalizeGeometry& geometry, const PixelForm& form,
               std::span<std::byte> out) noexcept {
  const std::ptrdiff_t height = geometry.height, width = geometry.width, channels = geometry.channels;
  HEADRACE_CHECK(height > 0 && width > 0 && channels >= 1 && channels <= 4, "transform: {} x {} x {}", height, width,
                 channels);
  const auto size = static_cast<std::size_t>(height * width * channels);
  HEADRACE_CHECK(pixels.size() == size && out.size() == size * bytes_of(form.type), "transform: {} pixels to {} bytes",
                 pixels.size(), out.size());
  HEADRACE_CHECK(form.type == PixelType::u8 || form.table != nullptr, "transform: numbers of pixels without a table");

  const std::ptrdiff_t plane = height * width, piece = kPieceBytes / channels;  // Pixels.
  if (geometry.offset_y == 0 && geometry.offset_x == 0 && !geometry.flip) {
    for (std::ptrdiff_t at = 0; at < plane; at += piece) {
      write_pixels(pixels.data() + at * channels, at, std::min(piece, plane - at), plane, geometry.channels, form,
                   out.data());
    }
    return;
  }
  const Columns inside = columns_inside(geometry);
  const std::ptrdiff_t columns = std::min(width, piece), rows = std::max<std::ptrdiff_t>(piece / width, 1);
  const bool padded = geometry.offset_y != 0 || geometry.offset_x != 0;
  std::uint8_t cropped[kPieceBytes];
  for (std::ptrdiff_t y = 0; y < height; y += rows) {
    const std::ptrdiff_t count = std::min(rows, height - y);
    for (std::ptrdiff_t x = 0; x < width; x += columns) {  // Wider than a piece: one row, and so one run of pixels.
      const Columns wanted{x, std::min(x + columns, width)};
      const std::ptrdiff_t run = wanted.end - wanted.begin;
      if (padded) std::memset(cropped, 0, static_cast<std::size_t>(count * run * channels));
      for (std::ptrdiff_t i = 0; i < count; ++i) {
        copy_row(pixels.data(), geometry, inside, y + i, wanted, cropped + i * run * channels);
      }
      write_pixels(cropped, y * width + x, count * run, plane, geometry.channels, form, out.data());
    }
  }
}

void write_rows(const ArrangedRows& arranged, int height, int width, int channels, const PixelForm& form,
                std::byte* out) noexcept {
  const auto size = static_cast<std::ptrdiff_t>(bytes_of(form.type));
  for (std::ptrdiff_t i = 0; i < arranged.rows; ++i) {
    const std::uint8_t* row = arranged.values + i * arranged.row_stride;
    const std::ptrdiff_t y = arranged.first_row + i;
    if (form.layout == PixelLayout::nhwc || channels == 1) {
      const int channel = channels == 1 ? 0 : normalize_passes::kEveryChannel;
      write_run(row, std::ptrdiff_t{width} * channels, form, channel, out + y * width * channels * size);
      continue;
    }
    for (std::ptrdiff_t c = 0; c < channels; ++c) {
      write_run(row + c * arranged.plane_stride, width, form, static_cast<int>(c),
                out + (c * height + y) * width * size);
    }
  }
}

void write_numbers(std::span<const float> pixels, int channels, PixelType type, PixelLayout layout,
                   std::span<std::byte> out) noexcept {
  HEADRACE_CHECK(type != PixelType::u8 && out.size() == pixels.size() * bytes_of(type),
                 "transform: {} numbers to {} bytes", pixels.size(), out.size());
  const std::size_t count = static_cast<std::size_t>(channels), plane = pixels.size() / count;
  const bool in_planes = layout == PixelLayout::nchw;
  const std::size_t next_pixel = in_planes ? 1 : count, next_channel = in_planes ? plane : 1;
  const float* value = pixels.data();
  for (std::size_t pixel = 0; pixel < plane; ++pixel) {
    for (std::size_t channel = 0; channel < count; ++channel, ++value) {
      write_number(*value, type, pixel * next_pixel + channel * next_channel, out);
    }
  }
}

}  // namespace headrace::transform
