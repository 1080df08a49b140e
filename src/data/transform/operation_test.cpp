// The operations by themselves. What they should give is torchvision 0.26.0's, transforms.v2.
#include <headrace/operation.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "core/base/error_of.h"
#include "data/transform/normalize.h"
#include "data/transform/resize.h"

namespace headrace {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::ElementsAreArray;
using Bytes = std::vector<std::uint8_t>;
using namespace transforms;

const ToDtype kToFloat{.dtype = "float32", .scale = true};

struct Pixels {
  ImageSpec image;
  Bytes bytes;
};

ImageView view_of(const Pixels& pixels) {
  const auto row = static_cast<std::ptrdiff_t>(pixels.image.pixel_bytes()) * pixels.image.size.width;
  return {reinterpret_cast<const std::byte*>(pixels.bytes.data()), pixels.image, row};
}

Pixels applied(const TransformSpec& spec, const Pixels& in, const Drawn& drawn = {}) {
  const auto operation = make_operation(spec);
  Pixels out{operation->schema(in.image), {}};
  out.bytes.assign(out.image.bytes(), 0xAA);  // All of it must be written.
  const auto row = static_cast<std::ptrdiff_t>(out.image.pixel_bytes()) * out.image.size.width;
  OperationOutput output{{reinterpret_cast<std::byte*>(out.bytes.data()), out.image, row}};
  operation->apply({.image = view_of(in)}, drawn, output);
  return out;
}

// 1, 2, 3, ... row by row.
Pixels counted(int height, int width, int channels = 1) {
  Pixels pixels{{{height, width, channels}, DType::u8}, {}};
  pixels.bytes.resize(pixels.image.bytes());
  std::iota(pixels.bytes.begin(), pixels.bytes.end(), std::uint8_t{1});
  return pixels;
}

std::vector<float> numbers_of(const Pixels& pixels) {
  std::vector<float> numbers(pixels.bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), pixels.bytes.data(), pixels.bytes.size());
  return numbers;
}

TEST(CenterCropOperation, TakesTheMiddleAndPadsWhatIsMissing) {
  EXPECT_THAT(applied(CenterCrop{.size = {2}}, counted(4, 4)).bytes, ElementsAre(6, 7, 10, 11));
  EXPECT_THAT(applied(CenterCrop{.size = {2}}, counted(3, 5)).bytes, ElementsAre(3, 4, 8, 9));
  EXPECT_THAT(applied(CenterCrop{.size = {1, 3}}, counted(4, 4)).bytes, ElementsAre(9, 10, 11));
  EXPECT_THAT(applied(CenterCrop{.size = {3, 4}}, counted(2, 1)).bytes,
              ElementsAre(0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0));
}

