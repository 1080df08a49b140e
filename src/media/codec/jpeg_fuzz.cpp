// Any bytes as a JPEG, decoded by our own code, plainly and with the index that was made of them; and any bytes as an
// index. As large as the image is or shrunk by 2, 4 or 8, as the first byte says. An empty folder of inputs is first
// filled with small images of every form.
//   build/fuzz/bin/jpeg_fuzz -max_total_time=600 FOLDER
#include <fmt/format.h>
#include <headrace/error.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "core/base/fuzz_inputs.h"
#include "media/codec/baseline_reader.h"
#include "media/codec/decode.h"
#include "media/codec/image_size.h"
#include "media/codec/jpeg_reader.h"
#include "media/codec/test_images.h"

namespace {

using namespace headrace;
using namespace headrace::codec;

constexpr int kHeight = 40, kWidth = 150;

Bytes small_image(const JpegForm& form, int channels) {
  return jpeg_of(photograph(kHeight, kWidth, channels, 1), form);
}

void fill(const std::filesystem::path& folder) {
  const auto write = [&folder](const std::string& name, int kind, const Bytes& bytes) {
    for (int power = 0; power < 4; ++power) {
      write_input(folder / fmt::format("{}_{}", name, 1 << power),
                  static_cast<char>(kind + 2 * power) + std::string(bytes.begin(), bytes.end()));
    }
  };
  int number = 0;
  for (const JpegForm& form :
       {JpegForm{}, JpegForm{.h = 1, .v = 1}, JpegForm{.h = 2, .v = 1, .restart_blocks = 3}, JpegForm{.h = 1, .v = 2},
        JpegForm{.quality = 30, .optimised = true}, JpegForm{.quality = 5, .baseline = false}}) {
    write("colour" + std::to_string(number++), 0, small_image(form, 3));
  }
  write("grey", 0, small_image({.h = 1, .v = 1}, 1));
  write("index", 1, serialise(index_entropy(small_image({}, 3)).value()));
}

void decode(std::span<const std::uint8_t> file, int divisor, const EntropyIndex* index, bool own) {
  if (!codec::detail::JpegReader::recognises(file)) return;  // The reader is opened for nothing else.
  static codec::detail::BaselineReader reader;
  auto info = reader.open(file, 3);
  const HeaderSize size = header_size(file);
  if (info && (size.height != info->height || size.width != info->width)) std::abort();
  if (!info || static_cast<std::int64_t>(info->height) * info->width > 1'000'000) return;
  if (divisor > 1) info = reader.shrink(divisor);
  const Box right{info->height / 3, info->width / 2, info->height - info->height / 3, info->width - info->width / 2};
  for (const Box& box : {Box{0, 0, info->height, info->width}, right}) {
    Bytes out(static_cast<std::size_t>(box.height) * box.width * 3), by_index(out);
    const bool decoded = reader.decode(box, out);
    if (index == nullptr || !reader.fits(*index)) continue;
    const bool decoded_by_index = reader.decode(box, by_index, index);
    // What an index of the same bytes leads to is the same image.
    if (own && decoded && (!decoded_by_index || out != by_index)) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  return headrace::fill_inputs(*argc, *argv, fill);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::span bytes(data + 1, size - 1);
  const int divisor = 1 << (data[0] / 2 % 4);
  if (data[0] % 2 == 0) {
    const auto index = index_entropy(bytes);
    decode(bytes, divisor, index ? &*index : nullptr, true);
    return 0;
  }
  static const Bytes file = small_image({}, 3);
  try {
    EntropyIndex index = parse_entropy_index(bytes);
    index.file_size = static_cast<std::uint32_t>(file.size());  // Else only few would be used.
    decode(file, divisor, &index, false);
  } catch (const Error&) {
  }
  return 0;
}
