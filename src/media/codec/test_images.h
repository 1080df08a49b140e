// Images and files of them for tests and benches, made by libjpeg and libpng. Their errors end the program.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>  // jpeglib.h uses FILE and does not include it.
#include <cstdlib>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include <jpeglib.h>
#include <png.h>
#include <zlib.h>

#include "media/codec/decode.h"

namespace headrace::codec {

using Bytes = std::vector<std::uint8_t>;

struct Image {
  int height, width, channels;
  Bytes pixels;  // HWC.
};

// Smooth colours, a hard edge and noise: what a codec must handle, and what shows where it does not.
inline Image photograph(int height, int width, int channels, unsigned seed) {
  std::mt19937 random{seed};
  Image image{height, width, channels, Bytes(static_cast<std::size_t>(height) * width * channels)};
  std::size_t at = 0;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const bool edge = (x * 3 + y * 2 + static_cast<int>(seed)) % 71 < 20;
      for (int c = 0; c < channels; ++c) {
        const double wave = std::sin((x + 7 * c) * 0.07 * (c + 1) + seed) + std::cos(y * 0.05 * (3 - c) + c);
        const double value = 128 + 50 * wave + (edge ? 40 * (c - 1) : 0) + static_cast<double>(random() % 25) - 12;
        image.pixels[at++] = static_cast<std::uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
      }
    }
  }
  return image;
}

struct JpegForm {
  const char* name = "4:2:0";
  int h = 2, v = 2;  // Samples of luma, or of each channel's first, for one of colour.
  int quality = 90;
  bool progressive = false;
  bool first_scan_only = false;  // Of a progressive file: a coarse image that libjpeg smooths.
  bool arithmetic = false;
  bool optimised = false;   // Huffman tables of the image's own.
  bool own_tables = false;  // Of each component; needs `optimised`, and is then extended sequential.
  bool baseline = true;     // false: low qualities have quantisation tables of 16 bits.
  int restart_rows = 0;
  int restart_blocks = 0;
  J_COLOR_SPACE stored = JCS_UNKNOWN;  // JCS_UNKNOWN: YCbCr of 3 channels, else as given.
  bool adobe_marker = true;            // Of 4 channels.
};

// Channels: 1 grey, 3 RGB, 4 CMYK; 2 has no meaning, which is allowed.
inline Bytes jpeg_of(const Image& image, const JpegForm& form) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  errors.emit_message = [](j_common_ptr, int) {};  // That low qualities are no baseline.
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_width = static_cast<JDIMENSION>(image.width);
  info.image_height = static_cast<JDIMENSION>(image.height);
  info.input_components = image.channels;
  constexpr J_COLOR_SPACE kGiven[] = {JCS_UNKNOWN, JCS_GRAYSCALE, JCS_UNKNOWN, JCS_RGB, JCS_CMYK};
  info.in_color_space = kGiven[image.channels];
  jpeg_set_defaults(&info);
  if (form.stored != JCS_UNKNOWN) jpeg_set_colorspace(&info, form.stored);
  jpeg_set_quality(&info, form.quality, form.baseline ? TRUE : FALSE);
  if (image.channels != 2) {
    info.comp_info[0].h_samp_factor = form.h;
    info.comp_info[0].v_samp_factor = form.v;
  }
  if (image.channels == 4) info.comp_info[3].h_samp_factor = form.h, info.comp_info[3].v_samp_factor = form.v;
  for (int c = 0; c < info.num_components && form.own_tables; ++c) {
    unsigned factors[DCTSIZE2];
    for (unsigned i = 0; i < DCTSIZE2; ++i) factors[i] = 3 + static_cast<unsigned>(c) * 2 + i / 4;
    jpeg_add_quant_table(&info, c, factors, 100, TRUE);
    info.comp_info[c].quant_tbl_no = info.comp_info[c].dc_tbl_no = info.comp_info[c].ac_tbl_no = c;
  }
  info.optimize_coding = form.optimised ? TRUE : FALSE;
  info.arith_code = form.arithmetic ? TRUE : FALSE;
  info.restart_in_rows = form.restart_rows;
  info.restart_interval = static_cast<unsigned>(form.restart_blocks);
  if (form.progressive) jpeg_simple_progression(&info);
  if (form.first_scan_only) info.num_scans = 1;
  if (image.channels == 4) info.write_Adobe_marker = form.adobe_marker ? TRUE : FALSE;
  jpeg_start_compress(&info, TRUE);
  const std::size_t stride = static_cast<std::size_t>(image.width) * image.channels;
  for (int y = 0; y < image.height; ++y) {
    JSAMPROW row = const_cast<JSAMPROW>(image.pixels.data() + static_cast<std::size_t>(y) * stride);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  Bytes file(memory, memory + size);
  std::free(memory);
  return file;
}

struct PngForm {
  int color = PNG_COLOR_TYPE_RGB;
  int depth = 8;
  bool interlaced = false;
  std::vector<png_color> palette;  // Of PNG_COLOR_TYPE_PALETTE.
  Bytes transparency;              // tRNS of a palette.
  bool text = false;               // With a tEXt chunk before the pixels.
};

