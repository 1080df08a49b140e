// Which rectangle of an image becomes the network's input, and how it is resized to it.
#pragma once

#include <headrace/options/transform.h>

#include <cstdint>

#include "core/base/random.h"
#include "data/transform/resize.h"

namespace headrace::transform {

struct CropWindow {
  ResizeAxis vertical;
  ResizeAxis horizontal;
};

// The whole of an axis of `length` pixels when the image's shorter side becomes `side`, as torchvision's Resize has
// it.
ResizeAxis resized_axis(int length, int shorter, std::int64_t side) noexcept;

// What of an image of height x width becomes the options' size x size. `augment`: options.crop with draws from
// `random`; else the shorter side is resized and the center taken, and nothing is drawn.
//
// Arithmetic and roundings are torchvision's: Resize(resize) and CenterCrop(size) or RandomCrop(size), or
// RandomResizedCrop(size, scale, ratio), whose rectangle is the largest that keeps `ratio` after ten draws that do not
// fit. The options have a size and no transform_contradiction(); height and width are at least 1.
CropWindow choose_crop(const TransformOptions& options, int height, int width, bool augment,
                       SampleRandom& random) noexcept;

// How many times smaller (1, 2, 4 or 8) an image may be decoded that the window's part of it is still at least twice
// as large, along both sides, as what becomes of it.
int divisor_for(const CropWindow& window) noexcept;

}  // namespace headrace::transform
