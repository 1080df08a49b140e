#include "media/codec/baseline_reader.h"

#include <fmt/format.h>
#include <headrace/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/kernel_sets.h"
#include "media/codec/jpeg_kernels.h"
#include "media/codec/jpeg_reader.h"
#include "media/codec/test_images.h"

namespace headrace::codec::detail {
namespace {

Box random_box(int height, int width, std::mt19937& random) {
  const auto below = [&random](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
  const int y = below(height), x = below(width);
  return {y, x, 1 + below(height - y), 1 + below(width - x)};
}

Bytes space_for(const Box& box, int channels) {
  return Bytes(static_cast<std::size_t>(box.height) * box.width * channels);
}

std::string described(const Box& box) {
  return fmt::format("{} x {} at {}, {}", box.height, box.width, box.y, box.x);
}

// Of its own code: what is left to libjpeg fails the test.
void expect_equal_to_libjpeg(BaselineReader& reader, const Bytes& file, int channels, int boxes, std::mt19937& random) {
  const auto info = reader.open(file, 3);
  ASSERT_TRUE(info);
  const Image whole = decoded_by_libjpeg(file, channels == 1 ? JCS_GRAYSCALE : JCS_RGB, channels);
  reader.open(file, channels);
  for (int i = 0; i <= boxes; ++i) {
    const Box box = i == 0 ? Box{0, 0, info->height, info->width} : random_box(info->height, info->width, random);
    Bytes out = space_for(box, channels);
    ASSERT_TRUE(reader.decode(box, out)) << described(box);
    ASSERT_EQ(out, part_of(whole, box)) << described(box) << " of " << info->height << " x " << info->width;
  }
}

const std::vector<JpegForm> kForms{
    {.name = "4:4:4", .h = 1, .v = 1},
    {.name = "4:2:2", .h = 2, .v = 1},
    {.name = "4:2:0"},
    {.name = "4:4:0", .h = 1, .v = 2},
    {.name = "4:2:2, restarts at rows", .h = 2, .v = 1, .restart_rows = 1},
    {.name = "restarts every 3 units", .restart_blocks = 3},
    {.name = "4:4:4, restart each unit", .h = 1, .v = 1, .restart_blocks = 1},
    {.name = "optimised", .optimised = true},
    {.name = "4:4:4, optimised", .h = 1, .v = 1, .quality = 97, .optimised = true},
    {.name = "extended, each component its tables", .optimised = true, .own_tables = true},
};

// Of 10 forms 41 whole images and 1,040 random boxes: 10,400 boxes.
TEST(BaselineReader, EqualsLibjpegForEverySamplingSizeAndBox) {
  BaselineReader reader;
  std::mt19937 random{1};
  for (const JpegForm& form : kForms) {
    for (int i = 0; i < 40; ++i) {
      const int height = 1 + static_cast<int>(random() % 40), width = 5 + static_cast<int>(random() % 36);
      SCOPED_TRACE(form.name);
      expect_equal_to_libjpeg(reader, jpeg_of(photograph(height, width, 3, static_cast<unsigned>(random())), form), 3,
                              25, random);
      if (HasFatalFailure()) return;
    }
    expect_equal_to_libjpeg(reader, jpeg_of(photograph(211, 307, 3, 1), form), 3, 40, random);
    if (HasFatalFailure()) return;
  }
}

// ---- Shrunk ----

constexpr int kDivisors[] = {2, 4, 8};

// What it leaves to libjpeg: chroma that would be interpolated from means of whole blocks, or from two columns.
bool is_left_to_libjpeg(const JpegForm& form, int width, int divisor) {
  return form.h + form.v == 3 && (divisor == 8 || (form.h == 2 && (width + divisor - 1) / divisor <= 4));
}

void expect_equal_to_libjpegs_scaling(BaselineReader& reader, const Bytes& file, const JpegForm& form, int channels,
                                      std::mt19937& random) {
  for (const int divisor : kDivisors) {
    const auto opened = reader.open(file, channels);
    ASSERT_TRUE(opened);
    const ImageInfo info = reader.shrink(divisor);
    const Image whole = decoded_by_libjpeg(file, channels == 1 ? JCS_GRAYSCALE : JCS_RGB, channels, divisor);
    ASSERT_EQ(info.height, whole.height);
    ASSERT_EQ(info.width, whole.width);
    for (int i = 0; i < 12; ++i) {
      const Box box = i == 0 ? Box{0, 0, info.height, info.width} : random_box(info.height, info.width, random);
      Bytes out = space_for(box, channels);
      const bool decoded = reader.decode(box, out);
      ASSERT_EQ(decoded, !is_left_to_libjpeg(form, opened->width, divisor)) << form.name << " / " << divisor;
      if (!decoded) break;
      ASSERT_EQ(out, part_of(whole, box))
          << form.name << " / " << divisor << ": " << described(box) << " of " << info.height << " x " << info.width;
    }
  }
}

TEST(ShrunkByBaselineReader, EqualsLibjpegsScalingForEverySamplingSizeAndBox) {
  BaselineReader reader;
  std::mt19937 random{11};
  for (const JpegForm& form : kForms) {
    for (int i = 0; i < 40; ++i) {
      const int height = 1 + static_cast<int>(random() % 80), width = 5 + static_cast<int>(random() % 76);
      const Image image = photograph(height, width, 3, static_cast<unsigned>(random()));
      expect_equal_to_libjpegs_scaling(reader, jpeg_of(image, form), form, 3, random);
      if (HasFatalFailure()) return;
    }
    expect_equal_to_libjpegs_scaling(reader, jpeg_of(photograph(411, 507, 3, 1), form), form, 3, random);
    if (HasFatalFailure()) return;
  }
  for (int size = 1; size <= 40; ++size) {
    const JpegForm grey{.name = "grey", .h = 1, .v = 1};
    expect_equal_to_libjpegs_scaling(reader, jpeg_of(photograph(size, 41 - size, 1, 3), grey), grey, 1, random);
    if (HasFatalFailure()) return;
  }
}

TEST(ShrunkByBaselineReader, EqualsLibjpegsScalingForEveryQuality) {
  BaselineReader reader;
  std::mt19937 random{12};
  Image noise{33, 41, 3, Bytes(33 * 41 * 3)};
  for (auto& value : noise.pixels) value = random() % 2 == 0 ? 0 : 255;
  for (int quality = 1; quality <= 100; ++quality) {
    const JpegForm form{.name = "quality", .h = 1 + quality % 2, .v = 1 + quality % 2, .quality = quality};
    expect_equal_to_libjpegs_scaling(reader, jpeg_of(photograph(33, 41, 3, 5), form), form, 3, random);
    expect_equal_to_libjpegs_scaling(reader, jpeg_of(noise, form), form, 3, random);
    if (HasFatalFailure()) return;
  }
}

TEST(ShrunkByBaselineReader, EveryInstructionSetGivesTheSamePixels) {
  std::mt19937 random{13};
  for (const std::string& set : kernel_sets()) {
    SCOPED_TRACE(set);
    use_kernel_set(set);
    BaselineReader reader;
    for (const JpegForm& form : kForms) {
      expect_equal_to_libjpegs_scaling(reader, jpeg_of(photograph(75, 131, 3, 6), form), form, 3, random);
    }
  }
  use_kernel_set("");
}

TEST(ShrunkByBaselineReader, AnIndexLeadsToTheSamePixels) {
  std::mt19937 random{14};
  BaselineReader reader;
  for (const JpegForm& form : kForms) {
    const Bytes file = jpeg_of(photograph(230, 310, 3, 6), form);
    const auto index = index_entropy(file);
    ASSERT_TRUE(index);
    for (const int divisor : kDivisors) {
      reader.open(file, 3);
      const ImageInfo info = reader.shrink(divisor);
      for (int i = 0; i < 20 && !is_left_to_libjpeg(form, 310, divisor); ++i) {
        const Box box = random_box(info.height, info.width, random);
        Bytes plain = space_for(box, 3), by_index = plain;
        ASSERT_TRUE(reader.decode(box, plain));
        ASSERT_TRUE(reader.fits(*index));
        ASSERT_TRUE(reader.decode(box, by_index, &*index));
        ASSERT_EQ(plain, by_index) << form.name << " / " << divisor << ": " << described(box);
      }
    }
  }
}

// ---- As large as it is ----

TEST(BaselineReader, EqualsLibjpegForEveryQuality) {
  BaselineReader reader;
  std::mt19937 random{2};
  Image noise{33, 41, 3, Bytes(33 * 41 * 3)};
  for (auto& value : noise.pixels) value = random() % 2 == 0 ? 0 : 255;  // No image has larger coefficients.
  for (int quality = 1; quality <= 100; ++quality) {
    for (const bool baseline : {true, false}) {
      SCOPED_TRACE(quality);
      const JpegForm form{.h = 1 + quality % 2, .v = 1 + quality / 2 % 2, .quality = quality, .baseline = baseline};
      expect_equal_to_libjpeg(reader, jpeg_of(photograph(33, 41, 3, 5), form), 3, 3, random);
      expect_equal_to_libjpeg(reader, jpeg_of(noise, form), 3, 3, random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(BaselineReader, EqualsLibjpegOnGrey) {
  BaselineReader reader;
  std::mt19937 random{3};
  for (const JpegForm& form : {JpegForm{.name = "grey", .h = 1, .v = 1}, JpegForm{.name = "grey with factors"},
                               JpegForm{.name = "grey, restarts", .h = 1, .v = 1, .restart_blocks = 2}}) {
    for (int size = 1; size <= 40; ++size) {
      SCOPED_TRACE(form.name);
      expect_equal_to_libjpeg(reader, jpeg_of(photograph(size, 41 - size, 1, 3), form), 1, 20, random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(BaselineReader, EveryInstructionSetGivesTheSamePixels) {
  std::mt19937 random{4};
  for (const std::string& set : kernel_sets()) {
    SCOPED_TRACE(set);
    use_kernel_set(set);
    BaselineReader reader;
    for (const JpegForm& form : kForms) {
      expect_equal_to_libjpeg(reader, jpeg_of(photograph(75, 131, 3, 6), form), 3, 10, random);
    }
  }
  use_kernel_set("");
}

// 16-bit sums that run over, too: they do so alike.
using Transform = decltype(jpeg_passes::Kernels::inverse_transform) jpeg_passes::Kernels::*;

void expect_the_plain_transform(Transform transform, int side) {
  std::mt19937 random{5};
  use_kernel_set("plain");
  const jpeg_passes::Kernels& plain = jpeg_passes::kernels();
  for (const std::string& set : kernel_sets()) {
    use_kernel_set(set);
    const jpeg_passes::Kernels& kernels = jpeg_passes::kernels();
    const int together = kernels.together;
    for (int turn = 0; turn < 2000; ++turn) {
      const int bits = 2 + turn % 15, sparse = 1 + turn % 7;
      std::vector<std::int16_t> all(static_cast<std::size_t>(together) * 64);
      std::vector<std::uint8_t> found(static_cast<std::size_t>(together) * 64), wanted(found.size());
      for (int block = 0; block < together; ++block) {
        std::vector<std::int16_t> one(64);
        for (int i = 0; i < 64; ++i) {
          if (random() % static_cast<unsigned>(sparse) != 0) continue;
          one[static_cast<std::size_t>(i)] =
              static_cast<std::int16_t>(static_cast<int>(random() % (1U << bits)) - (1 << (bits - 1)));
          all[static_cast<std::size_t>((i / 8 * together + block) * 8 + i % 8)] = one[static_cast<std::size_t>(i)];
        }
        (plain.*transform)(one.data(), wanted.data() + block * side, together * side);
      }
      (kernels.*transform)(all.data(), found.data(), together * side);
      ASSERT_EQ(found, wanted) << set << ", " << bits << " bits";
      ASSERT_EQ(std::count(all.begin(), all.end(), 0), std::ssize(all));
    }
  }
  use_kernel_set("");
}

TEST(BaselineReader, TheTransformsArePlainOnesForAnyCoefficients) {
  expect_the_plain_transform(&jpeg_passes::Kernels::inverse_transform, 8);
  expect_the_plain_transform(&jpeg_passes::Kernels::inverse_transform_to_4, 4);
  expect_the_plain_transform(&jpeg_passes::Kernels::inverse_transform_to_2, 2);
}

TEST(BaselineReader, ShrunkBlocksAreMeansOfTheWholeOnes) {
  std::mt19937 random{6};
  use_kernel_set("plain");
  const jpeg_passes::Kernels& plain = jpeg_passes::kernels();
  for (int turn = 0; turn < 500; ++turn) {
    std::array<std::int16_t, 64> block{};
    block[0] = static_cast<std::int16_t>(random() % 800) - 400;  // Nothing reaches 0 or 255, where means would differ.
    for (int i = 0; i < 6; ++i) block[random() % 64] = static_cast<std::int16_t>(random() % 80) - 40;
    auto again = block, third = block;
    std::array<std::uint8_t, 64> whole{}, halves{}, quarters{};
    plain.inverse_transform(block.data(), whole.data(), 8);
    plain.inverse_transform_to_4(again.data(), halves.data(), 8);
    plain.inverse_transform_to_2(third.data(), quarters.data(), 8);
    for (const auto& [side, shrunk] : {std::pair{4, &halves}, std::pair{2, &quarters}}) {
      const int of = 8 / side;
      for (int y = 0; y < side; ++y) {
        for (int x = 0; x < side; ++x) {
          int sum = 0;
          for (int i = 0; i < of * of; ++i)
            sum += whole[static_cast<std::size_t>((y * of + i / of) * 8 + x * of + i % of)];
          EXPECT_NEAR((*shrunk)[static_cast<std::size_t>(y * 8 + x)], static_cast<double>(sum) / (of * of), 1.0);
        }
      }
    }
  }
  use_kernel_set("");
}

TEST(BaselineReader, EveryColourOfEveryInstructionSetIsThePlainOne) {
  use_kernel_set("plain");
  const jpeg_passes::Kernels& plain = jpeg_passes::kernels();
  Bytes luma(256 + 128), blue(luma.size()), red(luma.size());
  std::iota(luma.begin(), luma.end(), std::uint8_t{0});
  for (const std::string& set : kernel_sets()) {
    use_kernel_set(set);
    const jpeg_passes::Kernels& kernels = jpeg_passes::kernels();
    for (int colour = 0; colour < 65'536; ++colour) {
      std::fill(blue.begin(), blue.end(), static_cast<std::uint8_t>(colour / 256));
      std::fill(red.begin(), red.end(), static_cast<std::uint8_t>(colour % 256));
      Bytes found(3 * 256 + 3), wanted(found.size());
      const std::ptrdiff_t count = 256 - colour % 255;
      const std::size_t first = static_cast<std::size_t>(colour % 255);
      kernels.rgb(luma.data() + first, blue.data(), red.data(), count, found.data());
      plain.rgb(luma.data() + first, blue.data(), red.data(), count, wanted.data());
      ASSERT_EQ(found, wanted) << set << ", " << colour;
    }
  }
  use_kernel_set("");
}

TEST(BaselineReader, LeavesOtherFilesToLibjpeg) {
  const Image image = photograph(40, 40, 3, 7);
  BaselineReader reader;
  for (const JpegForm& form :
       {JpegForm{.name = "progressive", .progressive = true}, JpegForm{.name = "arithmetic", .arithmetic = true},
        JpegForm{.name = "4:1:1", .h = 4, .v = 1}, JpegForm{.name = "RGB", .h = 1, .v = 1, .stored = JCS_RGB}}) {
    EXPECT_FALSE(reader.open(jpeg_of(image, form), 3)) << form.name;
  }
  EXPECT_FALSE(reader.open(jpeg_of(photograph(40, 40, 4, 7), {.stored = JCS_YCCK}), 3));
  EXPECT_FALSE(reader.open(jpeg_of(photograph(40, 4, 3, 7), {}), 3)) << "too narrow to be interpolated";
  const Bytes file = jpeg_of(image, {});
  EXPECT_TRUE(reader.open(file, 3));
  for (std::size_t size = 0; size < 600; ++size) EXPECT_FALSE(reader.open(std::span{file}.first(size), 3));
}

// What is decoded of a damaged file is what libjpeg decodes of it, and libjpeg does not complain.
TEST(BaselineReader, AgreesWithLibjpegOnDamagedFilesOrLeavesThemToIt) {
  constexpr int kDamages = 1500;
  std::mt19937 random{8};
  BaselineReader reader;
  JpegReader libjpeg;
  int decoded = 0, left = 0;
  for (const JpegForm& form : kForms) {
    const Bytes file = jpeg_of(photograph(61, 83, 3, 14), form);
    for (int i = 0; i < kDamages; ++i) {
      // Read where it lies, so that the address sanitizer sees its end.
      const Bytes bytes = damaged(file, random);
      if (!JpegReader::recognises(bytes)) continue;
      const auto info = reader.open(bytes, 3);
      if (!info || static_cast<std::int64_t>(info->height) * info->width > 1'000'000) continue;
      // As far as the last unit, or libjpeg would read further than we do.
      const Box part = random_box(info->height, info->width, random);
      const Box box{part.y, part.x, info->height - part.y, info->width - part.x};
      Bytes found = space_for(box, 3), wanted = found;
      if (!reader.decode(box, found)) {
        ++left;
        continue;
      }
      ++decoded;
      try {
        libjpeg.open(bytes, 3);
        libjpeg.decode(box, wanted);
      } catch (const Error& error) {
        ADD_FAILURE() << form.name << ", " << i << ": " << error.what();
        continue;
      }
      EXPECT_TRUE(found == wanted) << form.name << ", " << i;
    }
  }
  EXPECT_GT(decoded, 1000);
  EXPECT_GT(left, 1000);
}

}  // namespace
}  // namespace headrace::codec::detail
