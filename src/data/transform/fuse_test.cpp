#include "data/transform/fuse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/error_of.h"
#include "data/transform/shorthand.h"

namespace headrace::transform {
namespace {

constexpr Geometry kFiles{0, 0, 3}, kDigits{28, 28, 1};

bool fuses(const std::vector<TransformSpec>& operations, Geometry in) {
  Fusing fusing{in};
  for (const TransformSpec& operation : operations) {
    if (!fusing.take(make_operation(operation)->fusion()->part)) return false;
  }
  return fusing.has_fixed_size();
}

std::vector<TransformOptions> crops() {
  std::vector<TransformOptions> all(4);
  all[0].size = 224;
  all[1].size = 224, all[1].crop = Crop::random, all[1].resize = 300;
  all[2].size = 64, all[2].crop = Crop::random_resized, all[2].scale = {0.2, 0.9}, all[2].ratio = {0.5, 2};
  return all;  // The last leaves images as they are.
}

// What the options mean, one by one: batches are recorded by these meanings.
TEST(Fuse, TheShorthandBecomesOnePassOfTheSameParameters) {
  for (TransformOptions options : crops()) {
    for (const std::int64_t pad : {0, 4}) {
      for (const double flip : {0.0, 0.3}) {
        for (const bool training : {true, false}) {
          options.pad = pad, options.flip_probability = flip;
          const Geometry in = options.size > 0 ? kFiles : kDigits;
          const FusedStage stage = stage_of(options, in, training);
          const int side = options.size > 0 ? static_cast<int>(options.size) : 28;
          EXPECT_EQ(stage.out, (Geometry{side, side, in.channels}));
          EXPECT_EQ(stage.pad.left, training ? pad : 0);
          EXPECT_EQ(stage.pad.bottom, training ? pad : 0);
          EXPECT_EQ(stage.flip_probability, training ? flip : 0);
          EXPECT_EQ(stage.form.type, PixelType::f32);
          EXPECT_FALSE(stage.normalises);
          const Crop crop = training ? options.crop : Crop::center;
          const CropKind kind = crop == Crop::center   ? CropKind::center
                                : crop == Crop::random ? CropKind::random
                                                       : CropKind::random_resized;
          EXPECT_EQ(stage.crop.kind, options.size > 0 ? kind : CropKind::none);
          const bool resizes = options.size > 0 && kind != CropKind::random_resized;
          EXPECT_EQ(stage.crop.shorter, resizes ? options.resized_side() : 0);
          EXPECT_EQ(stage.crop.scale[0], kind == CropKind::random_resized && options.size > 0 ? 0.2 : 0.0);
        }
      }
    }
  }
}

TEST(Fuse, TypeAndNormalisationAreOfTheSamePass) {
  TransformOptions options;
  options.layout = PixelLayout::nhwc;
  options.mean = {0.25}, options.std = {0.5};
  for (const PixelType type : {PixelType::f32, PixelType::bf16}) {
    options.dtype = type;
    const FusedStage stage = stage_of(options, kDigits, true);
    EXPECT_EQ(stage.form.type, type);
    EXPECT_EQ(stage.form.layout, PixelLayout::nhwc);
    EXPECT_TRUE(stage.normalises);
    EXPECT_EQ(stage.form.table->value[0][255], 1.5F);
  }
  const FusedStage copy = FusedStage{stage_of(options, kDigits, true)};
  EXPECT_EQ(copy.form.table, copy.table.get());
  EXPECT_EQ(stage_of({.dtype = PixelType::u8}, kDigits, true).form.table, nullptr);
}

TEST(Fuse, TakesOperationsInItsOwnOrderAlone) {
  using namespace transforms;
  const Resize resize{.size = {256}}, square{.size = {64, 48}};
  const CenterCrop center{.size = {224}};
  const RandomResizedCrop random_resized{.size = {224}};
  const RandomHorizontalFlip flip;
  EXPECT_TRUE(
      fuses({resize, center, flip, ToDtype{.dtype = "float32", .scale = true}, Normalize{.mean = {0.5}, .std = {0.5}}},
            kFiles));
  EXPECT_TRUE(fuses({square}, kFiles));
  EXPECT_TRUE(fuses({square, RandomCrop{.size = {48}}}, kFiles));
  EXPECT_TRUE(fuses({random_resized, RandomCrop{.size = {224}, .padding = {1, 2, 3, 4}}, flip}, kFiles));
  EXPECT_TRUE(fuses({Resize{.size = {32}}, flip}, kDigits));
  EXPECT_FALSE(fuses({resize}, kFiles));  // Each image has a size of its own.
  EXPECT_FALSE(fuses({resize, flip}, kFiles));
  EXPECT_FALSE(fuses({flip, random_resized}, kDigits));
  EXPECT_FALSE(fuses({resize, CenterCrop{.size = {224, 257}}}, kFiles));  // A square image has no 257 columns.
  EXPECT_FALSE(fuses({center}, kFiles));
  EXPECT_FALSE(fuses({random_resized, RandomCrop{.size = {200}, .padding = {4}}}, kFiles));
  EXPECT_FALSE(fuses({random_resized, Pad{.padding = {4}}}, kFiles));
  EXPECT_FALSE(fuses({random_resized, Normalize{.mean = {0}, .std = {1}}}, kFiles));
  EXPECT_FALSE(fuses({flip, flip}, kDigits));
}

TEST(Fuse, AParameterThatNoKernelHasIsRefusedByName) {
  using namespace transforms;
  const auto refusal = [](const TransformSpec& operation) {
    return error_of(ErrorCode::invalid_argument, [&] { make_operation(operation); });
  };
  EXPECT_EQ(refusal(Resize{.size = {8}, .interpolation = "bicubic"}),
            "transform: Resize: interpolation \"bicubic\"; there is \"bilinear\" alone");
  EXPECT_EQ(refusal(RandomResizedCrop{.size = {8}, .antialias = false}),
            "transform: RandomResizedCrop: antialias = false; images are resized with antialiasing alone");
  EXPECT_EQ(refusal(Pad{.padding = {1}, .fill = 2}), "transform: Pad: fill is 2; pixels beside the image are 0");
  EXPECT_EQ(refusal(RandomCrop{.size = {8}, .padding_mode = "reflect"}),
            "transform: RandomCrop: padding_mode \"reflect\"; there is \"constant\" alone");
  EXPECT_EQ(
      refusal(RandomCrop{.size = {8}, .padding = {1, 2, 3}}),
      "transform: RandomCrop: padding has 3 values; wanted 1, 2 (left and right, top and bottom) or 4 (left, top, "
      "right, bottom)");
  EXPECT_EQ(refusal(CenterCrop{}),
            "transform: CenterCrop: size has 0 values; wanted 1, the height and width of a square, or both");
  EXPECT_EQ(refusal(ToDtype{.dtype = "float16"}),
            "transform: ToDtype: dtype \"float16\"; wanted \"float32\", \"bfloat16\" or \"uint8\"");
  EXPECT_EQ(refusal(RandomHorizontalFlip{.p = 1.5}), "transform: RandomHorizontalFlip: p is 1.5; wanted 0 to 1");
  EXPECT_EQ(refusal(RandomResizedCrop{.size = {8}, .scale = {0.9, 0.1}}),
            "transform: RandomResizedCrop: scale goes from 0.9 to 0.1; wanted the least first, within 1e-06 to 1");
}

}  // namespace
}  // namespace headrace::transform
