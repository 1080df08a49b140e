#include "media/codec/decode.h"

#include <fmt/format.h>
#include <headrace/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "media/codec/test_images.h"

namespace headrace::codec {
namespace {

using testing::HasSubstr;

Bytes decoded(Decoder& decoder, const Bytes& file, int channels, std::optional<Box> box = {}) {
  const ImageInfo info = decoder.open(file, channels);
  EXPECT_EQ(info.channels, channels);
  if (!box) box = Box{0, 0, info.height, info.width};
  Bytes out(static_cast<std::size_t>(box->height) * box->width * channels + 2, 77);
  decoder.decode(*box, std::span{out}.subspan(1, out.size() - 2));
  EXPECT_EQ(out.front(), 77);
  EXPECT_EQ(out.back(), 77);
  return {out.begin() + 1, out.end() - 1};
}

Bytes decoded_afresh(const Bytes& file, int channels) {
  Decoder decoder;
  return decoded(decoder, file, channels);
}

// "code: message" of what opening or decoding the whole throws; "decoded" when it does not.
std::string refusal(const Bytes& file, int channels = 3) {
  Decoder decoder;
  try {
    decoded(decoder, file, channels);
    return "decoded";
  } catch (const Error& error) {
    return fmt::format("{}: {}", to_string(error.code()), error.what());
  }
}

std::vector<Box> boxes_of(int height, int width, int random_boxes) {
  std::vector<Box> boxes{{0, 0, height, width}, {0, 0, 1, 1}, {height - 1, width - 1, 1, 1}, {height / 2, 0, 1, width}};
  for (int x = 0; x < width; x += width / 40 + 1) {  // Narrow ones everywhere, and as far as both sides.
    for (int narrow = 1; narrow <= std::min(4, width - x); ++narrow) boxes.push_back({0, x, height, narrow});
    boxes.push_back({height / 3, x, height - height / 3, width - x});
    boxes.push_back({0, 0, (height + 1) / 2, x + 1});
  }
  std::mt19937 random{static_cast<unsigned>(height * 1000 + width)};
  const auto below = [&random](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
  for (int i = 0; i < random_boxes; ++i) {
    const int y = below(height), x = below(width);
    boxes.push_back({y, x, 1 + below(height - y), 1 + below(width - x)});
  }
  return boxes;
}

void expect_boxes_equal_the_whole(const Bytes& file, const Image& whole, int random_boxes, const std::string& what) {
  Decoder decoder;
  for (const Box& box : boxes_of(whole.height, whole.width, random_boxes)) {
    ASSERT_EQ(decoded(decoder, file, whole.channels, box), part_of(whole, box))
        << what << ", " << box.height << " x " << box.width << " at " << box.y << ", " << box.x << " of "
        << whole.height << " x " << whole.width;
  }
}

// ---- JPEG ----

const std::vector<JpegForm> kColorForms{
    {.name = "4:4:4", .h = 1, .v = 1},
    {.name = "4:2:2", .h = 2, .v = 1},
    {.name = "4:2:0"},
    {.name = "4:4:0", .h = 1, .v = 2},
    {.name = "4:1:1", .h = 4, .v = 1},
    {.name = "4:1:0", .h = 4, .v = 2},
    {.name = "quality 30", .quality = 30},
    {.name = "quality 100", .quality = 100},
    {.name = "optimised", .optimised = true},
    {.name = "4:2:2, restarts at rows", .h = 2, .v = 1, .restart_rows = 1},
    {.name = "restarts every 3 blocks", .restart_blocks = 3},
    {.name = "4:4:4, restart each block", .h = 1, .v = 1, .restart_blocks = 1},
    {.name = "progressive", .progressive = true},
    {.name = "progressive 4:4:4", .h = 1, .v = 1, .progressive = true},
    {.name = "progressive, first scan only", .progressive = true, .first_scan_only = true},
    {.name = "arithmetic", .arithmetic = true},
    {.name = "arithmetic, progressive", .progressive = true, .arithmetic = true},
    {.name = "RGB", .h = 1, .v = 1, .stored = JCS_RGB},
    {.name = "RGB, more of red", .stored = JCS_RGB},
};

const std::vector<std::pair<int, int>> kSizes{{1, 1},  {2, 3},  {7, 9},  {16, 16}, {33, 47},
                                              {1, 40}, {40, 1}, {5, 17}, {64, 63}, {75, 131}};

TEST(DecoderOnJpeg, EqualsLibjpegForEveryFormSizeAndBox) {
  for (const JpegForm& form : kColorForms) {
    for (const auto& [height, width] : kSizes) {
      const Bytes file = jpeg_of(photograph(height, width, 3, 1), form);
      expect_boxes_equal_the_whole(file, decoded_by_libjpeg(file, JCS_RGB, 3), 60, form.name);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(DecoderOnJpeg, EqualsLibjpegOnPhotographSizes) {
  for (const JpegForm& form : kColorForms) {
    const Bytes file = jpeg_of(photograph(375, 500, 3, 2), form);
    expect_boxes_equal_the_whole(file, decoded_by_libjpeg(file, JCS_RGB, 3), 40, form.name);
    if (HasFatalFailure()) return;
  }
}

TEST(DecoderOnJpeg, GreyStaysGreyOrIsRepeated) {
  for (const JpegForm& form : {JpegForm{.name = "grey", .h = 1, .v = 1}, JpegForm{.name = "grey with odd factors"},
                               JpegForm{.name = "grey, progressive", .h = 1, .v = 1, .progressive = true}}) {
    for (const auto& [height, width] : kSizes) {
      const Bytes file = jpeg_of(photograph(height, width, 1, 3), form);
      const Image grey = decoded_by_libjpeg(file, JCS_GRAYSCALE, 1);
      expect_boxes_equal_the_whole(file, grey, 30, form.name);
      Image repeated{height, width, 3, {}};
      for (const std::uint8_t value : grey.pixels) repeated.pixels.insert(repeated.pixels.end(), 3, value);
      expect_boxes_equal_the_whole(file, repeated, 30, form.name);
      if (HasFatalFailure()) return;
    }
  }
}

Image luma_of(const Image& rgb) {
  Image grey{rgb.height, rgb.width, 1, {}};
  for (std::size_t i = 0; i < rgb.pixels.size(); i += 3) {
    const double red = rgb.pixels[i], green = rgb.pixels[i + 1], blue = rgb.pixels[i + 2];
    grey.pixels.push_back(static_cast<std::uint8_t>(0.299 * red + 0.587 * green + 0.114 * blue + 0.5));
  }
  return grey;
}

TEST(DecoderOnJpeg, ColorBecomesGreyByItsLuma) {
  const Bytes file = jpeg_of(photograph(75, 131, 3, 4), {});
  const Image wanted = luma_of(decoded_by_libjpeg(file, JCS_RGB, 3));
  const Bytes found = decoded_afresh(file, 1);
  ASSERT_EQ(found.size(), wanted.pixels.size());
  for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], wanted.pixels[i], 1);  // 16-bit weights.
  expect_boxes_equal_the_whole(file, {75, 131, 1, found}, 40, "luma");
}

// Inks are stored inverted: 255 is none. Pillow takes every CMYK JPEG for one of Adobe's.
TEST(DecoderOnJpeg, CmykIsInkOnWhite) {
  for (const JpegForm& form : {JpegForm{.name = "Adobe", .h = 1, .v = 1}, JpegForm{.name = "YCCK", .stored = JCS_YCCK},
                               JpegForm{.name = "no marker", .h = 1, .v = 1, .adobe_marker = false}}) {
    const Bytes file = jpeg_of(photograph(33, 47, 4, 5), form);
    const Image inks = decoded_by_libjpeg(file, JCS_CMYK, 4);
    Image rgb{33, 47, 3, {}};
    for (std::size_t i = 0; i < inks.pixels.size(); i += 4) {
      for (std::size_t c = 0; c < 3; ++c) {
        const double light = inks.pixels[i + c] / 255.0 * inks.pixels[i + 3];
        rgb.pixels.push_back(static_cast<std::uint8_t>(light + 0.5));
      }
    }
    const Bytes found = decoded_afresh(file, 3);
    ASSERT_EQ(found.size(), rgb.pixels.size());
    for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], rgb.pixels[i], 1) << form.name;
    expect_boxes_equal_the_whole(file, {33, 47, 3, found}, 40, form.name);
    const Image grey = luma_of({33, 47, 3, found});
    const Bytes found_grey = decoded_afresh(file, 1);
    for (std::size_t i = 0; i < found_grey.size(); ++i) ASSERT_NEAR(found_grey[i], grey.pixels[i], 1) << form.name;
  }
}

TEST(DecoderOnJpeg, IsRefusedWhereItEndsEarly) {
  for (const JpegForm& form :
       {JpegForm{}, JpegForm{.progressive = true}, JpegForm{.restart_rows = 1}, JpegForm{.arithmetic = true}}) {
    const Bytes file = jpeg_of(photograph(120, 160, 3, 6), form);
    for (std::size_t size = 0; size + 64 < file.size(); size += 64) {
      const Bytes cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
      ASSERT_THAT(refusal(cut), testing::StartsWith("corrupt_data: codec: ")) << size << " of " << file.size();
    }
  }
}

TEST(DecoderOnJpeg, ReadsNoFurtherThanTheBox) {
  const Bytes file = jpeg_of(photograph(320, 200, 3, 7), {});
  const Bytes cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(file.size() * 3 / 4));
  const Image whole = decoded_by_libjpeg(file, JCS_RGB, 3);
  Decoder decoder;
  for (const Box& box : {Box{0, 0, 100, 200}, Box{120, 30, 80, 100}}) {
    EXPECT_EQ(decoded(decoder, cut, 3, box), part_of(whole, box));
  }
  EXPECT_THROW(decoded(decoder, cut, 3, Box{300, 0, 10, 10}), Error);
}

std::size_t find_marker(const Bytes& file, std::uint8_t marker) {
  for (std::size_t i = 0; i + 1 < file.size(); ++i) {
    if (file[i] == 0xFF && file[i + 1] == marker) return i;
  }
  ADD_FAILURE() << "no marker " << int{marker};
  return 0;
}

// The file without its segments of that marker.
Bytes without(Bytes file, std::uint8_t marker, int count) {
  for (int i = 0; i < count; ++i) {
    const auto at = file.begin() + static_cast<std::ptrdiff_t>(find_marker(file, marker));
    file.erase(at, at + 2 + at[2] * 256 + at[3]);
  }
  return file;
}

Bytes with_dimensions(Bytes file, int height, int width) {
  const std::size_t at = find_marker(file, 0xC0);
  for (const auto& [offset, value] : {std::pair{5, height >> 8}, {6, height}, {7, width >> 8}, {8, width}}) {
    file[at + static_cast<std::size_t>(offset)] = static_cast<std::uint8_t>(value);
  }
  return file;
}

long peak_memory_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

TEST(DecoderOnJpeg, HugeDimensionsAreRefusedBeforeAnyMemoryIsTaken) {
  const Bytes file = jpeg_of(photograph(16, 16, 3, 8), {});
  const long before = peak_memory_kib();
  EXPECT_THAT(refusal(with_dimensions(file, 65'535, 65'535)),
              HasSubstr("unsupported: codec: JPEG header: Maximum supported image dimension is 65500 pixels"));
  EXPECT_THAT(refusal(with_dimensions(file, 65'500, 65'500)),
              HasSubstr("JPEG of 65500 x 65500: 4290250000 pixels; wanted at most 178956970 (data.max_pixels)"));
  Bytes progressive = with_dimensions(file, 7000, 7000);
  progressive[find_marker(progressive, 0xC0) + 1] = 0xC2;
  EXPECT_THAT(refusal(progressive),
              HasSubstr("progressive JPEG of 7000 x 7000: 49000000 pixels; wanted at most 44739242 (a quarter of"));
  EXPECT_LT(peak_memory_kib() - before, 16 * 1024);
  Decoder decoder;  // A large image is none to fear when a part is wanted: what is needed is some rows.
  EXPECT_EQ(decoder.open(with_dimensions(file, 2000, 65'500), 3).width, 65'500);
}

TEST(DecoderOnJpeg, OtherKindsAreNamed) {
  const Bytes file = jpeg_of(photograph(16, 16, 3, 9), {});
  const std::size_t frame = find_marker(file, 0xC0);
  Bytes deep = file;
  deep[frame + 4] = 12;
  EXPECT_THAT(refusal(deep), HasSubstr("unsupported: codec: JPEG header: Unsupported JPEG data precision 12"));
  Bytes lossless = file;
  lossless[frame + 1] = 0xC3;
  EXPECT_THAT(refusal(lossless), HasSubstr("unsupported: codec: JPEG header: Unsupported JPEG process"));
  EXPECT_THAT(refusal(jpeg_of(photograph(16, 16, 2, 9), {})),
              HasSubstr("unsupported: codec: JPEG of 2 colour components"));
}

// Each scan of an endless progressive file makes the decoder go over the whole image.
TEST(DecoderOnJpeg, ThousandsOfScansAreRefused) {
  Bytes file = jpeg_of(photograph(16, 16, 3, 10), {.progressive = true});
  const std::size_t begin = find_marker(file, 0xDA);  // The first scan, which can be read again and again.
  std::size_t end = begin + 2;
  while (file[end] != 0xFF || file[end + 1] == 0) ++end;
  const Bytes scan(file.begin() + static_cast<std::ptrdiff_t>(begin), file.begin() + static_cast<std::ptrdiff_t>(end));
  const Bytes wanted = decoded_afresh(file, 3);
  const auto repeat = [&](int times) {
    for (int i = 0; i < times; ++i)
      file.insert(file.begin() + static_cast<std::ptrdiff_t>(end), scan.begin(), scan.end());
  };
  repeat(80);
  EXPECT_EQ(decoded_afresh(file, 3), wanted);
  repeat(2000);
  EXPECT_EQ(refusal(file), "unsupported: codec: JPEG data: more than 100 scans");
}

// ---- Shrunk ----

TEST(DecoderOnJpeg, ShrunkEqualsLibjpegsScalingForEveryFormSizeAndBox) {
  Decoder decoder;
  for (const JpegForm& form : kColorForms) {
    for (const auto& [height, width] : {std::pair{1, 1}, {7, 9}, {33, 47}, {5, 17}, {64, 63}, {75, 131}, {201, 160}}) {
      const Bytes file = jpeg_of(photograph(height, width, 3, 1), form);
      for (const int divisor : {1, 2, 4, 8}) {
        const Image whole = decoded_by_libjpeg(file, JCS_RGB, 3, divisor);
        std::vector<Box> boxes = boxes_of(whole.height, whole.width, 10);
        std::shuffle(boxes.begin() + 3, boxes.end(), std::mt19937{1});
        boxes.resize(std::min<std::size_t>(boxes.size(), 24));
        for (const Box& box : boxes) {
          decoder.open(file, 3);
          ASSERT_TRUE(decoder.can_shrink());
          const ImageInfo info = decoder.shrink(divisor);
          ASSERT_EQ(info.height, whole.height);
          ASSERT_EQ(info.width, whole.width);
          Bytes out(static_cast<std::size_t>(box.height) * box.width * 3);
          decoder.decode(box, out);
          ASSERT_EQ(out, part_of(whole, box))
              << form.name << " / " << divisor << ", " << box.height << " x " << box.width << " at " << box.y << ", "
              << box.x << " of " << height << " x " << width;
          decoder.decode(box, out);  // Again, which libjpeg needs a new beginning for.
          ASSERT_EQ(out, part_of(whole, box));
        }
      }
    }
  }
}

TEST(DecoderOnJpeg, TheNextImageIsNotShrunk) {
  const Image image = photograph(40, 50, 3, 1);
  for (const JpegForm& form : {JpegForm{}, JpegForm{.progressive = true}}) {
    const Bytes file = jpeg_of(image, form);
    const Bytes wanted = decoded_afresh(file, 3);
    Decoder decoder;
    decoder.open(file, 3);
    EXPECT_EQ(decoder.shrink(4).width, 13);
    EXPECT_EQ(decoded(decoder, file, 3), wanted);
  }
}

TEST(DecoderOnPng, CannotBeShrunk) {
  Decoder decoder;
  decoder.open(png_of(3, 4, Bytes(36), {}), 3);
  EXPECT_FALSE(decoder.can_shrink());
}

// A file without tables has the standard ones, or none at all: never those of the image before.
TEST(DecoderOnJpeg, TablesOfTheImageBeforeAreForgotten) {
  const Image image = photograph(64, 64, 3, 11);
  const Bytes standard = jpeg_of(image, {});
  const Bytes other = jpeg_of(image, {.quality = 30, .optimised = true});
  const Bytes without_huffman = without(standard, 0xC4, 4);
  const Bytes without_quantisation = without(standard, 0xDB, 2);
  Decoder decoder;
  decoded(decoder, other, 3);
  EXPECT_EQ(decoded(decoder, without_huffman, 3), decoded_afresh(standard, 3));
  EXPECT_THROW(decoded(decoder, without_quantisation, 3), Error);
}

// ---- PNG ----

struct PngKind {
  int color, depth, samples;
};
const std::vector<PngKind> kPngKinds{
    {PNG_COLOR_TYPE_GRAY, 1, 1},        {PNG_COLOR_TYPE_GRAY, 2, 1},      {PNG_COLOR_TYPE_GRAY, 4, 1},
    {PNG_COLOR_TYPE_GRAY, 8, 1},        {PNG_COLOR_TYPE_GRAY, 16, 1},     {PNG_COLOR_TYPE_RGB, 8, 3},
    {PNG_COLOR_TYPE_RGB, 16, 3},        {PNG_COLOR_TYPE_PALETTE, 1, 1},   {PNG_COLOR_TYPE_PALETTE, 2, 1},
    {PNG_COLOR_TYPE_PALETTE, 4, 1},     {PNG_COLOR_TYPE_PALETTE, 8, 1},   {PNG_COLOR_TYPE_GRAY_ALPHA, 8, 2},
    {PNG_COLOR_TYPE_GRAY_ALPHA, 16, 2}, {PNG_COLOR_TYPE_RGB_ALPHA, 8, 4}, {PNG_COLOR_TYPE_RGB_ALPHA, 16, 4},
};

struct PngImage {
  Bytes file;
  Image rgb;
};

// Random samples, and what they mean as RGB.
PngImage random_png(const PngKind& kind, bool interlaced, int height, int width) {
  std::mt19937 random{static_cast<unsigned>(kind.color * 100 + kind.depth * 10 + height + width)};
  PngForm form{.color = kind.color, .depth = kind.depth, .interlaced = interlaced, .text = true};
  if (kind.color == PNG_COLOR_TYPE_PALETTE) {
    form.palette.resize(std::size_t{1} << kind.depth);
    for (auto& entry : form.palette) {
      entry = {static_cast<png_byte>(random()), static_cast<png_byte>(random()), static_cast<png_byte>(random())};
    }
    form.transparency = {0, 100};
  }
  const std::size_t stride = (static_cast<std::size_t>(width * kind.samples * kind.depth) + 7) / 8;
  Bytes rows(stride * static_cast<std::size_t>(height));
  for (auto& byte : rows) byte = static_cast<std::uint8_t>(random());
  Image rgb{height, width, 3, {}};
  for (int y = 0; y < height; ++y) {
    const std::uint8_t* row = rows.data() + static_cast<std::size_t>(y) * stride;
    const auto sample = [&](int x, int s) {
      const int bit = (x * kind.samples + s) * kind.depth;
      if (kind.depth == 16) return row[bit / 8] * 256 + row[bit / 8 + 1];
      return row[bit / 8] >> (8 - kind.depth - bit % 8) & ((1 << kind.depth) - 1);
    };
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < 3; ++c) {
        const int value = sample(x, (kind.color & PNG_COLOR_MASK_COLOR) != 0 && kind.samples >= 3 ? c : 0);
        int out = kind.depth == 16 ? value >> 8 : value * 255 / ((1 << kind.depth) - 1);
        if (kind.color == PNG_COLOR_TYPE_GRAY && kind.depth == 16) out = std::min(value, 255);
        if (kind.color == PNG_COLOR_TYPE_PALETTE) {
          const png_color& entry = form.palette[static_cast<std::size_t>(value)];
          out = c == 0 ? entry.red : c == 1 ? entry.green : entry.blue;
        }
        rgb.pixels.push_back(static_cast<std::uint8_t>(out));
      }
    }
  }
  return {png_of(height, width, rows, form), rgb};
}

TEST(DecoderOnPng, EveryKindBecomesRgbOrGrey) {
  for (const PngKind& kind : kPngKinds) {
    for (const bool interlaced : {false, true}) {
      for (const auto& [height, width] : kSizes) {
        const PngImage png = random_png(kind, interlaced, height, width);
        const std::string what = fmt::format("color {}, {} bits, interlaced {}", kind.color, kind.depth, interlaced);
        expect_boxes_equal_the_whole(png.file, png.rgb, 10, what);
        const Image grey = luma_of(png.rgb);
        const Bytes found = decoded_afresh(png.file, 1);
        for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], grey.pixels[i], 1) << what;
        expect_boxes_equal_the_whole(png.file, {height, width, 1, found}, 10, what);
        if (HasFatalFailure()) return;
      }
    }
  }
}

