// Which rectangle of an image becomes the network's input, and how it is resized to it.
#pragma once

#include <headrace/operation.h>

#include <cstdint>

#include "core/base/random.h"
#include "data/transform/fused_part.h"
#include "data/transform/fused_stage.h"
#include "data/transform/resize.h"

namespace headrace::transform {

struct CropWindow {
  ResizeAxis vertical;
  ResizeAxis horizontal;
};

// The whole of an axis of `length` pixels when the image's shorter side becomes `side`, as torchvision's Resize has
// it.
ResizeAxis resized_axis(int length, int shorter, std::int64_t side) noexcept;

// The size that a Resize gives an image of `in`, as torchvision has them.
Geometry resized_size(const ResizePart& resize, Geometry in) noexcept;

// What of an image of height x width becomes the crop's. CropKind::whole and center draw nothing.
//
// Arithmetic and roundings are torchvision's: Resize(shorter) and CenterCrop(size) or RandomCrop(size), or
// RandomResizedCrop(size, scale, ratio), whose rectangle is the largest that keeps `ratio` after ten draws that do not
// fit. The crop is not CropKind::none, and as Fusing makes it; height and width are at least 1.
CropWindow choose_crop(const CropStage& crop, int height, int width, SampleRandom& random) noexcept;
// The same of what the crop's operation has drawn: of random the place, y and x; of random_resized the rectangle.
CropWindow crop_drawn(const CropStage& crop, int height, int width, const Drawn& drawn) noexcept;

CropStage crop_of(const RandomResizedCropPart& part) noexcept;
// Where `size` of `length` pixels begin that lie in the middle, as torchvision rounds it.
int center_place(int length, int size) noexcept;

// Resizes what the window takes of an image of uint8. A target that is part of a larger image is reached by way of a
// copy.
void resize_into(const CropWindow& window, const OperationInput& in, const ImageTarget& out);

// How many times smaller (1, 2, 4 or 8) an image may be decoded that the window's part of it is still at least twice
// as large, along both axes, as what becomes of it.
int divisor_for(const CropWindow& window) noexcept;

}  // namespace headrace::transform