TEST(PadOperation, AddsZerosOnEachSide) {
  EXPECT_THAT(applied(Pad{.padding = {1}}, counted(1, 2)).bytes, ElementsAre(0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0));
  EXPECT_THAT(applied(Pad{.padding = {1, 0, 0, 2}}, counted(1, 2)).bytes, ElementsAre(0, 1, 2, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(applied(Pad{.padding = {0, 1}}, counted(1, 1, 3)).bytes, ElementsAre(0, 0, 0, 1, 2, 3, 0, 0, 0));
}

TEST(RandomHorizontalFlipOperation, MirrorsPixelsAndNotTheirChannels) {
  EXPECT_THAT(applied(RandomHorizontalFlip{}, counted(1, 3, 2), {{1.0}}).bytes, ElementsAre(5, 6, 3, 4, 1, 2));
  EXPECT_THAT(applied(RandomHorizontalFlip{}, counted(1, 3, 2), {{0.0}}).bytes, ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(RandomHorizontalFlipOperation, FlipsWithItsProbability) {
  const auto operation = make_operation(RandomHorizontalFlip{.p = 0.25});
  int flips = 0;
  for (std::int64_t index = 0; index < 4000; ++index) {
    SampleRandom random{1, 2, index};
    flips += operation->draw(random, {8, 8, 1}).number(0);
  }
  EXPECT_NEAR(flips, 1000, 110);  // Four standard deviations.
}

TEST(RandomCropOperation, TakesThePlaceThatWasDrawn) {
  EXPECT_THAT(applied(RandomCrop{.size = {2}}, counted(3, 3), {{1, 0}}).bytes, ElementsAre(4, 5, 7, 8));
  // A pixel of padding on each side: place (0, 0) begins in it.
  EXPECT_THAT(applied(RandomCrop{.size = {2}, .padding = {1}}, counted(3, 3), {{0, 2}}).bytes, ElementsAre(0, 0, 2, 3));
}

TEST(RandomCropOperation, DrawsEachPlaceAndNoOther) {
  const auto operation = make_operation(RandomCrop{.size = {2, 3}, .padding = {1, 0}});
  std::vector<int> rows(3), columns(5);
  for (std::int64_t index = 0; index < 500; ++index) {
    SampleRandom random{1, 2, index};
    const Drawn drawn = operation->draw(random, {4, 5, 1});
    ++rows.at(static_cast<std::size_t>(drawn.number(0)));
    ++columns.at(static_cast<std::size_t>(drawn.number(1)));
  }
  EXPECT_THAT(rows, Each(testing::Gt(100)));
  EXPECT_THAT(columns, Each(testing::Gt(50)));
}

TEST(RandomCropOperation, ASmallerImageIsRefusedOrPadded) {
  EXPECT_EQ(error_of(ErrorCode::unsupported, [] { applied(RandomCrop{.size = {4}}, counted(3, 9)); }),
            "transform: RandomCrop of 4 x 4 pixels of an image of 3 x 9; pad_if_needed pads it");
  // torchvision adds what is missing on both sides: five rows for four.
  const RandomCrop padded{.size = {4, 2}, .pad_if_needed = true};
  EXPECT_THAT(applied(padded, counted(3, 2), {{1, 0}}).bytes, ElementsAre(1, 2, 3, 4, 5, 6, 0, 0));
  SampleRandom random{1, 2, 3};
  EXPECT_LE(make_operation(padded)->draw(random, {3, 2, 1}).number(0), 1);
}

TEST(ResizeOperation, MakesTheShorterSideOrHeightAndWidthThese) {
  const auto size = [](const Resize& resize, int height, int width) {
    const Geometry found = make_operation(resize)->schema({{height, width, 3}, DType::u8}).size;
    return std::vector<int>{found.height, found.width};
  };
  EXPECT_THAT(size({.size = {256}}, 300, 500), ElementsAre(256, 426));
  EXPECT_THAT(size({.size = {256}}, 500, 375), ElementsAre(341, 256));
  EXPECT_THAT(size({.size = {100, 20}}, 500, 375), ElementsAre(100, 20));
  EXPECT_THAT(size({.size = {256}, .max_size = 300}, 300, 500), ElementsAre(180, 300));
  EXPECT_THAT(size({.size = {256}, .max_size = 300}, 500, 300), ElementsAre(300, 180));
  EXPECT_THAT(size({.size = {256}, .max_size = 300}, 300, 310), ElementsAre(256, 264));
}

TEST(ResizeOperation, RefusesSizesThatCannotBeCounted) {
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [] { make_operation(Resize{.size = {40'000}}); }),
            "transform: Resize: size is 40000; wanted 1 to 8192");
  EXPECT_EQ(error_of(ErrorCode::invalid_argument,
                     [] {
                       make_operation(RandomResizedCrop{.size = {8, 4097}});
                     }),
            "transform: RandomResizedCrop: size is 4097; wanted 1 to 4096");
  const auto largest = make_operation(Resize{.size = {8192}});
  EXPECT_EQ(largest->schema({{1, 65'535, 3}, DType::u8}).size, (Geometry{8192, 536'862'720, 3}));
  EXPECT_EQ(error_of(ErrorCode::unsupported,
                     [&] {
                       largest->schema({{1'000'000, 2, 3}, DType::u8});
                     }),
            "transform: Resize of 1000000 x 2 pixels to 8192 along the shorter side: 4096000000 along the other");
}

TEST(ResizeOperation, ResizesTheWholeImage) {
  const Pixels in = counted(9, 7, 3);
  const Pixels out = applied(Resize{.size = {4, 5}}, in);
  Bytes wanted(4 * 5 * 3);
  transform::Resizer{}.resize(in.bytes, {0, 9, 4, 0, 4}, {0, 7, 5, 0, 5}, 3, wanted);
  EXPECT_EQ(out.bytes, wanted);
}

TEST(RandomResizedCropOperation, ResizesTheRectangleThatWasDrawn) {
  const auto operation = make_operation(RandomResizedCrop{.size = {4, 6}});
  SampleRandom random{1, 2, 3};
  const Drawn drawn = operation->draw(random, {20, 30, 3});
  const int y = drawn.number(0), x = drawn.number(1), height = drawn.number(2), width = drawn.number(3);
  ASSERT_GE(y, 0);
  ASSERT_LE(y + height, 20);
  ASSERT_LE(x + width, 30);
  const Pixels in = counted(20, 30, 3);
  Bytes part, wanted(4 * 6 * 3);
  for (int row = y; row < y + height; ++row) {
    const auto begin = in.bytes.begin() + (row * 30 + x) * 3;
    part.insert(part.end(), begin, begin + width * 3);
  }
  transform::Resizer{}.resize(part, {0, height, 4, 0, 4}, {0, width, 6, 0, 6}, 3, wanted);
  EXPECT_EQ(applied(RandomResizedCrop{.size = {4, 6}}, in, drawn).bytes, wanted);
}

TEST(ToDtypeAndNormalizeOperations, GiveTheNumbersOfTheOnePass) {
  Pixels every{{{16, 16, 1}, DType::u8}, Bytes(256)};
  std::iota(every.bytes.begin(), every.bytes.end(), std::uint8_t{0});
  const std::vector<double> mean{0.485}, deviation{0.229};
  const Pixels scaled = applied(kToFloat, every);
  EXPECT_EQ(numbers_of(scaled)[255], 1.0F);
  const auto found = numbers_of(applied(Normalize{.mean = mean, .std = deviation}, scaled));
  const auto table = transform::make_normalize_table(mean, deviation, 1);
  EXPECT_THAT(found, ElementsAreArray(table.value[0]));
}

TEST(Operations, MoveNumbersAsTheyMovePixels) {
  const Pixels numbers = applied(kToFloat, counted(2, 2));
  EXPECT_THAT(numbers_of(applied(Pad{.padding = {1, 0}}, numbers)),
              ElementsAre(0, 1 / 255.0F, 2 / 255.0F, 0, 0, 3 / 255.0F, 4 / 255.0F, 0));
  EXPECT_THAT(numbers_of(applied(RandomHorizontalFlip{}, numbers, {{1.0}})),
              ElementsAre(2 / 255.0F, 1 / 255.0F, 4 / 255.0F, 3 / 255.0F));
}

}  // namespace
}  // namespace headrace
