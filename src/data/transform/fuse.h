// Which operations of a list become one pass, and what that pass then does.
#pragma once

#include "data/transform/fused_part.h"
#include "data/transform/fused_stage.h"

namespace headrace::transform {

// Takes operations over into one pass, one after the other, for as long as they come in the order in which the pass
// works: Resize and CenterCrop, Resize and RandomCrop, RandomResizedCrop or Resize; RandomCrop with padding, of the
// size there is; RandomHorizontalFlip; ToDtype; Normalize. Each may be left out.
class Fusing {
 public:
  explicit Fusing(Geometry in) : out_(in) {}

  // Whether the pass does it, too. If not, nothing changes.
  bool take(const FusedPart& part);
  // Of what has been taken: whether all images leave it with one size, as a pass wants it.
  bool has_fixed_size() const noexcept { return out_.is_fixed(); }
  const CropStage& crop() const noexcept { return stage_.crop; }
  // Error{invalid_argument}: mean or std do not fit the channels.
  FusedStage stage(PixelLayout layout) const;

 private:
  enum class Done { nothing, resize, crop, pad, flip, dtype, normalize };

  bool add(const ResizePart& resize);
  bool add(const CenterCropPart& crop) { return add_crop(CropKind::center, crop.height, crop.width); }
  bool add(const RandomCropPart& crop);
  bool add(const RandomResizedCropPart& crop);
  bool add(const PadPart&) { return false; }
  bool add(const FlipPart& flip);
  bool add(const ToDtypePart& to);
  bool add(const NormalizePart& normalize);
  bool add_crop(CropKind kind, int height, int width);

  Geometry out_;
  Done done_ = Done::nothing;
  FusedStage stage_;
  NormalizePart normalize_{{0.0}, {1.0}};
};

}  // namespace headrace::transform
