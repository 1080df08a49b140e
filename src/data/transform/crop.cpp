#include "data/transform/crop.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/fail.h"

namespace headrace::transform {
namespace {

struct Rectangle {
  int y, x, height, width;
};

// Python's round(): halves go to the even neighbour.
int rounded(double value) noexcept {
  return static_cast<int>(std::nearbyint(value));
}

// A place for `part` pixels within `whole`.
int random_place(int whole, int part, SampleRandom& random) noexcept {
  return static_cast<int>(random.below(static_cast<std::uint32_t>(whole - part) + 1));
}

double between(double low, double high, SampleRandom& random) noexcept {
  return low + random.uniform() * (high - low);
}

// One try of RandomResizedCrop: an area and a ratio, the latter uniform on a logarithmic scale.
std::optional<Rectangle> draw_rectangle(const CropStage& crop, int height, int width, SampleRandom& random) noexcept {
  const double area = static_cast<double>(height) * width * between(crop.scale[0], crop.scale[1], random);
  const double ratio = std::exp(between(std::log(crop.ratio[0]), std::log(crop.ratio[1]), random));
  const double drawn_width = std::nearbyint(std::sqrt(area * ratio));
  const double drawn_height = std::nearbyint(std::sqrt(area / ratio));
  if (drawn_width < 1 || drawn_width > width || drawn_height < 1 || drawn_height > height) return std::nullopt;
  const int rows = static_cast<int>(drawn_height), columns = static_cast<int>(drawn_width);
  const int y = random_place(height, rows, random);
  return Rectangle{y, random_place(width, columns, random), rows, columns};
}

// What RandomResizedCrop takes when no try fits: the center, cut to the nearest ratio allowed. Never without a pixel.
Rectangle fallback_rectangle(const CropStage& crop, int height, int width) noexcept {
  const double ratio = static_cast<double>(width) / height;
  int rows = height, columns = width;
  if (ratio < crop.ratio[0]) {
    rows = std::clamp(rounded(width / crop.ratio[0]), 1, height);
  } else if (ratio > crop.ratio[1]) {
    columns = std::clamp(rounded(height * crop.ratio[1]), 1, width);
  }
  return {(height - rows) / 2, (width - columns) / 2, rows, columns};
}

Rectangle random_rectangle(const CropStage& crop, int height, int width, SampleRandom& random) noexcept {
  constexpr int kTries = 10;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    if (const auto drawn = draw_rectangle(crop, height, width, random)) return *drawn;
  }
  return fallback_rectangle(crop, height, width);
}

CropWindow window_of(const CropStage& crop, const Rectangle& part) noexcept {
  return {{part.y, part.height, crop.height, 0, crop.height}, {part.x, part.width, crop.width, 0, crop.width}};
}

// All of the resized image.
CropWindow whole_of(const CropStage& crop, int height, int width) noexcept {
  if (crop.shorter == 0) {
    return {{0, height, crop.resized_height, 0, crop.resized_height},
            {0, width, crop.resized_width, 0, crop.resized_width}};
  }
  const int shorter = std::min(height, width);
  return {resized_axis(height, shorter, crop.shorter), resized_axis(width, shorter, crop.shorter)};
}

}  // namespace

ResizeAxis resized_axis(int length, int shorter, std::int64_t side) noexcept {
  const std::int64_t resized = length == shorter ? side : side * length / shorter;
  HEADRACE_CHECK(resized <= std::numeric_limits<int>::max(), "transform: {} of {} pixels resized to {}", length,
                 shorter, resized);
  const int whole = static_cast<int>(resized);
  return {.begin = 0, .size = length, .resized = whole, .out_begin = 0, .out_size = whole};
}

Geometry resized_size(const ResizePart& resize, Geometry in) noexcept {
  if (resize.shorter == 0) return {resize.height, resize.width, in.channels};
  const int shorter = std::min(in.height, in.width);
  const std::int64_t longer = std::int64_t{resize.shorter} * std::max(in.height, in.width) / shorter;
  if (resize.longer_max > 0 && longer > resize.longer_max) {
    const auto side = std::max(static_cast<int>(std::int64_t{resize.longer_max} * resize.shorter / longer), 1);
    return in.height <= in.width ? Geometry{side, resize.longer_max, in.channels}
                                 : Geometry{resize.longer_max, side, in.channels};
  }
  return {resized_axis(in.height, shorter, resize.shorter).resized,
          resized_axis(in.width, shorter, resize.shorter).resized, in.channels};
}

