// What one pass over an image's pixels does on their way into a batch: crop, resize, pad, flip, type, normalise,
// layout.
#pragma once

#include <headrace/operation.h>
#include <headrace/options/transform.h>

#include <array>
#include <cstdint>
#include <memory>

#include "data/transform/normalize.h"

namespace headrace::transform {

enum class CropKind : std::uint8_t {
  none,            // As stored.
  whole,           // All of the resized image.
  center,          // Of the resized image,
  random,          // likewise.
  random_resized,  // A rectangle of the image as stored, resized.
};

// Which part of an image becomes height x width, and how it is resized.
struct CropStage {
  CropKind kind = CropKind::none;
  int height = 0, width = 0;                  // Of what comes out; 0 x 0: whole, and each image has a size of its own.
  int shorter = 0;                            // What the shorter side becomes before the crop; 0: not by it,
  int resized_height = 0, resized_width = 0;  // but height and width become these.
  std::array<double, 2> scale{}, ratio{};     // random_resized: from and to.
};

// Pixels added on each side, of which a random place of the image's own size is taken back.
struct PadStage {
  int left = 0, top = 0, right = 0, bottom = 0;

  bool is_any() const noexcept { return left > 0 || top > 0 || right > 0 || bottom > 0; }
};

// In this order. Compiled once, read by all threads for each sample; a copy shares the table. On cache lines of its
// own: what lies beside it may be written all the time.
struct alignas(64) FusedStage {
  CropStage crop{};
  PadStage pad{};
  double flip_probability = 0;
  PixelForm form{};  // Its table is this one's.
  std::shared_ptr<const NormalizeTable> table{};
  bool normalises = false;  // By more than the type.
  Geometry out{};

  bool draws_a_place() const noexcept { return pad.is_any() || flip_probability > 0; }
};

}  // namespace headrace::transform
