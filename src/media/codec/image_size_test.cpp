#include "media/codec/image_size.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <headrace/error.h>

#include <string>

#include "media/codec/test_images.h"

namespace headrace::codec {
namespace {

constexpr int kHeight = 37, kWidth = 61;

struct Kind {
  std::string name;
  Bytes file;
};

// With `bytes` of comments before the frame, as editors and cameras leave them.
Bytes with_comments(const Bytes& file, std::size_t bytes) {
  Bytes made(file.begin(), file.begin() + 2);
  while (bytes > 0) {
    const std::size_t part = std::min<std::size_t>(bytes, 65'533);
    made.insert(made.end(),
                {0xFF, 0xFE, static_cast<std::uint8_t>((part + 2) >> 8), static_cast<std::uint8_t>(part + 2)});
    made.insert(made.end(), part, 0xC0);  // What looks like a frame's marker is none within a segment.
    bytes -= part;
  }
  made.insert(made.end(), {0, 7, 0xFF, 0xFF});  // Lost bytes and fill, which libjpeg leaves out, too.
  made.insert(made.end(), file.begin() + 3, file.end());
  return made;
}

std::vector<Kind> kinds() {
  const Image image = photograph(kHeight, kWidth, 3, 5);
  std::vector<Kind> all;
  for (const JpegForm& form : {JpegForm{}, JpegForm{.h = 1, .v = 1, .optimised = true, .own_tables = true},
                               JpegForm{.progressive = true}, JpegForm{.arithmetic = true}}) {
    all.push_back({fmt::format("JPEG {}", all.size()), jpeg_of(image, form)});
  }
  all.push_back({"JPEG of 4 channels", jpeg_of(photograph(kHeight, kWidth, 4, 5), {})});
  all.push_back({"JPEG with comments", with_comments(all.front().file, 200'000)});
  all.push_back({"PNG", png_of(kHeight, kWidth, image.pixels, {.text = true})});
  all.push_back({"interlaced PNG", png_of(kHeight, kWidth, image.pixels, {.interlaced = true})});
  return all;
}

// libjpeg and libpng read the same files.
TEST(ImageSize, IsThatOfTheDecoderForEveryKindOfFile) {
  Decoder decoder;
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    const HeaderSize size = header_size(kind.file);
    const ImageInfo info = decoder.open(kind.file, 3);
    EXPECT_EQ(size.wanted, 0U);
    EXPECT_EQ(size.height, info.height);
    EXPECT_EQ(size.width, info.width);
    EXPECT_EQ(size.height, kHeight);
  }
}

TEST(ImageSize, OfAFrontThatIsTooShortSaysWhatItWants) {
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    std::size_t front = 1;
    HeaderSize size = header_size(std::span{kind.file}.first(front));
    for (int reads = 1; size.wanted > 0; ++reads) {
      ASSERT_GT(size.wanted, front);
      ASSERT_LT(reads, 30);
      front = std::min(size.wanted, kind.file.size());
      size = header_size(std::span{kind.file}.first(front));
    }
    EXPECT_EQ(size.height, kHeight);
    EXPECT_LT(front, kind.name == "JPEG with comments" ? 201'000U : 1'000U);
  }
  // Whatever a file is cut to, it has its own size or none.
  const Bytes file = jpeg_of(photograph(kHeight, kWidth, 3, 5), {});
  for (std::size_t cut = 0; cut < file.size(); ++cut) {
    const HeaderSize size = header_size(std::span{file}.first(cut));
    ASSERT_TRUE(size.wanted > cut || (size.height == kHeight && size.width == kWidth)) << cut;
  }
}

TEST(ImageSize, OfWhatHasNoneIsNothing) {
  const auto has_none = [](const Bytes& file) {
    const HeaderSize size = header_size(file);
    return size.height == 0 && size.width == 0 && size.wanted == 0;
  };
  const std::string text = "not an image at all";
  EXPECT_TRUE(has_none(Bytes(text.begin(), text.end())));
  EXPECT_TRUE(has_none(Bytes(100, 0)));
  EXPECT_TRUE(has_none({0xFF, 0xD8, 0xFF, 0xDA, 0, 12, 3, 1, 0, 2, 0x11, 3, 0x11}));  // A scan before any frame.
  EXPECT_TRUE(
      has_none({0xFF, 0xD8, 0xFF, 0xE0, 0, 1, 3, 1, 0, 2, 0x11, 3, 0x11}));  // A segment shorter than its length.
  Bytes png = png_of(kHeight, kWidth, photograph(kHeight, kWidth, 3, 5).pixels, {});
  png[16] = 0x80;  // 2^31 wide.
  EXPECT_TRUE(has_none(png));
  png[12] = 'X';
  EXPECT_TRUE(has_none(png));
}

}  // namespace
}  // namespace headrace::codec
