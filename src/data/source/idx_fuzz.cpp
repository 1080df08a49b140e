// Any bytes as the images, the labels or both of an IDX pair, plain and gzip, loaded to the end. An empty folder of
// inputs is first filled with small pairs.
//   build/fuzz/bin/idx_fuzz -max_total_time=600 FOLDER
#include <headrace/error.h>
#include <headrace/loader.h>
#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "core/base/fuzz_inputs.h"

namespace {

using namespace headrace;

std::string number(std::uint32_t value) {
  std::string bytes;
  for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(value >> shift & 0xFF);
  return bytes;
}

std::string images() {
  std::string bytes = number(0x803) + number(6) + number(5) + number(4);
  for (int i = 0; i < 6 * 5 * 4; ++i) bytes += static_cast<char>(i * 3);
  return bytes;
}

std::string labels() {
  return number(0x801) + number(6) + std::string("\0\1\2\0\1\2", 6);
}

std::string gzip(const std::string& bytes) {
  z_stream zlib{};
  if (deflateInit2(&zlib, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) std::abort();
  std::string out(deflateBound(&zlib, bytes.size()), '\0');
  zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  zlib.avail_in = static_cast<uInt>(bytes.size());
  zlib.next_out = reinterpret_cast<Bytef*>(out.data());
  zlib.avail_out = static_cast<uInt>(out.size());
  if (deflate(&zlib, Z_FINISH) != Z_STREAM_END) std::abort();
  out.resize(zlib.total_out);
  deflateEnd(&zlib);
  return out;
}

void fill(const std::filesystem::path& folder) {
  write_input(folder / "image", '\0' + images());
  write_input(folder / "labels", '\1' + labels());
  write_input(folder / "images.gz", '\2' + gzip(images()));
  write_input(folder / "labels.gz", '\3' + gzip(labels()));
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  return headrace::fill_inputs(*argc, *argv, fill);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string bytes(data + 1, data + size);
  const bool is_labels = data[0] % 2 == 1;
  write_input(fuzz_folder() / "train-images-idx3-ubyte", is_labels ? images() : bytes);
  write_input(fuzz_folder() / "train-labels-idx1-ubyte", is_labels ? bytes : labels());
  try {
    const std::shared_ptr<const Source> source = open_source("idx:" + fuzz_folder().string(), Split::train);
    DataOptions options;
    options.batch_size = 4;
    options.num_workers = 0;
    Loader loader{source, options, 1, true, /*memory_limit=*/std::int64_t{1} << 28};
    Epoch epoch = loader.epoch(0);
    std::int64_t samples = 0;
    while (const auto batch = epoch.next()) samples += batch->size();
    if (samples != source->size()) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
