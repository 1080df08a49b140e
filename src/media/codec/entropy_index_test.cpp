#include "media/codec/entropy_index.h"

#include <headrace/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "media/codec/decode.h"
#include "media/codec/test_images.h"

namespace headrace::codec {
namespace {

const std::vector<JpegForm> kForms{
    {.name = "4:2:0"},
    {.name = "4:4:4", .h = 1, .v = 1},
    {.name = "4:2:2, optimised", .h = 2, .v = 1, .optimised = true},
    {.name = "restarts every 3 units", .restart_blocks = 3},
    {.name = "restarts every 8 units", .restart_blocks = 8},
    {.name = "4:4:0, restarts at rows", .h = 1, .v = 2, .restart_rows = 1},
};

Box random_box(int height, int width, std::mt19937& random) {
  const auto below = [&random](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
  const int y = below(height), x = below(width);
  return {y, x, 1 + below(height - y), 1 + below(width - x)};
}

Bytes decoded(Decoder& decoder, const Box& box, const EntropyIndex* index) {
  Bytes out(static_cast<std::size_t>(box.height) * box.width * 3);
  if (index != nullptr) {
    decoder.decode(box, out, *index);
  } else {
    decoder.decode(box, out);
  }
  return out;
}

EntropyIndex index_of(const Bytes& file) {
  const auto index = index_entropy(file);
  EXPECT_TRUE(index);
  return index.value_or(EntropyIndex{});
}

TEST(EntropyIndex, BoxesDecodedByItAreTheSame) {
  Decoder decoder;
  std::mt19937 random{1};
  for (const JpegForm& form : kForms) {
    for (const int width : {5, 130, 307}) {
      const Bytes file = jpeg_of(photograph(211, width, 3, 1), form);
      const EntropyIndex index = index_of(file);
      const Image whole = decoded_by_libjpeg(file, JCS_RGB, 3);
      decoder.open(file, 3);
      for (int i = 0; i < 60; ++i) {
        const Box box = random_box(211, width, random);
        ASSERT_EQ(decoded(decoder, box, &index), part_of(whole, box)) << form.name << ", " << i;
      }
    }
  }
  EXPECT_EQ(decoder.refused_indices(), 0);
}

TEST(EntropyIndex, IsTheSameWhenReadBackAndSmall) {
  for (const JpegForm& form : kForms) {
    const Bytes file = jpeg_of(photograph(211, 307, 3, 1), form);
    const EntropyIndex index = index_of(file);
    const Bytes bytes = serialise(index);
    EXPECT_EQ(parse_entropy_index(bytes), index);
    EXPECT_LT(bytes.size(), file.size() / 20) << form.name;
  }
}

TEST(EntropyIndex, IsMadeOnlyOfWholeFilesThatItIsUsedFor) {
  const Bytes file = jpeg_of(photograph(64, 64, 3, 2), {});
  EXPECT_FALSE(index_entropy({}));
  EXPECT_FALSE(index_entropy(std::span{file}.first(file.size() / 2)));
  EXPECT_FALSE(index_entropy(jpeg_of(photograph(64, 64, 3, 2), {.progressive = true})));
}

TEST(EntropyIndex, OneThatIsNotOfTheFileIsNotUsedAndCounted) {
  const Bytes file = jpeg_of(photograph(64, 96, 3, 3), {}), other = jpeg_of(photograph(64, 96, 3, 4), {});
  const EntropyIndex index = index_of(other);
  ASSERT_NE(file.size(), other.size());
  Decoder decoder;
  decoder.open(file, 3);
  const Box box{20, 20, 30, 30};
  EXPECT_EQ(decoded(decoder, box, &index), decoded(decoder, box, nullptr));
  EXPECT_EQ(decoder.refused_indices(), 1);
}

// Whatever it says, the decoder stays inside the file; the address sanitizer sees that.
TEST(EntropyIndex, AHostileOneGivesSomeImage) {
  std::mt19937 random{5};
  Decoder decoder;
  for (const JpegForm& form : kForms) {
    const Bytes file = jpeg_of(photograph(64, 307, 3, 3), form);
    const EntropyIndex good = index_of(file);
    decoder.open(file, 3);
    for (int i = 0; i < 300; ++i) {
      EntropyIndex bad = good;
      for (EntropyPosition& position : bad.positions) {
        if (random() % 3 == 0) continue;
        position.byte = static_cast<std::uint32_t>(random() % 8 == 0 ? random() : random() % (file.size() + 2));
        position.bit = static_cast<std::uint8_t>(random());
        for (auto& mean : position.means) mean = static_cast<std::int16_t>(random());
      }
      decoded(decoder, random_box(64, 307, random), &bad);
    }
    EXPECT_EQ(decoded(decoder, {0, 0, 64, 307}, nullptr), decoded_by_libjpeg(file, JCS_RGB, 3).pixels);
  }
  EXPECT_GT(decoder.refused_indices(), 100);
}

TEST(EntropyIndex, DamagedBytesAreAnErrorOrAnIndex) {
  std::mt19937 random{6};
  const Bytes file = jpeg_of(photograph(64, 307, 3, 3), {});
  const Bytes bytes = serialise(index_of(file));
  Decoder decoder;
  decoder.open(file, 3);
  int parsed = 0;
  for (int i = 0; i < 3000; ++i) {
    try {
      const EntropyIndex index = parse_entropy_index(damaged(bytes, random));
      ++parsed;
      decoded(decoder, random_box(64, 307, random), &index);
    } catch (const Error& error) {
      ASSERT_TRUE(error.code() == ErrorCode::corrupt_data || error.code() == ErrorCode::unsupported) << error.what();
      ASSERT_THAT(error.what(), testing::StartsWith("codec: an entropy index "));
    }
  }
  EXPECT_GT(parsed, 100);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(parse_entropy_index(std::span{bytes}.first(size)), Error);
  }
}

}  // namespace
}  // namespace headrace::codec
