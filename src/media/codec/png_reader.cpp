#include "media/codec/detail/png_reader.h"

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <png.h>

#include "core/base/fail.h"
#include "media/codec/detail/color.h"

namespace headrace::codec::detail {
namespace {

constexpr std::uint8_t kSignature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};

// What libpng's rows hold after its transformations: no palette, no alpha, no bits below a byte.
enum class Stored { grey, grey_16, rgb };

constexpr std::size_t bytes_of(Stored stored) {
  return stored == Stored::grey ? 1 : stored == Stored::grey_16 ? 2 : 3;
}

// libpng and zlib take about ten blocks for an image, 50 KB together, and give them back after it. The next one gets
// the same again, so that in the steady state nothing comes from the heap. Larger blocks are the heap's.
class KeptBlocks {
 public:
  KeptBlocks() = default;
  ~KeptBlocks() {
    for (const Block& block : blocks_) std::free(block.memory);
  }
  KeptBlocks(const KeptBlocks&) = delete;
  KeptBlocks& operator=(const KeptBlocks&) = delete;

  void* take(std::size_t bytes) noexcept;
  void give_back(void* memory) noexcept;

 private:
  static constexpr std::size_t kBytesMax = std::size_t{256} << 10;
  struct Block {
    void* memory = nullptr;
    std::size_t bytes = 0;
    bool is_taken = false;
  };
  std::array<Block, 16> blocks_;
};

void* KeptBlocks::take(std::size_t bytes) noexcept {
  Block* fitting = nullptr;
  Block* spare = nullptr;  // Smallest of those that nobody has.
  for (Block& block : blocks_) {
    if (block.is_taken) continue;
    if (block.bytes >= bytes && (fitting == nullptr || block.bytes < fitting->bytes)) fitting = &block;
    if (spare == nullptr || block.bytes < spare->bytes) spare = &block;
  }
  if (fitting != nullptr && fitting->memory != nullptr) {
    fitting->is_taken = true;
    return fitting->memory;
  }
  void* memory = std::malloc(bytes);
  if (memory != nullptr && spare != nullptr && bytes <= kBytesMax) {
    std::free(spare->memory);
    *spare = {memory, bytes, true};
  }
  return memory;
}

void KeptBlocks::give_back(void* memory) noexcept {
  for (Block& block : blocks_) {
    if (memory == nullptr || block.memory != memory) continue;
    block.is_taken = false;
    return;
  }
  std::free(memory);
}

}  // namespace

// What libpng and its callbacks see. Errors leave libpng by longjmp, which runs no destructor: between `guarded` and
// the library there are only functions whose locals have none.
struct PngState {
  KeptBlocks blocks;
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::jmp_buf escape{};
  char message[128] = {};
  bool out_of_memory = false;

  std::span<const std::uint8_t> bytes;
  std::size_t at = 0;  // Of bytes, the next to be read.
  int channels = 0;
  std::int64_t pixels_max = 0;
  bool header_is_read = false;  // And nothing behind it.

  png_uint_32 height = 0;
  png_uint_32 width = 0;
  std::uint32_t bits = 0;  // Of a stored pixel.
  Stored stored = Stored::rgb;
  int passes = 1;  // More than one: interlaced.

  Box box;
  std::uint8_t* out = nullptr;
  std::vector<std::uint8_t> rows;  // As libpng writes them: one, or all of an interlaced image.

  void close() noexcept { png_destroy_read_struct(&png, &info, nullptr); }
  ~PngState() { close(); }
};

