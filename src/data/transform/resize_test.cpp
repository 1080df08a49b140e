#include "data/transform/resize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "core/base/kernel_sets.h"
#include "media/codec/test_images.h"

namespace headrace::transform {
namespace {

using codec::Bytes;
using codec::Image;

Image random_image(int height, int width, int channels, unsigned seed) {
  std::mt19937 random{seed};
  Image image{height, width, channels, Bytes(static_cast<std::size_t>(height) * width * channels)};
  for (auto& value : image.pixels) value = static_cast<std::uint8_t>(random());
  return image;
}

// The pixels that the axis' stretch touches.
Stretch at_hand(const ResizeAxis& axis) {
  const int first = axis.begin / axis.divisor;
  return {first, (axis.begin + axis.size - 1) / axis.divisor + 1 - first};
}

// The normalised weights of one output over the stretch, in double, from the words in resize.h: a triangle as wide as
// two outputs, or two pixels where the stretch is enlarged.
std::vector<double> specified_weights(const ResizeAxis& axis, int out) {
  const double scale = static_cast<double>(axis.size) / axis.resized, radius = std::max<double>(axis.divisor, scale);
  const Stretch stretch = at_hand(axis);
  std::vector<double> weights(static_cast<std::size_t>(stretch.size));
  double sum = 0;
  for (int i = 0; i < stretch.size; ++i) {
    const double center = (stretch.begin + i + 0.5) * axis.divisor - axis.begin;
    const double distance = std::abs(center - (out + 0.5) * scale) / radius;
    sum += weights[static_cast<std::size_t>(i)] = std::max(0.0, 1 - distance);
  }
  for (double& weight : weights) weight /= sum;
  return weights;
}

std::vector<double> specified(const Image& image, const ResizeAxis& vertical, const ResizeAxis& horizontal) {
  std::vector<double> out;
  const Stretch stretch = at_hand(vertical), across = at_hand(horizontal);
  for (int y = 0; y < vertical.out_size; ++y) {
    const auto rows = specified_weights(vertical, vertical.out_begin + y);
    std::vector<double> blended(static_cast<std::size_t>(across.size) * image.channels);
    for (int i = 0; i < stretch.size; ++i) {
      const double weight = rows[static_cast<std::size_t>(i)];
      if (weight == 0) continue;
      const auto row = (static_cast<std::size_t>(stretch.begin + i) * image.width + across.begin) * image.channels;
      for (std::size_t j = 0; j < blended.size(); ++j) blended[j] += weight * image.pixels[row + j];
    }
    for (int x = 0; x < horizontal.out_size; ++x) {
      const auto columns = specified_weights(horizontal, horizontal.out_begin + x);
      for (int c = 0; c < image.channels; ++c) {
        double sum = 0;
        for (std::size_t i = 0; i < columns.size(); ++i) sum += columns[i] * blended[i * image.channels + c];
        out.push_back(sum);
      }
    }
  }
  return out;
}

Bytes needed_pixels(const Image& image, const ResizeAxis& vertical, const ResizeAxis& horizontal) {
  const Stretch rows = needed(vertical), columns = needed(horizontal);
  const Stretch all_rows = at_hand(vertical), all_columns = at_hand(horizontal);
  EXPECT_GE(rows.begin, all_rows.begin);
  EXPECT_LE(rows.begin + rows.size, all_rows.begin + all_rows.size);
  EXPECT_GE(columns.begin, all_columns.begin);
  EXPECT_LE(columns.begin + columns.size, all_columns.begin + all_columns.size);
  Bytes part;
  for (int y = rows.begin; y < rows.begin + rows.size; ++y) {
    const auto at = (static_cast<std::ptrdiff_t>(y) * image.width + columns.begin) * image.channels;
    const auto begin = image.pixels.begin() + at;
    part.insert(part.end(), begin, begin + static_cast<std::ptrdiff_t>(columns.size) * image.channels);
  }
  return part;
}

Bytes resized(Resizer& resizer, const Image& image, const ResizeAxis& vertical, const ResizeAxis& horizontal) {
  const auto size = static_cast<std::size_t>(vertical.out_size) * horizontal.out_size * image.channels;
  Bytes out(size + 2, 77);  // One byte on each side shows whether anything is written beside.
  resizer.resize(needed_pixels(image, vertical, horizontal), vertical, horizontal, image.channels,
                 std::span{out}.subspan(1, size));
  EXPECT_EQ(out.front(), 77);
  EXPECT_EQ(out.back(), 77);
  return {out.begin() + 1, out.end() - 1};
}

// Half a level of rounding, what 16-bit weights lose, and the rounding between the axes, which keeps 7 bits of fraction
// while the columns stay more than a quarter.
double allowed(const ResizeAxis& horizontal) {
  return 0.5 + 0.03 + (horizontal.size <= 4 * horizontal.resized * horizontal.divisor ? 0.5 / 128 : 0.25);
}

void expect_as_specified(Resizer& resizer, const Image& image, const ResizeAxis& vertical,
                         const ResizeAxis& horizontal) {
  const Bytes out = resized(resizer, image, vertical, horizontal);
  const std::vector<double> wanted = specified(image, vertical, horizontal);
  ASSERT_EQ(out.size(), wanted.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    ASSERT_NEAR(out[i], wanted[i], allowed(horizontal))
        << "value " << i << " of " << image.channels << " channels, " << vertical.size << "x" << horizontal.size
        << " to " << vertical.resized << "x" << horizontal.resized;
  }
}

class ResizerSets : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { use_kernel_set(GetParam()); }
  void TearDown() override { use_kernel_set(""); }
};

// Every pair of sizes on one axis while the other keeps an odd one; all of the output, and its middle.
TEST_P(ResizerSets, EqualTheSpecificationForEverySize) {
  Resizer resizer;
  for (const int channels : {1, 2, 3, 4}) {
    for (const int size : {1, 2, 3, 5, 8, 16, 33, 64, 131}) {
      for (const int to : {1, 2, 3, 7, 8, 16, 31, 64, 90}) {
        const Image image = random_image(size + 3, 19, channels, static_cast<unsigned>(size * 1000 + to));
        const Image turned = random_image(19, size + 3, channels, static_cast<unsigned>(to * 1000 + size));
        for (const ResizeAxis& axis : {ResizeAxis{2, size, to, 0, to}, ResizeAxis{1, size, to, to / 3, (to + 1) / 2}}) {
          for (const ResizeAxis& other : {ResizeAxis{0, 19, 11, 0, 11}, ResizeAxis{3, 9, 9, 2, 5}}) {
            expect_as_specified(resizer, image, axis, other);
            expect_as_specified(resizer, turned, other, axis);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_P(ResizerSets, EqualTheSpecificationOnPhotographSizes) {
  Resizer resizer;
  const Image image = random_image(375, 500, 3, 1);
  expect_as_specified(resizer, image, {20, 300, 224, 0, 224}, {100, 280, 224, 0, 224});
  expect_as_specified(resizer, image, {0, 375, 256, 16, 224}, {0, 500, 341, 58, 224});
  expect_as_specified(resizer, image, {150, 40, 64, 0, 64}, {7, 55, 64, 0, 64});
  expect_as_specified(resizer, random_image(700, 3, 3, 2), {0, 700, 7, 0, 7}, {0, 3, 7, 0, 7});
}

// Stretches that begin and end within a pixel.
TEST_P(ResizerSets, EqualTheSpecificationOnAnImageThatWasDecodedSmaller) {
  Resizer resizer;
  const Image image = random_image(104, 89, 3, 1);
  for (const int divisor : {2, 4, 8}) {
    for (const int odd : {0, 1, 3, 7}) {
      const ResizeAxis vertical{odd, 100 * divisor, 40, 0, 40, divisor};
      const ResizeAxis horizontal{5 * odd, 81 * divisor - 4 * odd, 33, 4, 20, divisor};
      expect_as_specified(resizer, image, vertical, horizontal);
    }
  }
}

// A stretch of 65,500 pixels has taps whose weights are below 1/20,000: their sum must still be 1.
TEST_P(ResizerSets, KeepAConstantImageConstantAtAnyScale) {
  Resizer resizer;
  for (const int value : {0, 1, 127, 254, 255}) {
    for (const int size : {1, 3, 224, 1000, 65500}) {
      for (const int to : {1, 3, 224}) {
        Image image{1, size, 3, Bytes(static_cast<std::size_t>(size) * 3, static_cast<std::uint8_t>(value))};
        const Bytes out = resized(resizer, image, {0, 1, 2, 0, 2}, {0, size, to, 0, to});
        EXPECT_THAT(out, testing::Each(testing::Eq(value))) << size << " to " << to;
      }
    }
  }
}

// Widths around those of vectors and strips, sizes and parts drawn at random; the plain set is the specification.
TEST_P(ResizerSets, HaveThePlainSetsBits) {
  std::mt19937 random{5};
  const auto draw = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  const auto draw_axis = [&](int length) {
    ResizeAxis axis;
    axis.size = draw(1, length);
    axis.begin = draw(0, length - axis.size);
    axis.resized = draw(1, draw(0, 1) == 0 ? 80 : 24);
    axis.out_size = draw(1, axis.resized);
    axis.out_begin = draw(0, axis.resized - axis.out_size);
    return axis;
  };
  Resizer resizer, plain;
  for (int trial = 0; trial < 1500; ++trial) {
    const int channels = draw(1, 4);
    const Image image = random_image(draw(1, 90), draw(1, 150), channels, static_cast<unsigned>(trial));
    const ResizeAxis vertical = draw_axis(image.height), horizontal = draw_axis(image.width);
    const Bytes found = resized(resizer, image, vertical, horizontal);
    use_kernel_set("plain");
    const Bytes wanted = resized(plain, image, vertical, horizontal);
    use_kernel_set(GetParam());
    ASSERT_EQ(found, wanted) << channels << " channels, " << vertical.size << "x" << horizontal.size << " to "
                             << vertical.resized << "x" << horizontal.resized;
  }
}

// Resizing to uint8 and then normalising, in every form.
TEST_P(ResizerSets, WriteEveryFormAsNormalizeWould) {
  Resizer resizer;
  for (const int channels : {1, 2, 3, 4}) {
    const auto table = make_normalize_table(std::array{0.45}, std::array{0.225}, channels);
    const Image image = random_image(61, 97, channels, 9);
    for (const int size : {1, 15, 16, 33, 61}) {
      const ResizeAxis vertical{3, 50, 40, 2, 35}, horizontal{5, 90, size, 0, size};
      const Bytes stored = resized(resizer, image, vertical, horizontal);
      for (const bool flip : {false, true}) {
        for (const PixelType type : {PixelType::u8, PixelType::bf16, PixelType::f32}) {
          for (const PixelLayout layout : {PixelLayout::nchw, PixelLayout::nhwc}) {
            const PixelForm form{type, layout, &table};
            std::vector<std::byte> wanted(stored.size() * bytes_of(type)), found(wanted.size() + 8, std::byte{77});
            normalize(stored, {35, size, channels, 0, 0, flip}, form, wanted);
            resizer.resize(needed_pixels(image, vertical, horizontal), vertical, horizontal, channels, flip, form,
                           std::span{found}.subspan(4, wanted.size()));
            EXPECT_TRUE(found[3] == std::byte{77} && found[wanted.size() + 4] == std::byte{77});
            ASSERT_TRUE(std::equal(wanted.begin(), wanted.end(), found.begin() + 4))
                << channels << " channels, " << size << " columns, flip " << flip << ", type " << static_cast<int>(type)
                << ", layout " << static_cast<int>(layout);
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, ResizerSets, ::testing::ValuesIn(kernel_sets()),
                         [](const auto& tested) { return tested.param; });

TEST(Resizer, OfTheSameSizeCopies) {
  Resizer resizer;
  const Image image = random_image(37, 41, 3, 3);
  EXPECT_EQ(resized(resizer, image, {0, 37, 37, 0, 37}, {0, 41, 41, 0, 41}), image.pixels);
  const Bytes middle = resized(resizer, image, {0, 37, 37, 5, 8}, {0, 41, 41, 6, 9});
  ASSERT_EQ(middle.size(), 8U * 9 * 3);
  for (std::size_t y = 0; y < 8; ++y) {
    for (std::size_t i = 0; i < 9 * 3; ++i) {
      EXPECT_EQ(middle[y * 27 + i], image.pixels[((y + 5) * 41 + 6) * 3 + i]);
    }
  }
}

// What the first image left behind must not show in the second.
TEST(Resizer, ResultDoesNotDependOnTheImagesBefore) {
  const ResizeAxis vertical{3, 20, 30, 4, 21}, horizontal{1, 90, 30, 2, 27};
  const Image image = random_image(30, 100, 3, 4);
  Resizer fresh;
  const Bytes wanted = resized(fresh, image, vertical, horizontal);
  Resizer used;
  const Image white{50, 400, 3, Bytes(50 * 400 * 3, 255)};
  resized(used, white, {0, 50, 70, 0, 70}, {0, 400, 333, 0, 333});
  EXPECT_EQ(resized(used, image, vertical, horizontal), wanted);
  EXPECT_EQ(resized(used, image, vertical, horizontal), wanted);  // With the weights of the call before.
}

TEST(Needed, IsWhatTheTapsReadAndNoMore) {
  const auto of = [](const ResizeAxis& axis) {
    const Stretch stretch = needed(axis);
    return std::array{stretch.begin, stretch.size};
  };
  EXPECT_EQ(of({10, 100, 50, 0, 50}), (std::array{10, 100}));
  // Output 20 is centered at 41 and reaches 2 to each side, output 29 at 59.
  EXPECT_EQ(of({10, 100, 50, 20, 10}), (std::array{10 + 39, 22}));
  EXPECT_EQ(of({0, 1, 5, 2, 1}), (std::array{0, 1}));
  EXPECT_EQ(of({7, 4, 400, 0, 1}), (std::array{7, 1}));
}

TEST(ResizerDeathTest, StopsAtAnImageThatIsNotWhatTheAxesNeed) {
  Resizer resizer;
  const Bytes pixels(4 * 4 * 3);
  Bytes out(2 * 2 * 3);
  const ResizeAxis axis{0, 4, 2, 0, 2};
  EXPECT_DEATH(resizer.resize(std::span{pixels}.first(47), axis, axis, 3, out), "47 bytes resized to 12");
  EXPECT_DEATH(resizer.resize(pixels, axis, axis, 3, std::span{out}.first(11)), "resized to 11");
  EXPECT_DEATH(resizer.resize(pixels, axis, {0, 4, 2, 1, 2}, 3, out), "1 \\+ 2 are wanted");
  EXPECT_DEATH(resizer.resize(pixels, axis, axis, 5, out), "5 channels");
}

}  // namespace
}  // namespace headrace::transform
