// What may be done to a sample on its way into a batch, a struct an operation. Names, parameters and meaning are those
// of torchvision.transforms.v2.
#pragma once

#include <headrace/options.h>

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace headrace {
namespace transforms {

// One number in `size`: the shorter side becomes it; two: height and width.
struct Resize {
  std::vector<std::int64_t> size{};
  std::string interpolation = "bilinear";
  std::int64_t max_size = 0;  // Of the longer side; 0: no bound.
  bool antialias = true;
};

// One number in `size`: a square; two: height and width. So in the two that follow.
struct CenterCrop {
  std::vector<std::int64_t> size{};
};

struct RandomCrop {
  std::vector<std::int64_t> size{};
  std::vector<std::int64_t> padding{};  // None; all sides; left and right, top and bottom; left, top, right, bottom.
  bool pad_if_needed = false;
  double fill = 0;
  std::string padding_mode = "constant";
};

struct RandomResizedCrop {
  std::vector<std::int64_t> size{};
  std::vector<double> scale{0.08, 1.0};                 // Share of the image's area, from and to.
  std::vector<double> ratio{0.75, 1.3333333333333333};  // Width / height, from and to.
  std::string interpolation = "bilinear";
  bool antialias = true;
};

struct Pad {
  std::vector<std::int64_t> padding{};  // As RandomCrop's, at least one number.
  double fill = 0;
  std::string padding_mode = "constant";
};

struct RandomHorizontalFlip {
  double p = 0.5;
};

struct ToDtype {
  std::string dtype = "float32";  // "float32", "bfloat16" or "uint8".
  bool scale = true;              // uint8 0 to 255 becomes 0 to 1.
};

struct Normalize {
  std::vector<double> mean{};
  std::vector<double> std{};
};

}  // namespace transforms

// One operation of a list, with its parameters; std::monostate of one that nobody named yet.
using TransformSpec = std::variant<std::monostate
#define HEADRACE_OPERATION(Name) , transforms::Name
#include <headrace/options/transforms.inc>
#undef HEADRACE_OPERATION
                                   >;

// "RandomResizedCrop"; empty for std::monostate.
std::string_view name_of(const TransformSpec& spec) noexcept;

}  // namespace headrace
