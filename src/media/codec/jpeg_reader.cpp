#include "media/codec/jpeg_reader.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>  // jpeglib.h uses FILE and does not include it.
#include <cstring>
#include <iterator>
#include <vector>

#include <jpeglib.h>

#include <jerror.h>

#include "core/base/fail.h"
#include "media/codec/detail/color.h"
#include "media/codec/detail/jpeg_memory.h"

namespace headrace::codec::detail {
namespace {

// A real file has about ten; thousands of empty ones make a small file cost minutes.
constexpr int kScansMax = 100;
constexpr int kTooManyScans = -1;  // Beside libjpeg's message codes, which are positive.

// What stays between images: a progressive one of 2.7 megapixels, and no worker keeps what a single huge one took.
constexpr std::size_t kMemoryKept = std::size_t{16} << 20;

// From what libjpeg writes to what the caller asked for.
enum class Conversion { none, luma_of_rgb, rgb_of_cmyk, luma_of_cmyk };

}  // namespace

// What libjpeg and its callbacks see. Errors leave libjpeg by longjmp, which runs no destructor: between `guarded` and
// the library there are only functions whose locals have none.
struct JpegState {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  JpegMemory memory;
  bool is_attached = false;  // `info` is created, and takes from `memory`.
  std::jmp_buf escape{};
  int fault = 0;  // The code of libjpeg's message.
  char message[JMSG_LENGTH_MAX] = {};

  std::span<const std::uint8_t> bytes;
  int channels = 0;
  std::int64_t pixels_max = 0;
  int divisor = 1;
  bool header_is_read = false;  // And nothing behind it.
  Conversion conversion = Conversion::none;
  J_COLOR_SPACE color_space = JCS_UNKNOWN;
  int stored_channels = 0;  // Of color_space.

  Box box;
  std::uint8_t* out = nullptr;
  std::vector<std::uint8_t> row;  // One row as libjpeg writes it, as wide as the image.

  ~JpegState() {
    if (is_attached) JpegMemory::detach(info);
    jpeg_destroy_decompress(&info);
  }
};

namespace {

using State = JpegState;

State& state_of(j_common_ptr info) {
  return *static_cast<State*>(info->client_data);
}

[[noreturn]] void escape(j_common_ptr info) {
  State& state = state_of(info);
  state.fault = info->err->msg_code;
  info->err->format_message(info, state.message);
  std::longjmp(state.escape, 1);
}

// libjpeg goes on after a warning, with grey where the data is missing. Some warnings lose nothing: unknown versions of
// the header, bytes between segments, an unusual order of scans.
void emit_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_HIT_MARKER:
    case JWRN_JPEG_EOF:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_MUST_RESYNC:
      escape(info);
    default:
      return;
  }
}

void count_scans(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kScansMax) return;
  State& state = state_of(info);
  state.fault = kTooManyScans;
  std::snprintf(state.message, sizeof state.message, "more than %d scans", kScansMax);
  std::longjmp(state.escape, 1);
}

// False: libjpeg gave up, and `fault` and `message` say why. The step's locals must have no destructors.
bool guarded(State& state, void (*step)(State&)) {
  if (setjmp(state.escape) != 0) return false;  // libjpeg has no other way to report.
  step(state);
  return true;
}

void create(State& state) {
  jpeg_decompress_struct& info = state.info;
  jpeg_destroy_decompress(&info);  // What an attempt without memory left.
  info.err = jpeg_std_error(&state.errors);
  state.errors.error_exit = escape;
  state.errors.emit_message = emit_message;
  info.client_data = &state;
  jpeg_create_decompress(&info);
  state.progress.progress_monitor = count_scans;
  info.progress = &state.progress;
  state.memory.attach(info);
  state.is_attached = true;
}

// Tables of the image before would otherwise serve a file that lacks its own.
void forget_image(State& state) {
  jpeg_decompress_struct& info = state.info;
  jpeg_abort_decompress(&info);
  info.src = nullptr;
  std::fill(std::begin(info.quant_tbl_ptrs), std::end(info.quant_tbl_ptrs), nullptr);
  std::fill(std::begin(info.dc_huff_tbl_ptrs), std::end(info.dc_huff_tbl_ptrs), nullptr);
  std::fill(std::begin(info.ac_huff_tbl_ptrs), std::end(info.ac_huff_tbl_ptrs), nullptr);
  state.memory.reset();
}