// rows: height rows as PNG stores them before filtering, `depth` bits a sample, each row begun at a byte.
inline Bytes png_of(int height, int width, std::span<const std::uint8_t> rows, const PngForm& form) {
  Bytes file;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &file,
      [](png_structp writer, png_bytep bytes, std::size_t count) {
        auto& out = *static_cast<Bytes*>(png_get_io_ptr(writer));
        out.insert(out.end(), bytes, bytes + count);
      },
      nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height), form.depth, form.color,
               form.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  if (!form.palette.empty()) png_set_PLTE(png, info, form.palette.data(), static_cast<int>(form.palette.size()));
  if (!form.transparency.empty()) {
    png_set_tRNS(png, info, form.transparency.data(), static_cast<int>(form.transparency.size()), nullptr);
  }
  char key[] = "Comment", value[] = "made for a test";
  png_text text{};
  text.compression = PNG_TEXT_COMPRESSION_NONE;
  text.key = key;
  text.text = value;
  if (form.text) png_set_text(png, info, &text, 1);
  png_write_info(png, info);
  const std::size_t stride = rows.size() / static_cast<std::size_t>(height);
  std::vector<png_bytep> pointers;
  for (int y = 0; y < height; ++y) {
    pointers.push_back(const_cast<png_bytep>(rows.data() + static_cast<std::size_t>(y) * stride));
  }
  png_write_image(png, pointers.data());
  png_write_end(png, nullptr);
  png_destroy_write_struct(&png, &info);
  return file;
}

// A whole decode with libjpeg's defaults, 1 / divisor as large: what the Decoder must equal.
inline Image decoded_by_libjpeg(const Bytes& file, J_COLOR_SPACE space, int channels, int divisor = 1) {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, file.data(), file.size());
  jpeg_read_header(&info, TRUE);
  info.out_color_space = space;
  info.scale_denom = static_cast<unsigned>(divisor);
  jpeg_start_decompress(&info);
  Image image{static_cast<int>(info.output_height), static_cast<int>(info.output_width), channels, {}};
  const std::size_t stride = static_cast<std::size_t>(image.width) * channels;
  image.pixels.resize(stride * info.output_height);
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = image.pixels.data() + info.output_scanline * stride;
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_finish_decompress(&info);
  jpeg_destroy_decompress(&info);
  return image;
}

inline Bytes part_of(const Image& image, const Box& box) {
  Bytes part;
  for (int y = box.y; y < box.y + box.height; ++y) {
    const auto at = (static_cast<std::ptrdiff_t>(y) * image.width + box.x) * image.channels;
    const auto begin = image.pixels.begin() + at;
    part.insert(part.end(), begin, begin + static_cast<std::ptrdiff_t>(box.width) * image.channels);
  }
  return part;
}

// Of one file; nothing where there is none.
inline std::optional<EntropyIndex> index_entropy(std::span<const std::uint8_t> jpeg) {
  EntropyIndex index;
  return EntropyIndexer().make(jpeg, index) ? std::optional(index) : std::nullopt;
}

inline EntropyIndex parse_entropy_index(std::span<const std::uint8_t> bytes) {
  EntropyIndex index;
  parse_entropy_index(bytes, index);
  return index;
}

// Bytes replaced, flipped, cut out, repeated.
inline Bytes damaged(Bytes file, std::mt19937& random) {
  const auto below = [&random](std::size_t bound) { return random() % bound; };
  for (std::size_t faults = 1 + below(8); faults > 0; --faults) {
    const std::size_t at = below(2) == 0 ? below(file.size()) : below(std::min<std::size_t>(file.size(), 700));
    const auto place = file.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(5)) {
      case 0:
        *place = static_cast<std::uint8_t>(random());
        break;
      case 1:
        *place = static_cast<std::uint8_t>(*place ^ 1U << below(8));
        break;
      case 2:
        *place = 0xFF;
        break;
      case 3:
        file.erase(place, place + static_cast<std::ptrdiff_t>(std::min(file.size() - at - 1, below(20))));
        break;
      default:
        file.insert(place, below(20), *place);
    }
  }
  return file;
}

// A PNG's chunks with the checksums that fit what they say now, as far as their lengths lead: so that damage gets past
// the first check.
inline void repair_checksums(Bytes& png) {
  const auto number_at = [&png](std::size_t at) {
    return std::uint32_t{png[at]} << 24 | std::uint32_t{png[at + 1]} << 16 | std::uint32_t{png[at + 2]} << 8 |
           png[at + 3];
  };
  for (std::size_t at = 8; at + 12 <= png.size();) {
    const std::size_t length = number_at(at), end = at + 8 + length;
    if (end + 4 > png.size()) return;
    const auto sum = crc32(0, png.data() + at + 4, static_cast<uInt>(length + 4));
    for (std::size_t i = 0; i < 4; ++i) png[end + i] = static_cast<std::uint8_t>(sum >> (24 - 8 * i));
    at = end + 4;
  }
}

}  // namespace headrace::codec
