// Any bytes as a safetensors file. With an even first byte the rest is the header alone, whose length is put before it.
// An empty folder of inputs is first filled with small headers.
//   build/fuzz/bin/safetensors_fuzz -max_total_time=600 FOLDER
#include <headrace/error.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/fuzz_inputs.h"
#include "data/store/safetensors.h"

namespace {

using namespace headrace;

std::string with_length(const std::string& header) {
  std::string bytes;
  for (unsigned byte = 0; byte < 8; ++byte) bytes += static_cast<char>(header.size() >> (8 * byte));
  return bytes + header + std::string(16, 'x');
}

void fill(const std::filesystem::path& folder) {
  const std::string tensor = R"("a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]})";
  const std::string texts = R"("__metadata__":{"xxh3":"0123456789abcdef","header_xxh3":"0"})";
  write_input(folder / "plain", '\0' + ("{" + tensor + "}"));
  write_input(folder / "checked", '\0' + ("{" + texts + "," + tensor + "}"));
  write_input(folder / "file", '\1' + with_length("{" + tensor + "}"));
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  return headrace::fill_inputs(*argc, *argv, fill);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string rest(data + 1, data + size);
  const std::filesystem::path path = fuzz_folder() / "model.safetensors";
  write_input(path, data[0] % 2 == 0 ? with_length(rest) : rest);
  try {
    SafetensorsReader reader(path, "fuzz");
    header_checksum(reader.texts(), reader.entries());
    std::vector<std::byte> bytes(static_cast<std::size_t>(reader.tensor_bytes()));
    reader.read(bytes);
    reader.check_read();
  } catch (const Error&) {  // What is no whole file is refused.
  }
  return 0;
}