void read_header(State& state) {
  jpeg_decompress_struct& info = state.info;
  if (!state.is_attached) create(state);
  forget_image(state);
  jpeg_mem_src(&info, state.bytes.data(), state.bytes.size());
  jpeg_read_header(&info, TRUE);
}

void write_row(const State& state, const std::uint8_t* from, std::uint8_t* to) {
  const int width = state.box.width;
  std::uint8_t rgb[3];
  switch (state.conversion) {
    case Conversion::none:
      std::memcpy(to, from, static_cast<std::size_t>(width) * static_cast<std::size_t>(state.channels));
      return;
    case Conversion::luma_of_rgb:
      for (int x = 0; x < width; ++x) to[x] = luma(from + 3 * x);
      return;
    case Conversion::rgb_of_cmyk:
      for (int x = 0; x < width; ++x) rgb_of_inverted_cmyk(from + 4 * x, to + 3 * x);
      return;
    case Conversion::luma_of_cmyk:
      for (int x = 0; x < width; ++x) {
        rgb_of_inverted_cmyk(from + 4 * x, rgb);
        to[x] = luma(rgb);
      }
      return;
  }
}

// Whether a progressive file ends before its low frequencies are exact. libjpeg then smooths each block towards its
// neighbours, and cropping or skipping would change which ones it sees.
bool is_smoothed(const jpeg_decompress_struct& info) {
  constexpr int kSmoothed = 10;  // The frequencies that libjpeg looks at.
  if (info.coef_bits == nullptr) return false;
  for (int c = 0; c < info.num_components; ++c) {
    for (int i = 0; i < kSmoothed; ++i) {
      if (info.coef_bits[c][i] != 0) return true;
    }
  }
  return false;
}

// Has libjpeg reconstruct the box's columns only; returns the first column that it will write.
//
// At the sides of a crop libjpeg fills up subsampled colour as it does at the sides of an image, which changes two
// columns; and of a crop with fewer than three columns of a subsampled colour it interpolates none. So the crop is two
// pixels wider on each side, and at least eight wide. libjpeg widens it further, to whole blocks.
JDIMENSION crop_columns(jpeg_decompress_struct& info, const Box& box) {
  constexpr int kMargin = 2, kWidthMin = 8;
  const int width = static_cast<int>(info.output_width);
  int left = std::max(box.x - kMargin, 0), right = std::min(box.x + box.width + kMargin, width);
  right = std::min(std::max(right, left + kWidthMin), width);
  left = std::max(std::min(left, right - kWidthMin), 0);
  if (left == 0 && right == width) return 0;
  auto first = static_cast<JDIMENSION>(left), count = static_cast<JDIMENSION>(right - left);
  jpeg_crop_scanline(&info, &first, &count);
  return first;
}

void read_box(State& state) {
  jpeg_decompress_struct& info = state.info;
  const Box& box = state.box;
  info.out_color_space = state.color_space;
  info.scale_num = 1;
  info.scale_denom = static_cast<unsigned>(state.divisor);
  jpeg_start_decompress(&info);
  const bool smoothed = is_smoothed(info);
  // A crop of a scaled image takes chroma that is scaled less than luma for narrower than it is.
  const JDIMENSION first = smoothed || state.divisor > 1 ? 0 : crop_columns(info, box);
  if (smoothed) {
    JSAMPROW row = state.row.data();
    for (int y = 0; y < box.y; ++y) jpeg_read_scanlines(&info, &row, 1);
  } else if (box.y > 0) {
    jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(box.y));
  }
  const bool direct = state.conversion == Conversion::none && info.output_width == static_cast<JDIMENSION>(box.width);
  const std::uint8_t* in_row =
      state.row.data() + (static_cast<JDIMENSION>(box.x) - first) * static_cast<std::size_t>(state.stored_channels);
  const std::ptrdiff_t stride = static_cast<std::ptrdiff_t>(box.width) * state.channels;
  std::uint8_t* to = state.out;
  for (int y = 0; y < box.height; ++y, to += stride) {
    JSAMPROW row = direct ? to : state.row.data();
    jpeg_read_scanlines(&info, &row, 1);
    if (!direct) write_row(state, in_row, to);
  }
}