namespace {

using State = PngState;

[[noreturn]] void escape(png_structp png, png_const_charp message) {
  State& state = *static_cast<State*>(png_get_error_ptr(png));
  std::snprintf(state.message, sizeof state.message, "%s", message);
  std::longjmp(state.escape, 1);
}

// libpng warns of what loses no pixel: optional chunks that are damaged or in the wrong place.
void ignore(png_structp /*png*/, png_const_charp /*message*/) {}

png_voidp allocate(png_structp png, png_alloc_size_t size) {
  State& state = *static_cast<State*>(png_get_mem_ptr(png));
  void* memory = state.blocks.take(size);
  if (memory == nullptr) state.out_of_memory = true;
  return memory;
}

void release(png_structp png, png_voidp memory) {
  static_cast<State*>(png_get_mem_ptr(png))->blocks.give_back(memory);
}

void read_bytes(png_structp png, png_bytep out, std::size_t count) {
  State& state = *static_cast<State*>(png_get_io_ptr(png));
  if (count > state.bytes.size() - state.at) png_error(png, "the file ends early");
  std::memcpy(out, state.bytes.data() + state.at, count);
  state.at += count;
}

// False: libpng gave up, and `message` says why. The step's locals must have no destructors.
bool guarded(State& state, void (*step)(State&)) {
  if (setjmp(state.escape) != 0) return false;  // libpng has no other way to report.
  step(state);
  return true;
}

// Transformations that leave what `Stored` names.
void choose_stored(State& state) {
  png_structp png = state.png;
  const int color = png_get_color_type(png, state.info), depth = png_get_bit_depth(png, state.info);
  state.stored = (color & PNG_COLOR_MASK_COLOR) != 0           ? Stored::rgb
                 : color == PNG_COLOR_TYPE_GRAY && depth == 16 ? Stored::grey_16
                                                               : Stored::grey;
  if (color == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
  if (color == PNG_COLOR_TYPE_GRAY && depth < 8) png_set_expand_gray_1_2_4_to_8(png);
  if (depth == 16 && state.stored != Stored::grey_16) png_set_strip_16(png);
  png_set_strip_alpha(png);
}

void read_header(State& state) {
  state.png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &state, escape, ignore, &state, allocate, release);
  if (state.png != nullptr) state.info = png_create_info_struct(state.png);
  if (state.info == nullptr) {
    state.out_of_memory = true;
    std::snprintf(state.message, sizeof state.message, "no memory for libpng");
    std::longjmp(state.escape, 1);
  }
  png_structp png = state.png;
  png_set_read_fn(png, &state, read_bytes);
  png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // Checked by us, with a message that has the numbers.
  // Texts and colour profiles can expand to megabytes, and change no pixel here.
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_read_info(png, state.info);
  state.height = png_get_image_height(png, state.info);
  state.width = png_get_image_width(png, state.info);
  state.bits = std::uint32_t{png_get_bit_depth(png, state.info)} * png_get_channels(png, state.info);
  choose_stored(state);
  state.passes = png_set_interlace_handling(png);
}

void write_row(const State& state, const std::uint8_t* from, std::uint8_t* to) {
  const int width = state.box.width;
  const auto repeat = [&](int x, std::uint8_t grey) { std::memset(to + x * state.channels, grey, state.channels); };
  switch (state.stored) {
    case Stored::grey:
      for (int x = 0; x < width; ++x) repeat(x, from[x]);
      return;
    case Stored::grey_16:  // As Pillow: cut off, not scaled.
      for (int x = 0; x < width; ++x) repeat(x, from[2 * x] != 0 ? 255 : from[2 * x + 1]);
      return;
    case Stored::rgb:
      if (state.channels == 3) {
        std::memcpy(to, from, static_cast<std::size_t>(width) * 3);
      } else {
        for (int x = 0; x < width; ++x) to[x] = luma(from + 3 * x);
      }
      return;
  }
}

void read_box(State& state) {
  png_structp png = state.png;
  png_start_read_image(png);
  const Box& box = state.box;
  const bool interlaced = state.passes > 1;
  const int height = static_cast<int>(state.height), end = box.y + box.height;
  const std::size_t row_bytes = state.width * bytes_of(state.stored);
  const std::size_t left = static_cast<std::size_t>(box.x) * bytes_of(state.stored);
  const std::ptrdiff_t stride = static_cast<std::ptrdiff_t>(box.width) * state.channels;
  std::uint8_t* rows = state.rows.data();
  for (int pass = 0; pass < state.passes; ++pass) {
    const bool last = pass == state.passes - 1;
    for (int y = 0; y < (last ? end : height); ++y) {
      std::uint8_t* row = interlaced ? rows + static_cast<std::size_t>(y) * row_bytes : rows;
      png_read_row(png, row, nullptr);
      if (last && y >= box.y) write_row(state, row + left, state.out + (y - box.y) * stride);
    }
  }
  if (end == height) png_read_end(png, nullptr);  // Checks what no row needed any more.
}

ErrorCode code_of(const State& state) {
  return state.out_of_memory ? ErrorCode::out_of_memory : ErrorCode::corrupt_data;
}

void check_pixels(const State& state) {
  const std::int64_t pixels = static_cast<std::int64_t>(state.height) * state.width;
  const bool buffered = state.passes > 1;
  const std::int64_t most = buffered ? buffered_pixels_max(state.pixels_max) : state.pixels_max;
  if (pixels > most || std::max(state.height, state.width) > kSideMax) {
    fail(ErrorCode::unsupported,
         "codec: {}PNG of {} x {}: {} pixels; wanted at most {} ({}data.max_pixels), and {} a side",
         buffered ? "interlaced " : "", state.height, state.width, pixels, most, buffered ? "a quarter of " : "",
         kSideMax);
  }
  constexpr std::int64_t kDeflateRatioMax = 1032;
  const std::int64_t promised = pixels * state.bits / 8;
  if (promised / kDeflateRatioMax > std::ssize(state.bytes)) {
    fail(ErrorCode::corrupt_data, "codec: PNG of {} x {}: {} bytes of pixels; a file of {} bytes cannot hold them",
         state.height, state.width, promised, state.bytes.size());
  }
}

}  // namespace

PngReader::PngReader() : state_(std::make_unique<State>()) {}
PngReader::~PngReader() = default;

bool PngReader::recognises(std::span<const std::uint8_t> bytes) noexcept {
  return bytes.size() >= sizeof kSignature && std::equal(std::begin(kSignature), std::end(kSignature), bytes.begin());
}

ImageInfo PngReader::open(std::span<const std::uint8_t> bytes, int channels, std::int64_t pixels_max) {
  State& state = *state_;
  state.close();
  state.bytes = bytes;
  state.at = 0;
  state.channels = channels;
  state.pixels_max = pixels_max;
  state.out_of_memory = false;
  state.header_is_read = guarded(state, read_header);
  if (!state.header_is_read) fail(code_of(state), "codec: PNG header: {}", state.message);
  check_pixels(state);
  return {static_cast<int>(state.height), static_cast<int>(state.width), channels};
}

void PngReader::decode(const Box& box, std::span<std::uint8_t> out) {
  State& state = *state_;
  if (!state.header_is_read) open(state.bytes, state.channels, state.pixels_max);
  state.header_is_read = false;
  state.box = box;
  state.out = out.data();
  const std::size_t buffered_rows = state.passes > 1 ? state.height : 1;
  const std::size_t bytes = buffered_rows * state.width * bytes_of(state.stored);
  if (state.rows.size() < bytes) state.rows.resize(bytes);
  const bool read = guarded(state, read_box);
  state.close();
  if (buffered_rows > 1) state.rows = std::vector<std::uint8_t>();  // As large as the image, and rare.
  if (!read) fail(code_of(state), "codec: PNG data: {}", state.message);
}

}  // namespace headrace::codec::detail
