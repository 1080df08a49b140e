// What the fused pass can take over of an operation: its parameters, checked and in the pass' terms.
#pragma once

#include <headrace/options/transforms.h>

#include <array>
#include <variant>
#include <vector>

#include "data/transform/fused_stage.h"

namespace headrace::transform {

struct ResizePart {
  int shorter = 0;            // 0: to the two that follow.
  int height = 0, width = 0;  // 0: by the shorter side.
  int longer_max = 0;         // 0: no bound.
};

struct CenterCropPart {
  int height = 0, width = 0;
};

struct RandomCropPart {
  int height = 0, width = 0;
  PadStage pad{};
  bool pads_if_needed = false;
};

struct RandomResizedCropPart {
  int height = 0, width = 0;
  std::array<double, 2> scale{}, ratio{};
};

struct PadPart {
  PadStage pad{};
};

struct FlipPart {
  double probability = 0;
};

struct ToDtypePart {
  PixelType dtype = PixelType::f32;
};

struct NormalizePart {
  std::vector<double> mean{}, std{};
};

using FusedPart = std::variant<ResizePart, CenterCropPart, RandomCropPart, RandomResizedCropPart, PadPart, FlipPart,
                               ToDtypePart, NormalizePart>;

// Of Operation::fusion().
struct Fusion {
  FusedPart part{};
};

// Error{invalid_argument} names operation and parameter: a value out of range, or one that no kernel has.
ResizePart part_of(const transforms::Resize& resize);
CenterCropPart part_of(const transforms::CenterCrop& crop);
RandomCropPart part_of(const transforms::RandomCrop& crop);
RandomResizedCropPart part_of(const transforms::RandomResizedCrop& crop);
PadPart part_of(const transforms::Pad& pad);
FlipPart part_of(const transforms::RandomHorizontalFlip& flip);
ToDtypePart part_of(const transforms::ToDtype& to);
NormalizePart part_of(const transforms::Normalize& normalize);

}  // namespace headrace::transform
