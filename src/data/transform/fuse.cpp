#include "data/transform/fuse.h"

#include <algorithm>
#include <memory>

#include "data/transform/crop.h"

namespace headrace::transform {

bool Fusing::take(const FusedPart& part) {
  return std::visit([this](const auto& parameters) { return add(parameters); }, part);
}

bool Fusing::add(const ResizePart& resize) {
  if (done_ != Done::nothing) return false;
  CropStage& crop = stage_.crop;
  if (resize.shorter == 0) {
    crop.resized_height = resize.height, crop.resized_width = resize.width;
  } else if (out_.is_fixed()) {
    const Geometry resized = resized_size(resize, out_);
    crop.resized_height = resized.height, crop.resized_width = resized.width;
  } else if (resize.longer_max == 0) {
    crop.shorter = resize.shorter;
  } else {
    return false;
  }
  crop.kind = CropKind::whole;
  crop.height = out_.height = crop.resized_height;
  crop.width = out_.width = crop.resized_width;
  done_ = Done::resize;
  return true;
}

bool Fusing::add_crop(CropKind kind, int height, int width) {
  CropStage& crop = stage_.crop;
  const bool fits = crop.shorter > 0 ? crop.shorter >= std::max(height, width)
                                     : crop.resized_height >= height && crop.resized_width >= width;
  if (done_ != Done::resize || !fits) return false;
  crop.kind = kind;
  crop.height = out_.height = height;
  crop.width = out_.width = width;
  done_ = Done::crop;
  return true;
}

bool Fusing::add(const RandomCropPart& crop) {
  if (!crop.pad.is_any()) return add_crop(CropKind::random, crop.height, crop.width);
  if (done_ >= Done::pad || out_.height != crop.height || out_.width != crop.width) return false;
  stage_.pad = crop.pad;
  done_ = Done::pad;
  return true;
}

bool Fusing::add(const RandomResizedCropPart& crop) {
  if (done_ != Done::nothing) return false;
  stage_.crop = crop_of(crop);
  out_.height = crop.height, out_.width = crop.width;
  done_ = Done::crop;
  return true;
}

bool Fusing::add(const FlipPart& flip) {
  if (done_ >= Done::flip || !out_.is_fixed()) return false;
  stage_.flip_probability = flip.probability;
  done_ = Done::flip;
  return true;
}

bool Fusing::add(const ToDtypePart& to) {
  if (done_ >= Done::dtype || !out_.is_fixed()) return false;
  stage_.form.type = to.dtype;
  done_ = Done::dtype;
  return true;
}

bool Fusing::add(const NormalizePart& normalize) {
  if (done_ != Done::dtype || stage_.form.type == PixelType::u8) return false;
  normalize_ = normalize;
  done_ = Done::normalize;
  return true;
}

FusedStage Fusing::stage(PixelLayout layout) const {
  FusedStage stage = stage_;
  stage.out = out_;
  stage.form.layout = layout;
  if (stage.form.type == PixelType::u8) return stage;
  const auto all_are = [](const std::vector<double>& given, double neutral) {
    return std::all_of(given.begin(), given.end(), [neutral](double value) { return value == neutral; });
  };
  stage.normalises = !(all_are(normalize_.mean, 0) && all_are(normalize_.std, 1));
  stage.table =
      std::make_shared<const NormalizeTable>(make_normalize_table(normalize_.mean, normalize_.std, out_.channels));
  stage.form.table = stage.table.get();
  return stage;
}

}  // namespace headrace::transform