ErrorCode code_of(int fault) {
  switch (fault) {
    case kTooManyScans:
    case JERR_ARITH_NOTIMPL:
    case JERR_BAD_PRECISION:
    case JERR_CCIR601_NOTIMPL:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_FRACT_SAMPLE_NOTIMPL:
    case JERR_IMAGE_TOO_BIG:
    case JERR_NOTIMPL:
    case JERR_NOT_COMPILED:
    case JERR_SOF_UNSUPPORTED:
      return ErrorCode::unsupported;
    case JERR_OUT_OF_MEMORY:
      return ErrorCode::out_of_memory;
    default:
      return ErrorCode::corrupt_data;
  }
}

void check_pixels(jpeg_decompress_struct& info, std::int64_t pixels_max) {
  const std::int64_t pixels = static_cast<std::int64_t>(info.image_height) * info.image_width;
  const bool buffered = jpeg_has_multiple_scans(&info) != FALSE;
  const std::int64_t most = buffered ? buffered_pixels_max(pixels_max) : pixels_max;
  if (pixels <= most) return;
  fail(ErrorCode::unsupported, "codec: {}JPEG of {} x {}: {} pixels; wanted at most {} ({}data.max_pixels)",
       buffered ? "progressive " : "", info.image_height, info.image_width, pixels, most,
       buffered ? "a quarter of " : "");
}

}  // namespace

JpegReader::JpegReader() : state_(std::make_unique<State>()) {}
JpegReader::~JpegReader() = default;

bool JpegReader::recognises(std::span<const std::uint8_t> bytes) noexcept {
  return bytes.size() >= 3 && bytes[0] == 0xFF && bytes[1] == 0xD8 && bytes[2] == 0xFF;
}

ImageInfo JpegReader::open(std::span<const std::uint8_t> bytes, int channels, std::int64_t pixels_max) {
  State& state = *state_;
  state.bytes = bytes;
  state.channels = channels;
  state.pixels_max = pixels_max;
  state.divisor = 1;
  state.header_is_read = guarded(state, read_header);
  if (!state.header_is_read) fail(code_of(state.fault), "codec: JPEG header: {}", state.message);
  check_pixels(state.info, pixels_max);
  const bool grey = channels == 1;
  switch (state.info.jpeg_color_space) {
    case JCS_GRAYSCALE:
      state.color_space = grey ? JCS_GRAYSCALE : JCS_RGB;
      state.stored_channels = channels;
      state.conversion = Conversion::none;
      break;
    case JCS_RGB:
    case JCS_YCbCr:
      state.color_space = JCS_RGB;
      state.stored_channels = 3;
      state.conversion = grey ? Conversion::luma_of_rgb : Conversion::none;
      break;
    case JCS_CMYK:
    case JCS_YCCK:
      state.color_space = JCS_CMYK;
      state.stored_channels = 4;
      state.conversion = grey ? Conversion::luma_of_cmyk : Conversion::rgb_of_cmyk;
      break;
    default:
      fail(ErrorCode::unsupported, "codec: JPEG of {} colour components; wanted 1, 3 or 4", state.info.num_components);
  }
  return {static_cast<int>(state.info.image_height), static_cast<int>(state.info.image_width), channels};
}

ImageInfo JpegReader::shrink(int divisor) {
  State& state = *state_;
  state.divisor = divisor;
  const auto shrunk = [divisor](JDIMENSION side) { return (static_cast<int>(side) + divisor - 1) / divisor; };
  return {shrunk(state.info.image_height), shrunk(state.info.image_width), state.channels};
}

void JpegReader::decode(const Box& box, std::span<std::uint8_t> out) {
  State& state = *state_;
  if (!state.header_is_read) {
    const int divisor = state.divisor;
    open(state.bytes, state.channels, state.pixels_max);
    state.divisor = divisor;
  }
  state.header_is_read = false;
  state.box = box;
  state.out = out.data();
  const std::size_t row_bytes = std::size_t{state.info.image_width} * static_cast<std::size_t>(state.stored_channels);
  if (state.row.size() < row_bytes) state.row.resize(row_bytes);
  const bool read = guarded(state, read_box);
  state.memory.trim(kMemoryKept);
  if (!read) fail(code_of(state.fault), "codec: JPEG data: {}", state.message);
}

}  // namespace headrace::codec::detail