Bytes any_png(bool interlaced = false) {
  return random_png({PNG_COLOR_TYPE_RGB, 8, 3}, interlaced, 75, 131).file;
}

TEST(DecoderOnPng, IsRefusedWhereItEndsEarly) {
  for (const bool interlaced : {false, true}) {
    const Bytes file = any_png(interlaced);
    for (std::size_t size = 0; size < file.size(); size += 64) {
      const Bytes cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
      ASSERT_THAT(refusal(cut), testing::StartsWith("corrupt_data: codec: ")) << size << " of " << file.size();
    }
    EXPECT_THAT(refusal({file.begin(), file.end() - 1}), HasSubstr("the file ends early"));
  }
}

std::size_t find_chunk(const Bytes& file, const std::string& name) {
  const auto at = std::search(file.begin(), file.end(), name.begin(), name.end());
  EXPECT_NE(at, file.end()) << name;
  return static_cast<std::size_t>(at - file.begin());
}

TEST(DecoderOnPng, ADamagedChecksumIsFoundWhereItMatters) {
  const Bytes good = random_png({PNG_COLOR_TYPE_PALETTE, 8, 1}, false, 75, 131).file;
  for (const auto& [chunk, wanted] : {std::pair{"IHDR", "PNG header: IHDR: CRC error"},
                                      {"PLTE", "PNG header: PLTE: CRC error"},
                                      {"IDAT", "PNG data: IDAT: CRC error"},
                                      {"tEXt", "decoded"}}) {
    Bytes file = good;
    const std::size_t at = find_chunk(file, chunk);
    std::size_t length = 0;
    for (std::size_t i = at - 4; i < at; ++i) length = length * 256 + file[i];
    file[at + 4 + length] ^= 1;  // The checksum's first byte.
    EXPECT_THAT(refusal(file), HasSubstr(wanted));
  }
}