CropWindow choose_crop(const CropStage& crop, int height, int width, SampleRandom& random) noexcept {
  HEADRACE_CHECK(height >= 1 && width >= 1, "transform: an image of {} x {}", height, width);
  HEADRACE_CHECK(crop.kind != CropKind::none, "transform: no crop of an image of {} x {}", height, width);
  if (crop.kind == CropKind::random_resized) return window_of(crop, random_rectangle(crop, height, width, random));

  CropWindow window = whole_of(crop, height, width);
  if (crop.kind == CropKind::whole) return window;
  for (const auto& [axis, size] :
       {std::pair{&window.vertical, crop.height}, std::pair{&window.horizontal, crop.width}}) {
    axis->out_size = size;
    axis->out_begin =
        crop.kind == CropKind::random ? random_place(axis->resized, size, random) : center_place(axis->resized, size);
  }
  return window;
}

CropWindow crop_drawn(const CropStage& crop, int height, int width, const Drawn& drawn) noexcept {
  if (crop.kind == CropKind::random_resized) {
    return window_of(crop, {drawn.number(0), drawn.number(1), drawn.number(2), drawn.number(3)});
  }
  CropWindow window = whole_of(crop, height, width);
  if (crop.kind == CropKind::whole) return window;
  const bool is_random = crop.kind == CropKind::random;
  ResizeAxis &rows = window.vertical, &columns = window.horizontal;
  rows.out_size = crop.height, columns.out_size = crop.width;
  rows.out_begin = is_random ? drawn.number(0) : center_place(rows.resized, crop.height);
  columns.out_begin = is_random ? drawn.number(1) : center_place(columns.resized, crop.width);
  return window;
}

CropStage crop_of(const RandomResizedCropPart& part) noexcept {
  return {.kind = CropKind::random_resized,
          .height = part.height,
          .width = part.width,
          .scale = part.scale,
          .ratio = part.ratio};
}

int center_place(int length, int size) noexcept {
  return rounded((length - size) / 2.0);
}

void resize_into(const CropWindow& window, const OperationInput& in, const ImageTarget& out) {
  std::optional<Resizer> own;
  Resizer& resizer = in.resizer != nullptr ? *in.resizer : own.emplace();
  const Stretch rows = needed(window.vertical), columns = needed(window.horizontal);
  const auto row_bytes = static_cast<std::size_t>(in.image.row_bytes);
  const std::size_t last_row = static_cast<std::size_t>(columns.size) * in.image.image.pixel_bytes();
  const std::span values{reinterpret_cast<const std::uint8_t*>(in.image.at(rows.begin, columns.begin)),
                         static_cast<std::size_t>(rows.size - 1) * row_bytes + last_row};
  const int channels = out.image.size.channels;
  const PixelRows pixels{values, in.image.row_bytes};
  const std::size_t row = static_cast<std::size_t>(out.image.size.width) * out.image.pixel_bytes();
  if (static_cast<std::size_t>(out.row_bytes) == row) {
    const std::span to{reinterpret_cast<std::uint8_t*>(out.data), out.image.bytes()};
    return resizer.resize(pixels, window.vertical, window.horizontal, channels, to);
  }
  std::vector<std::uint8_t> resized(out.image.bytes());
  resizer.resize(pixels, window.vertical, window.horizontal, channels, resized);
  for (int y = 0; y < out.image.size.height; ++y) {
    std::memcpy(out.at(y, 0), resized.data() + static_cast<std::size_t>(y) * row, row);
  }
}

int divisor_for(const CropWindow& window) noexcept {
  const auto fits = [](const ResizeAxis& axis, std::int64_t divisor) {
    return axis.size >= 2 * divisor * axis.resized;
  };
  int divisor = 8;
  while (divisor > 1 && !(fits(window.vertical, divisor) && fits(window.horizontal, divisor))) divisor /= 2;
  return divisor;
}

}  // namespace headrace::transform
