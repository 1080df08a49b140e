// RandomGrayscale. What it should give is torchvision 0.26.0's rgb_to_grayscale.
#include <headrace/operation.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/error_of.h"

namespace headrace {
namespace {

using testing::ElementsAre;
using transforms::RandomGrayscale;

// Of a row of pixels, with the colours taken off.
template <class Value>
std::vector<Value> grey(std::vector<Value> row, int channels, DType dtype) {
  const auto operation = make_operation(RandomGrayscale{});
  const ImageSpec image{{1, static_cast<int>(row.size()) / channels, channels}, dtype};
  EXPECT_EQ(operation->schema(image).size, image.size);
  std::vector<Value> out(row.size(), Value{77});  // All of it must be written.
  const auto bytes = static_cast<std::ptrdiff_t>(image.bytes());
  OperationOutput to{{reinterpret_cast<std::byte*>(out.data()), image, bytes}};
  operation->apply({.image = {reinterpret_cast<const std::byte*>(row.data()), image, bytes}}, {{1.0}}, to);
  return out;
}

TEST(RandomGrayscaleOperation, MakesEachChannelTheLuma) {
  EXPECT_THAT(grey<std::uint8_t>({255, 255, 255, 255, 0, 0, 0, 255, 0}, 3, DType::u8),
              ElementsAre(254, 254, 254, 76, 76, 76, 149, 149, 149));
  EXPECT_THAT(grey<std::uint8_t>({0, 0, 255, 10, 20, 30, 200, 100, 7}, 3, DType::u8),
              ElementsAre(29, 29, 29, 18, 18, 18, 119, 119, 119));
  constexpr float kLuma = 0.46775689721107483F;
  EXPECT_THAT(grey<float>({200 / 255.0F, 100 / 255.0F, 7 / 255.0F}, 3, DType::f32), ElementsAre(kLuma, kLuma, kLuma));
  EXPECT_THAT(grey<std::uint8_t>({3, 200}, 1, DType::u8), ElementsAre(3, 200)) << "an image without colours";
}

TEST(RandomGrayscaleOperation, TakesTheColoursOffWithItsProbability) {
  const auto operation = make_operation(RandomGrayscale{.p = 0.25});
  int grey_images = 0;
  for (std::int64_t sample = 0; sample < 4000; ++sample) {
    SampleRandom random{1, 2, sample};
    grey_images += operation->draw(random, {}).number(0);
  }
  EXPECT_NEAR(grey_images, 1000, 110);  // Four standard deviations.
  EXPECT_TRUE(operation->draws()) << "an evaluation leaves it out";
}

TEST(RandomGrayscaleOperation, RefusesOtherChannels) {
  const auto operation = make_operation(RandomGrayscale{});
  EXPECT_EQ(error_of(ErrorCode::unsupported,
                     [&] {
                       operation->schema({{2, 2, 4}, DType::u8});
                     }),
            "transform: RandomGrayscale takes images of 1 or 3 channels; these have 4");
}

}  // namespace
}  // namespace headrace
