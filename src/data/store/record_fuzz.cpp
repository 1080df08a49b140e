// Any bytes as a record file: refused, or each of its records read. The first byte says whether the checksums are made
// right first, as a hostile writer would. An empty folder of inputs is first filled with a small file.
//   build/fuzz/bin/record_fuzz -max_total_time=600 FOLDER
#include <headrace/error.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "core/base/fuzz_inputs.h"
#include "core/base/hash.h"
#include "data/store/record_file.h"

namespace {

using namespace headrace;

constexpr std::size_t kPlaceBytes = 24, kTrailerBytes = 40;

void fill(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "whole";
  RecordFileWriter writer{path};
  writer.add(7, std::vector<std::uint8_t>{1, 2, 3});
  writer.add(9, {});
  writer.add(1ULL << 40, std::vector<std::uint8_t>(50, 8));
  writer.commit();
  const std::string content = read_file(path, 1 << 20);
  for (const char kind : {'\0', '\1'}) {
    write_input(folder / (kind == 0 ? "as-is" : "mended"), kind + content);
  }
  std::filesystem::remove(path);
}

void put_hash(std::string& file, std::size_t begin, std::size_t size, std::size_t to) {
  const std::uint64_t hash = xxh3(std::as_bytes(std::span{file}.subspan(begin, size)));
  std::memcpy(file.data() + to, &hash, sizeof hash);
}

// The hashes of the table, wherever the trailer says it is, and of the trailer.
void mend(std::string& file) {
  if (file.size() < kTrailerBytes) return;
  const std::size_t trailer = file.size() - kTrailerBytes;
  std::uint64_t records = 0;
  std::memcpy(&records, file.data() + trailer, sizeof records);
  if (records <= trailer / kPlaceBytes)
    put_hash(file, trailer - records * kPlaceBytes, records * kPlaceBytes, trailer + 16);
  put_hash(file, trailer, 24, trailer + 24);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  return headrace::fill_inputs(*argc, *argv, fill);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::string content(reinterpret_cast<const char*>(data + 1), size - 1);
  if (data[0] % 2 != 0) mend(content);
  static const int descriptor = ::memfd_create("records", MFD_CLOEXEC);
  if (::ftruncate(descriptor, 0) != 0 ||
      ::pwrite(descriptor, content.data(), content.size(), 0) != static_cast<ssize_t>(content.size())) {
    std::abort();
  }
  try {
    const RecordFile file{"/proc/self/fd/" + std::to_string(descriptor), 1 << 16};
    std::vector<std::uint8_t> record;
    for (const RecordPlace& place : file.places()) {
      if (file.find(place.key, record) == RecordState::absent) std::abort();
    }
  } catch (const Error&) {
  }
  return 0;
}