Bytes png_with_dimensions(Bytes file, std::uint32_t height, std::uint32_t width) {
  const std::size_t at = find_chunk(file, "IHDR");
  for (std::size_t i = 0; i < 4; ++i) {
    file[at + 4 + i] = static_cast<std::uint8_t>(width >> (24 - 8 * i));
    file[at + 8 + i] = static_cast<std::uint8_t>(height >> (24 - 8 * i));
  }
  std::uint32_t crc = 0xFFFFFFFF;
  for (std::size_t i = at; i < at + 17; ++i) {
    crc ^= file[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xEDB88320 : 0);
  }
  for (std::size_t i = 0; i < 4; ++i) file[at + 17 + i] = static_cast<std::uint8_t>(~crc >> (24 - 8 * i));
  return file;
}

TEST(DecoderOnPng, HugeDimensionsAreRefusedBeforeAnyMemoryIsTaken) {
  const long before = peak_memory_kib();
  EXPECT_THAT(refusal(png_with_dimensions(any_png(), 0x7FFFFFFF, 0x7FFFFFFF)),
              HasSubstr("PNG of 2147483647 x 2147483647: 4611686014132420609 pixels; wanted at most 178956970"));
  EXPECT_THAT(refusal(png_with_dimensions(any_png(), 65'535, 65'535)),
              HasSubstr("unsupported: codec: PNG of 65535 x 65535"));
  EXPECT_THAT(refusal(png_with_dimensions(any_png(), 1, 65'536)), HasSubstr("and 65535 a side"));
  EXPECT_THAT(refusal(png_with_dimensions(any_png(true), 7000, 7000)),
              HasSubstr("interlaced PNG of 7000 x 7000: 49000000 pixels; wanted at most 44739242 (a quarter of"));
  EXPECT_THAT(refusal(png_with_dimensions(any_png(), 0, 5)), HasSubstr("corrupt_data: codec: PNG header"));
  EXPECT_THAT(refusal(png_with_dimensions(any_png(), 2000, 60'000)),
              HasSubstr("corrupt_data: codec: PNG of 2000 x 60000: 360000000 bytes of pixels; a file of "));
  // Allowed, but the pixels are not there: what is read is found to be too little.
  Decoder decoder;
  const Bytes liar = png_with_dimensions(any_png(), 300, 30'000);
  decoder.open(liar, 3);
  Bytes out(3);
  EXPECT_THROW(decoder.decode({299, 0, 1, 1}, out), Error);
  EXPECT_LT(peak_memory_kib() - before, 16 * 1024);
}

// ---- Whatever a file may be ----

Bytes bytes_of(std::string_view text) {
  return {text.begin(), text.end()};
}

TEST(Decoder, SaysWhatAFileIsThatIsNoImage) {
  EXPECT_EQ(refusal({}), "corrupt_data: codec: a file of 0 bytes; wanted a JPEG or PNG");
  EXPECT_EQ(refusal(bytes_of("<html>not found</html>")),
            "corrupt_data: codec: not a JPEG or PNG: 22 bytes that begin with \"<html>not found<\"");
  EXPECT_EQ(refusal(bytes_of(std::string_view("\0\x01\xFF", 3))),
            "corrupt_data: codec: not a JPEG or PNG: 3 bytes that begin with 00 01 ff");
  EXPECT_EQ(refusal({0xFF, 0xD8}), "corrupt_data: codec: not a JPEG or PNG: 2 bytes that begin with ff d8");
  EXPECT_EQ(refusal(bytes_of("GIF89a...")), "unsupported: codec: a GIF file; wanted a JPEG or PNG");
  EXPECT_EQ(refusal(bytes_of("RIFF....WEBPVP8 ")), "unsupported: codec: a WebP file; wanted a JPEG or PNG");
  EXPECT_EQ(refusal({0xFF, 0xD8, 0xFF}), "corrupt_data: codec: JPEG header: Premature end of JPEG file");
  EXPECT_EQ(refusal(jpeg_of(photograph(8, 8, 3, 1), {}), 2),
            "invalid_argument: codec: images decoded to 2 channels; wanted 1 or 3");
}

TEST(Decoder, DecodesTheOpenImageAsOftenAsAsked) {
  for (const Bytes& file : {jpeg_of(photograph(75, 131, 3, 12), {}), any_png(), any_png(true)}) {
    Decoder decoder;
    decoder.open(any_png(), 3);
    const ImageInfo info = decoder.open(file, 3);
    Bytes first(static_cast<std::size_t>(info.height) * info.width * 3), second(first.size());
    decoder.decode({0, 0, info.height, info.width}, first);
    decoder.decode({0, 0, info.height, info.width}, second);
    EXPECT_EQ(first, second);
    EXPECT_EQ(first, decoded_afresh(file, 3));
  }
}

TEST(Decoder, CanBeMoved) {
  const Bytes file = jpeg_of(photograph(33, 47, 3, 13), {});
  Decoder first;
  first.open(file, 3);
  Decoder second = std::move(first);
  Bytes out(33 * 47 * 3);
  second.decode({0, 0, 33, 47}, out);
  EXPECT_EQ(out, decoded_afresh(file, 3));
}

// Decodes a box that needs little memory whatever the header says. An image or an Error, in bounded time; and the
// decoder is none the worse.
void expect_an_image_or_an_error(Decoder& decoder, const Bytes& file, std::mt19937& random, int& decoded_count) {
  try {
    const int channels = random() % 4 == 0 ? 1 : 3;
    const ImageInfo info = decoder.open(file, channels);
    const bool large = static_cast<std::int64_t>(info.height) * info.width > 40'000;
    const int y = large ? static_cast<int>(random() % static_cast<unsigned>(std::min(info.height, 200))) : 0;
    const int x = large ? static_cast<int>(random() % static_cast<unsigned>(info.width)) : 0;
    const Box box{y, x, std::min(info.height - y, large ? 20 : info.height), std::min(info.width - x, 200)};
    Bytes out(static_cast<std::size_t>(box.height) * box.width * channels);
    decoder.decode(box, out);
    ++decoded_count;
  } catch (const Error& error) {
    ASSERT_TRUE(error.code() == ErrorCode::corrupt_data || error.code() == ErrorCode::unsupported) << error.what();
    ASSERT_THAT(error.what(), testing::StartsWith("codec: "));
    ASSERT_THAT(error.what(), testing::Not(HasSubstr("\n")));
  }
}

TEST(Decoder, DamagedFilesGiveAnImageOrAnError) {
  constexpr int kDamages = 1000;
  std::vector<Bytes> files;
  for (const JpegForm& form : {JpegForm{}, JpegForm{.h = 2, .v = 1, .restart_blocks = 2}, JpegForm{.progressive = true},
                               JpegForm{.arithmetic = true}, JpegForm{.h = 4, .v = 1, .optimised = true}}) {
    files.push_back(jpeg_of(photograph(61, 83, 3, 14), form));
  }
  files.push_back(jpeg_of(photograph(61, 83, 1, 15), {.h = 1, .v = 1}));
  files.push_back(jpeg_of(photograph(61, 83, 4, 16), {.stored = JCS_YCCK}));
  for (const PngKind& kind : kPngKinds) {
    for (const bool interlaced : {false, true}) files.push_back(random_png(kind, interlaced, 61, 83).file);
  }
  std::mt19937 random{17};
  Decoder decoder;
  int decoded_count = 0;
  for (const Bytes& file : files) {
    const Bytes wanted = decoded_afresh(file, 3);
    for (int i = 0; i < kDamages; ++i) {
      expect_an_image_or_an_error(decoder, damaged(file, random), random, decoded_count);
      if (HasFatalFailure()) return;
    }
    ASSERT_EQ(decoded(decoder, file, 3), wanted);
  }
  EXPECT_GT(decoded_count, 100);  // Some damage cannot be seen: that the pixels were looked at at all.
}

TEST(DecoderDeathTest, StopsAtABoxOutsideTheImage) {
  const Bytes file = jpeg_of(photograph(8, 9, 3, 18), {});
  Decoder decoder;
  Bytes out(3);
  EXPECT_DEATH(decoder.decode({0, 0, 1, 1}, out), "without an open image");
  decoder.open(file, 3);
  EXPECT_DEATH(decoder.decode({7, 9, 1, 1}, out), "1 x 1 pixels at 7, 9 of an image of 8 x 9");
  EXPECT_DEATH(decoder.decode({0, 0, 0, 1}, out), "0 x 1 pixels");
  EXPECT_DEATH(decoder.decode({0, 0, 1, 2}, out), "3 bytes for 1 x 2 pixels");
}

}  // namespace
}  // namespace headrace::codec
