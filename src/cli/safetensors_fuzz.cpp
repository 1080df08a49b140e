// Any bytes as a safetensors file. With an even first byte the rest is the header alone, whose length is put before it.
// An empty folder of inputs is first filled with small headers.
//   build/fuzz/bin/safetensors_fuzz -max_total_time=600 FOLDER
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "cli/safetensors_check.h"

namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc).write(bytes.data(), std::ssize(bytes));
}

std::string with_length(const std::string& header) {
  std::string bytes;
  for (unsigned byte = 0; byte < 8; ++byte) bytes += static_cast<char>(header.size() >> (8 * byte));
  return bytes + header + std::string(16, 'x');
}

const fs::path& scratch_folder() {
  static const fs::path folder = [] {
    const fs::path memory = "/dev/shm";
    std::string pattern = (fs::exists(memory) ? memory : fs::temp_directory_path()) / "headrace-fuzz-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    std::atexit([] { fs::remove_all(scratch_folder()); });
    return fs::path(pattern);
  }();
  return folder;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const fs::path last = (*argv)[*argc - 1];
  if (!fs::is_directory(last) || !fs::is_empty(last)) return 0;
  const std::string tensor = R"("a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]})";
  const std::string texts = R"("__metadata__":{"xxh3":"0123456789abcdef","header_xxh3":"0"})";
  write(last / "plain", '\0' + ("{" + tensor + "}"));
  write(last / "checked", '\0' + ("{" + texts + "," + tensor + "}"));
  write(last / "file", '\1' + with_length("{" + tensor + "}"));
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string rest(data + 1, data + size);
  const fs::path path = scratch_folder() / "model.safetensors";
  write(path, data[0] % 2 == 0 ? with_length(rest) : rest);
  headrace::check_safetensors(path);
  return 0;
}
