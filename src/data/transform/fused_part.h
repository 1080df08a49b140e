// What the fused pass can take over of an operation: its parameters, checked and in the pass' terms.
#pragma once

#include <headrace/options/transforms.h>

#include <array>
#include <string_view>
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

// std::monostate: of an operation that always runs by itself.
using FusedPart = std::variant<std::monostate, ResizePart, CenterCropPart, RandomCropPart, RandomResizedCropPart,
                               PadPart, FlipPart, ToDtypePart, NormalizePart>;

// Error{invalid_argument} names operation and parameter: a value out of range, or one that no kernel has.
FusedPart part_of(const TransformSpec& spec);

// "RandomResizedCrop".
std::string_view operation_name(const TransformSpec& spec) noexcept;

}  // namespace headrace::transform
