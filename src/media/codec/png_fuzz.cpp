// Any bytes as a PNG, with checksums that fit them or as they are. An empty folder of inputs is first filled with small
// images of every kind.
//   build/fuzz/bin/png_fuzz -max_total_time=600 FOLDER
#include <headrace/error.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "core/base/fuzz_inputs.h"
#include "media/codec/decode.h"
#include "media/codec/image_size.h"
#include "media/codec/test_images.h"

namespace {

using namespace headrace;
using namespace headrace::codec;

constexpr int kHeight = 20, kWidth = 33;

void fill(const std::filesystem::path& folder) {
  int number = 0;
  for (const auto& [color, samples] :
       {std::pair{PNG_COLOR_TYPE_GRAY, 1}, std::pair{PNG_COLOR_TYPE_RGB, 3}, std::pair{PNG_COLOR_TYPE_PALETTE, 1},
        std::pair{PNG_COLOR_TYPE_GRAY_ALPHA, 2}, std::pair{PNG_COLOR_TYPE_RGB_ALPHA, 4}}) {
    for (const int depth : {1, 8, 16}) {
      const bool palette = color == PNG_COLOR_TYPE_PALETTE;
      if ((depth == 1 && samples != 1) || (depth == 16 && palette)) continue;
      for (const bool interlaced : {false, true}) {
        PngForm form{.color = color, .depth = depth, .interlaced = interlaced, .text = true};
        if (palette) form.palette.resize(std::size_t{1} << depth);
        if (palette) form.transparency = {0, 100};
        const Bytes rows = photograph(kHeight, (kWidth * samples * depth + 7) / 8, 1, 1).pixels;
        const Bytes file = png_of(kHeight, kWidth, rows, form);
        std::string bytes(1, static_cast<char>(number + 1));
        bytes.append(file.begin(), file.end());
        write_input(folder / ("image" + std::to_string(number++)), bytes);
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  return headrace::fill_inputs(*argc, *argv, fill);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  Bytes file(data + 1, data + size);
  if (data[0] % 4 != 0) repair_checksums(file);
  static Decoder decoder;
  try {
    const HeaderSize named = header_size(file);
    const ImageInfo info = decoder.open(file, data[0] % 2 == 0 ? 3 : 1);
    if (named.height != info.height || named.width != info.width) std::abort();
    if (static_cast<std::int64_t>(info.height) * info.width > 1'000'000) return 0;
    const Box whole{0, 0, info.height, info.width};
    const Box right{info.height / 3, info.width / 2, info.height - info.height / 3, info.width - info.width / 2};
    Bytes all(static_cast<std::size_t>(whole.height) * whole.width * info.channels);
    Bytes part(static_cast<std::size_t>(right.height) * right.width * info.channels);
    decoder.decode(whole, all);
    decoder.decode(right, part);
    if (part != part_of({info.height, info.width, info.channels, all}, right)) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
