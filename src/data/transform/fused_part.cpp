#include "data/transform/fused_part.h"

#include <cstdint>
#include <string>

#include "core/base/fail.h"

namespace headrace::transform {
namespace {

// As of an image that is read: a padded crop of images as they are stored is of their size, which options do not bound.
constexpr std::int64_t kSideMax = 65'535;
constexpr std::int64_t kPaddingMax = 4096;

int side(const char* operation, const char* key, std::int64_t value, std::int64_t most = kSideMax) {
  if (value < 1 || value > most) {
    fail(ErrorCode::invalid_argument, "transform: {}: {} is {}; wanted 1 to {}", operation, key, value, most);
  }
  return static_cast<int>(value);
}

struct Extent {
  int height = 0, width = 0;
};

Extent extent_of(const char* operation, const std::vector<std::int64_t>& size, std::int64_t most = kSideMax) {
  if (size.size() != 1 && size.size() != 2) {
    fail(ErrorCode::invalid_argument,
         "transform: {}: size has {} values; wanted 1, the height and width of a square, or both", operation,
         size.size());
  }
  return {side(operation, "size", size.front(), most), side(operation, "size", size.back(), most)};
}

PadStage padding_of(const char* operation, const std::vector<std::int64_t>& padding) {
  for (const std::int64_t pixels : padding) {
    if (pixels < 0 || pixels > kPaddingMax) {
      fail(ErrorCode::invalid_argument, "transform: {}: padding of {} pixels; wanted 0 to {}", operation, pixels,
           kPaddingMax);
    }
  }
  const auto at = [&](std::size_t i) { return static_cast<int>(padding[i]); };
  switch (padding.size()) {
    case 0:
      return {};
    case 1:
      return {at(0), at(0), at(0), at(0)};
    case 2:
      return {at(0), at(1), at(0), at(1)};
    case 4:
      return {at(0), at(1), at(2), at(3)};
    default:
      fail(ErrorCode::invalid_argument,
           "transform: {}: padding has {} values; wanted 1, 2 (left and right, top and bottom) or 4 (left, top, right, "
           "bottom)",
           operation, padding.size());
  }
}

void check_filter(const char* operation, const std::string& interpolation, bool antialias) {
  if (interpolation != "bilinear") {
    fail(ErrorCode::invalid_argument, "transform: {}: interpolation \"{}\"; there is \"bilinear\" alone", operation,
         interpolation);
  }
  if (!antialias) {
    fail(ErrorCode::invalid_argument, "transform: {}: antialias = false; images are resized with antialiasing alone",
         operation);
  }
}

void check_border(const char* operation, const std::string& mode, double fill) {
  if (mode != "constant") {
    fail(ErrorCode::invalid_argument, "transform: {}: padding_mode \"{}\"; there is \"constant\" alone", operation,
         mode);
  }
  if (fill != 0) {
    fail(ErrorCode::invalid_argument, "transform: {}: fill is {}; pixels beside the image are 0", operation, fill);
  }
}

struct Bounds {
  double least, greatest;
};

std::array<double, 2> range_of(const char* operation, const char* key, const std::vector<double>& range,
                               Bounds bounds) {
  if (range.size() != 2) {
    fail(ErrorCode::invalid_argument, "transform: {}: {} has {} values; wanted 2, the least and the greatest",
         operation, key, range.size());
  }
  if (!(range[0] >= bounds.least && range[0] <= range[1] && range[1] <= bounds.greatest)) {
    fail(ErrorCode::invalid_argument, "transform: {}: {} goes from {} to {}; wanted the least first, within {} to {}",
         operation, key, range[0], range[1], bounds.least, bounds.greatest);
  }
  return {range[0], range[1]};
}

}  // namespace

ResizePart part_of(const transforms::Resize& resize) {
  constexpr const char* kName = "Resize";
  check_filter(kName, resize.interpolation, resize.antialias);
  const Extent extent = extent_of(kName, resize.size, transforms::kResizedSize.high);
  if (resize.size.size() == 2) {
    if (resize.max_size != 0) {
      fail(ErrorCode::invalid_argument,
           "transform: Resize: max_size beside height and width; wanted one value of size");
    }
    return ResizePart{.height = extent.height, .width = extent.width};
  }
  ResizePart by_shorter{.shorter = extent.height};
  if (resize.max_size == 0) return by_shorter;
  by_shorter.longer_max = side(kName, "max_size", resize.max_size);
  if (by_shorter.longer_max <= by_shorter.shorter) {
    fail(ErrorCode::invalid_argument, "transform: Resize: max_size is {}, size is {}; wanted more than size",
         by_shorter.longer_max, by_shorter.shorter);
  }
  return by_shorter;
}

CenterCropPart part_of(const transforms::CenterCrop& crop) {
  const Extent extent = extent_of("CenterCrop", crop.size);
  return CenterCropPart{extent.height, extent.width};
}

RandomCropPart part_of(const transforms::RandomCrop& crop) {
  constexpr const char* kName = "RandomCrop";
  check_border(kName, crop.padding_mode, crop.fill);
  const Extent extent = extent_of(kName, crop.size);
  return RandomCropPart{extent.height, extent.width, padding_of(kName, crop.padding), crop.pad_if_needed};
}

RandomResizedCropPart part_of(const transforms::RandomResizedCrop& crop) {
  constexpr const char* kName = "RandomResizedCrop";
  check_filter(kName, crop.interpolation, crop.antialias);
  const Extent extent = extent_of(kName, crop.size, transforms::kCropSize.high);
  return RandomResizedCropPart{extent.height, extent.width, range_of(kName, "scale", crop.scale, {1e-6, 1.0}),
                               range_of(kName, "ratio", crop.ratio, {0.01, 100.0})};
}

PadPart part_of(const transforms::Pad& pad) {
  check_border("Pad", pad.padding_mode, pad.fill);
  if (pad.padding.empty()) fail(ErrorCode::invalid_argument, "transform: Pad: no padding; wanted 1, 2 or 4 values");
  return PadPart{padding_of("Pad", pad.padding)};
}

FlipPart part_of(const transforms::RandomHorizontalFlip& flip) {
  if (!(flip.p >= 0 && flip.p <= 1)) {
    fail(ErrorCode::invalid_argument, "transform: RandomHorizontalFlip: p is {}; wanted 0 to 1", flip.p);
  }
  return FlipPart{flip.p};
}

ToDtypePart part_of(const transforms::ToDtype& to) {
  for (const auto& choice : choices(PixelType{})) {
    if (choice.name != to.dtype) continue;
    if (!to.scale && choice.value != PixelType::u8) {
      fail(ErrorCode::invalid_argument, "transform: ToDtype: scale = false; pixels become 0 to 1 alone");
    }
    return ToDtypePart{choice.value};
  }
  fail(ErrorCode::invalid_argument, "transform: ToDtype: dtype \"{}\"; wanted \"float32\", \"bfloat16\" or \"uint8\"",
       to.dtype);
}

NormalizePart part_of(const transforms::Normalize& normalize) {
  return NormalizePart{normalize.mean, normalize.std};
}

}  // namespace headrace::transform
