#include "data/transform/crop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "data/transform/shorthand.h"

namespace headrace::transform {
namespace {

TransformOptions options_of(Crop crop, std::int64_t size, std::int64_t resize = 0) {
  TransformOptions options;
  options.size = size;
  options.crop = crop;
  options.resize = resize;
  return options;
}

CropWindow evaluation_window(std::int64_t size, std::int64_t resize, int height, int width) {
  SampleRandom random{1, 0, 0};
  return choose_crop(crop_of(options_of(Crop::random_resized, size, resize), /*training=*/false), height, width,
                     random);
}

CropWindow drawn_window(const CropStage& crop, int height, int width, std::int64_t index) {
  SampleRandom random{7, 3, index};
  return choose_crop(crop, height, width, random);
}

CropWindow drawn_window(const TransformOptions& options, int height, int width, std::int64_t index) {
  return drawn_window(crop_of(options, /*training=*/true), height, width, index);
}

void expect_inside(const CropWindow& window, int height, int width, int size) {
  for (const auto& [axis, length] : {std::pair{window.vertical, height}, std::pair{window.horizontal, width}}) {
    EXPECT_GE(axis.begin, 0);
    EXPECT_GE(axis.size, 1);
    EXPECT_LE(axis.begin + axis.size, length);
    EXPECT_EQ(axis.out_size, size);
    EXPECT_GE(axis.out_begin, 0);
    EXPECT_LE(axis.out_begin + axis.out_size, axis.resized);
  }
}

// Sizes that torchvision 0.26.0 gave: Resize(resize) of an image of height x width, then the crop's place in
// CenterCrop(size), whose halves Python's round() takes to the even neighbour.
TEST(ChooseCrop, EvaluatesAsTorchvisionsResizeAndCenterCrop) {
  struct Golden {
    int size, resize, height, width, resized_height, resized_width, top, left;
  };
  for (const Golden& g : {
           Golden{224, 256, 300, 500, 256, 426, 16, 101},
           Golden{224, 256, 500, 375, 341, 256, 58, 16},
           Golden{224, 256, 256, 256, 256, 256, 16, 16},
           Golden{64, 73, 375, 500, 73, 97, 4, 16},
           Golden{64, 73, 10, 7, 104, 73, 20, 4},
           Golden{32, 37, 1, 1, 37, 37, 2, 2},
           Golden{224, 224, 333, 333, 224, 224, 0, 0},
           Golden{33, 36, 100, 101, 36, 36, 2, 2},
       }) {
    const CropWindow window = evaluation_window(g.size, g.resize, g.height, g.width);
    EXPECT_EQ(window.vertical, (ResizeAxis{0, g.height, g.resized_height, g.top, g.size}))
        << g.height << "x" << g.width;
    EXPECT_EQ(window.horizontal, (ResizeAxis{0, g.width, g.resized_width, g.left, g.size}))
        << g.height << "x" << g.width;
  }
}

TEST(ChooseCrop, ResizesToEightSeventhsUnlessTold) {
  EXPECT_EQ(evaluation_window(224, 0, 300, 500).vertical.resized, 256);
  EXPECT_EQ(evaluation_window(64, 0, 300, 500).vertical.resized, 73);
  EXPECT_EQ(evaluation_window(1, 0, 300, 500).vertical.resized, 1);
}

TEST(ChooseCrop, EvaluationDrawsNothing) {
  SampleRandom random{1, 2, 3}, untouched{1, 2, 3};
  choose_crop(crop_of(options_of(Crop::random_resized, 64), /*training=*/false), 300, 400, random);
  choose_crop(crop_of(options_of(Crop::center, 64), /*training=*/true), 300, 400, random);
  EXPECT_EQ(random.next(), untouched.next());
}

// Chi-square against equal shares at 203 places: 272 is its 99.9 % quantile with 202 degrees of freedom.
TEST(ChooseCrop, RandomCropsCoverTheirRangeEvenly) {
  constexpr int kDraws = 40'000;
  const CropStage crop = crop_of(options_of(Crop::random, 224), /*training=*/true);
  std::vector<int> lefts(203), tops(33);
  for (int i = 0; i < kDraws; ++i) {
    const CropWindow window = drawn_window(crop, 300, 500, i);
    ASSERT_EQ(window.vertical.resized, 256);
    ASSERT_EQ(window.horizontal.resized, 426);
    ++tops.at(static_cast<std::size_t>(window.vertical.out_begin));
    ++lefts.at(static_cast<std::size_t>(window.horizontal.out_begin));
  }
  const auto chi_square = [](const std::vector<int>& counts) {
    const double expected = static_cast<double>(kDraws) / static_cast<double>(counts.size());
    double sum = 0;
    for (const int count : counts) sum += (count - expected) * (count - expected) / expected;
    return sum;
  };
  EXPECT_LT(chi_square(lefts), 272);
  EXPECT_LT(chi_square(tops), 62.5);  // 32 degrees of freedom.
}

TEST(ChooseCrop, RandomResizedStaysInItsAreaAndRatio) {
  const CropStage crop = crop_of(options_of(Crop::random_resized, 224), /*training=*/true);
  constexpr int kHeight = 600, kWidth = 600, kDraws = 20'000;
  double areas = 0, log_ratios = 0;
  std::set<int> places;
  for (int i = 0; i < kDraws; ++i) {
    const CropWindow window = drawn_window(crop, kHeight, kWidth, i);
    expect_inside(window, kHeight, kWidth, 224);
    const double height = window.vertical.size, width = window.horizontal.size;
    // Each side is rounded by up to half a pixel.
    EXPECT_GE((height + 0.5) * (width + 0.5), 0.08 * kHeight * kWidth);
    EXPECT_GE((width + 0.5) / (height - 0.5), 0.75);
    EXPECT_LE((width - 0.5) / (height + 0.5), 4.0 / 3);
    areas += height * width / (kHeight * kWidth);
    log_ratios += std::log(width / height);
    places.insert(window.vertical.begin);
  }
  EXPECT_NEAR(log_ratios / kDraws, 0.0, 0.005);  // Uniform on a logarithmic scale: the mean's error is 0.0012.
  // torchvision 0.26.0 gave 0.4764 with an error of 0.0016: large areas fit less often, and are drawn again.
  EXPECT_NEAR(areas / kDraws, 0.4764, 0.007);
  EXPECT_GT(places.size(), 300U);
}

// Ten tries for a rectangle of the whole area fail, unless the ratio drawn is the image's own.
TEST(ChooseCrop, FallsBackToTheNearestRatioAllowed) {
  TransformOptions options = options_of(Crop::random_resized, 64);
  options.scale = {1.0, 1.0};
  const CropWindow wide = drawn_window(options, 300, 900, 0);
  EXPECT_EQ(wide.vertical, (ResizeAxis{0, 300, 64, 0, 64}));
  EXPECT_EQ(wide.horizontal, (ResizeAxis{250, 400, 64, 0, 64}));
  const CropWindow tall = drawn_window(options, 901, 300, 0);
  EXPECT_EQ(tall.vertical, (ResizeAxis{250, 400, 64, 0, 64}));
  EXPECT_EQ(tall.horizontal, (ResizeAxis{0, 300, 64, 0, 64}));
  options.ratio = {50.0, 100.0};
  EXPECT_EQ(drawn_window(options, 9, 1, 0).vertical, (ResizeAxis{4, 1, 64, 0, 64}));  // torchvision: no row at all.
}

TEST(ChooseCrop, EverySizeOfImageGivesACropInsideIt) {
  for (const int height : {1, 2, 3, 13, 224, 65'500}) {
    for (const int width : {1, 2, 5, 223, 1000}) {
      for (const Crop crop : {Crop::center, Crop::random, Crop::random_resized}) {
        for (const int size : {1, 31, 224}) {
          for (std::int64_t index = 0; index < 20; ++index) {
            expect_inside(drawn_window(options_of(crop, size), height, width, index), height, width, size);
          }
        }
      }
    }
  }
}

TEST(ChooseCrop, TheSameKeyDrawsTheSameCrop) {
  const TransformOptions options = options_of(Crop::random_resized, 64);
  const CropWindow first = drawn_window(options, 300, 400, 5), second = drawn_window(options, 300, 400, 5);
  EXPECT_EQ(first.vertical, second.vertical);
  EXPECT_EQ(first.horizontal, second.horizontal);
  const CropWindow other = drawn_window(options, 300, 400, 6);
  EXPECT_FALSE(first.vertical == other.vertical && first.horizontal == other.horizontal);
}

}  // namespace
}  // namespace headrace::transform
