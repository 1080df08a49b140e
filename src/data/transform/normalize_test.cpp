#include "data/transform/normalize.h"

#include <headrace/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <climits>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/base/error_of.h"
#include "core/base/kernel_sets.h"

namespace headrace::transform {
namespace {

// The specification: one output value, from nothing but the words in normalize.h.
float specified(const std::vector<std::uint8_t>& pixels, const NormalizeGeometry& g, double mean, double deviation,
                int channel, int y, int x) {
  const std::int64_t crop_x = g.flip ? g.width - 1 - x : x;
  const std::int64_t source_y = static_cast<std::int64_t>(y) + g.offset_y;
  const std::int64_t source_x = crop_x + g.offset_x;
  std::uint8_t stored = 0;
  if (source_y >= 0 && source_y < g.height && source_x >= 0 && source_x < g.width) {
    stored = pixels[static_cast<std::size_t>((source_y * g.width + source_x) * g.channels + channel)];
  }
  const float scaled = static_cast<float>(stored) / 255.0F;
  return (scaled - static_cast<float>(mean)) / static_cast<float>(deviation);
}

std::uint32_t bits(float value) {
  std::uint32_t out;
  std::memcpy(&out, &value, sizeof out);
  return out;
}

const std::array<double, 4> kMean{0.485, 0.456, 0.406, 0.1};
const std::array<double, 4> kDeviation{0.229, 0.224, 0.225, 0.7};

// bfloat16 of a float, rounded to the nearest, ties to even.
std::uint16_t bfloat_of(float value) {
  const std::uint32_t all = bits(value);
  const std::uint32_t upper = all >> 16, rest = all & 0xFFFF;
  return static_cast<std::uint16_t>(upper + (rest > 0x8000 || (rest == 0x8000 && upper % 2 == 1) ? 1 : 0));
}

// Every form against float32 in planes.
void expect_every_form(const std::vector<std::uint8_t>& pixels, const NormalizeGeometry& g, const NormalizeTable& table,
                       const std::vector<float>& planes) {
  const std::size_t size = planes.size(), plane = size / static_cast<std::size_t>(g.channels);
  const auto channels = static_cast<std::size_t>(g.channels);
  for (const PixelLayout layout : {PixelLayout::nchw, PixelLayout::nhwc}) {
    std::vector<float> floats(size);
    std::vector<std::uint16_t> bfloats(size);
    std::vector<std::uint8_t> stored(size);
    normalize(pixels, g, {PixelType::f32, layout, &table}, std::as_writable_bytes(std::span{floats}));
    normalize(pixels, g, {PixelType::bf16, layout, &table}, std::as_writable_bytes(std::span{bfloats}));
    normalize(pixels, g, {PixelType::u8, layout, nullptr}, std::as_writable_bytes(std::span{stored}));
    for (std::size_t c = 0; c < channels; ++c) {
      for (std::size_t i = 0; i < plane; ++i) {
        const std::size_t at = layout == PixelLayout::nchw ? c * plane + i : i * channels + c;
        const float wanted = planes[c * plane + i];
        ASSERT_EQ(bits(floats[at]), bits(wanted)) << i << " of channel " << c;
        ASSERT_EQ(bfloats[at], bfloat_of(wanted));
        ASSERT_EQ(bits(table.value[c][stored[at]]), bits(wanted));
      }
    }
  }
}

void expect_as_specified(const NormalizeGeometry& g) {
  std::mt19937 random{static_cast<unsigned>(g.height * 1000 + g.width * 10 + g.channels)};
  const auto size = static_cast<std::size_t>(g.height) * g.width * g.channels;
  std::vector<std::uint8_t> pixels(size);
  for (auto& pixel : pixels) pixel = static_cast<std::uint8_t>(random());
  const auto channels = static_cast<std::size_t>(g.channels);
  const auto table = make_normalize_table({kMean.data(), channels}, {kDeviation.data(), channels}, g.channels);
  std::vector<float> out(size, std::numeric_limits<float>::quiet_NaN());
  normalize(pixels, g, {PixelType::f32, PixelLayout::nchw, &table}, std::as_writable_bytes(std::span{out}));

  for (int c = 0; c < g.channels; ++c) {
    for (int y = 0; y < g.height; ++y) {
      for (int x = 0; x < g.width; ++x) {
        const auto at = (static_cast<std::size_t>(c) * g.height + y) * g.width + x;
        const auto i = static_cast<std::size_t>(c);
        ASSERT_EQ(bits(out[at]), bits(specified(pixels, g, kMean[i], kDeviation[i], c, y, x)))
            << g.height << "x" << g.width << "x" << g.channels << " offset " << g.offset_y << "," << g.offset_x
            << " flip " << g.flip << " at " << c << "," << y << "," << x;
      }
    }
  }
  expect_every_form(pixels, g, table, out);
}

class NormalizeSets : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { use_kernel_set(GetParam()); }
  void TearDown() override { use_kernel_set(""); }
};

TEST_P(NormalizeSets, EqualTheSpecificationForEveryShapeCropAndFlip) {
  const std::vector<std::array<int, 2>> sizes{{1, 1}, {1, 7}, {7, 1}, {3, 5}, {28, 28}, {5, 33}, {17, 31}};
  for (const auto& [height, width] : sizes) {
    for (const int channels : {1, 2, 3, 4}) {
      for (const int offset_y : {0, 1, -1, 2, -height, height, height - 1, -100, 100}) {
        for (const int offset_x : {0, 1, -1, -2, width, -width, 1 - width, 100, -100}) {
          for (const bool flip : {false, true}) {
            expect_as_specified({height, width, channels, offset_y, offset_x, flip});
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

// Rows and images that do not fit a piece.
TEST_P(NormalizeSets, EqualTheSpecificationOnLargeImages) {
  for (const bool flip : {false, true}) {
    expect_as_specified({2, 9000, 3, 0, 0, flip});
    expect_as_specified({3, 17000, 1, 1, -5, flip});
    expect_as_specified({131, 77, 3, -3, 4, flip});
  }
}

// Every stored value under means and deviations as they come: what is computed has the bits of what is looked up.
TEST_P(NormalizeSets, HaveTheTablesBitsForAnyMeanAndDeviation) {
  std::mt19937 random{6};
  std::vector<std::uint8_t> pixels(256);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i);
  for (int trial = 0; trial < 2000; ++trial) {
    const double mean = std::uniform_real_distribution<double>(-2, 2)(random);
    const double deviation = std::exp(std::uniform_real_distribution<double>(-12, 6)(random));
    const auto table = make_normalize_table({&mean, 1}, {&deviation, 1}, 1);
    std::vector<float> out(256);
    normalize(pixels, {1, 256, 1, 0, 0, false}, {PixelType::f32, PixelLayout::nchw, &table},
              std::as_writable_bytes(std::span{out}));
    for (std::size_t i = 0; i < 256; ++i) ASSERT_EQ(bits(out[i]), bits(table.value[0][i])) << mean << " " << deviation;
  }
}

INSTANTIATE_TEST_SUITE_P(Every, NormalizeSets, ::testing::ValuesIn(kernel_sets()),
                         [](const auto& tested) { return tested.param; });

TEST(Normalize, FarOutsideIsAllPaddingWithoutOverflow) {
  for (const int offset : {INT_MAX, INT_MIN}) {
    for (const bool flip : {false, true}) {
      expect_as_specified({4, 5, 3, offset, 0, flip});
      expect_as_specified({4, 5, 3, 0, offset, flip});
      expect_as_specified({4, 5, 3, offset, offset, flip});
    }
  }
}

TEST(Normalize, WritesEveryValueAndNothingBeside) {
  const std::vector<std::uint8_t> pixels(3 * 5, 9);
  const auto table = make_normalize_table(std::array{0.0}, std::array{1.0}, 1);
  for (const int offset : {0, 2, -2, 50}) {
    std::vector<float> out(3 * 5 + 2, 77.0F);
    normalize(pixels, {3, 5, 1, offset, -offset, true}, {PixelType::f32, PixelLayout::nchw, &table},
              std::as_writable_bytes(std::span{out}.subspan(1, 15)));
    EXPECT_EQ(out.front(), 77.0F);
    EXPECT_EQ(out.back(), 77.0F);
    for (std::size_t i = 1; i + 1 < out.size(); ++i) EXPECT_LE(out[i], 1.0F);
  }
}

// Bits that torchvision 0.26.0 gave: Normalize((mean,), (deviation,))(ToTensor()(image)).
TEST(Normalize, TableHasTorchvisionsBits) {
  struct Golden {
    double mean, deviation;
    std::array<std::uint32_t, 8> bits;  // Of the stored values below.
    std::uint32_t mix;                  // xor over v of bits(v) * (2 v + 1), modulo 2^32.
  };
  const std::array<int, 8> stored{0, 1, 2, 77, 128, 200, 254, 255};
  const std::array<Golden, 3> goldens{
      Golden{0.2860,
             0.3530,
             {0xbf4f6929, 0xbf4c911b, 0xbf49b90c, 0x3d393308, 0x3f1c9e13, 0x3fb4b111, 0x4000bd4c, 0x4001734f},
             0x76cfcc7f},
      Golden{0.1307,
             0.3081,
             {0xbed93271, 0xbed2ae20, 0xbecc29d0, 0x3f0e4ce9, 0x3f9a3d7a, 0x4007c593, 0x4033c2b3, 0x4034933d},
             0x4784b581},
      Golden{0.485,
             0.229,
             {0xc0078bbd, 0xc006732b, 0xc0055a98, 0xbf4c9ec9, 0x3d97af32, 0x3fa74d4f, 0x400ed58a, 0x400fee1d},
             0xaa9ab05a}};
  for (const auto& golden : goldens) {
    const auto table = make_normalize_table({&golden.mean, 1}, {&golden.deviation, 1}, 1);
    std::uint32_t mix = 0;
    for (std::uint32_t v = 0; v < 256; ++v) mix ^= bits(table.value[0][v]) * (2 * v + 1);
    for (std::size_t i = 0; i < stored.size(); ++i) EXPECT_EQ(bits(table.value[0][stored[i]]), golden.bits[i]);
    EXPECT_EQ(mix, golden.mix) << golden.mean;
  }
}

TEST(NormalizeTable, OneValueServesAllChannels) {
  const auto table = make_normalize_table(std::array{0.5}, std::array{0.1, 0.2, 0.3}, 3);
  EXPECT_EQ(bits(table.value[2][255]), bits((1.0F - 0.5F) / 0.3F));
  EXPECT_EQ(bits(table.value[0][0]), bits(-0.5F / 0.1F));
}

std::string refusal(std::vector<double> mean, std::vector<double> deviation, int channels) {
  return error_of(ErrorCode::invalid_argument, [&] { make_normalize_table(mean, deviation, channels); });
}

TEST(NormalizeTable, RefusesValuesThatDoNotFit) {
  using testing::HasSubstr;
  EXPECT_THAT(refusal({0.1, 0.2, 0.3}, {1.0}, 1), HasSubstr("mean has 3 values, the images have 1 channel"));
  EXPECT_THAT(refusal({0.1}, {1.0, 1.0}, 3), HasSubstr("std has 2 values, the images have 3 channels"));
  EXPECT_THAT(refusal({}, {1.0}, 1), HasSubstr("mean has 0 values"));
  EXPECT_THAT(refusal({0.0}, {0.0}, 1), HasSubstr("positive std"));
  EXPECT_THAT(refusal({0.0}, {-1.0}, 1), HasSubstr("positive std"));
  EXPECT_THAT(refusal({0.0}, {1e-60}, 1), HasSubstr("positive std"));  // Zero as float32.
  EXPECT_THAT(refusal({std::numeric_limits<double>::quiet_NaN()}, {1.0}, 1), HasSubstr("finite"));
  EXPECT_THAT(refusal({1e300}, {1.0}, 1), HasSubstr("finite"));
  EXPECT_THAT(refusal({0.0}, {std::numeric_limits<double>::infinity()}, 1), HasSubstr("finite"));
  EXPECT_THAT(refusal({0.0}, {1.0}, 5), HasSubstr("5 channels"));
  EXPECT_THAT(refusal({0.0}, {1.0}, 0), HasSubstr("0 channels"));
}

}  // namespace
}  // namespace headrace::transform
