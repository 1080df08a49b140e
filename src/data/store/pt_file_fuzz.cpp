// Any bytes as a file of torch.save. With an even first byte the rest is the pickle alone, which is put into a sound
// archive that has one storage of 16 bytes. An empty folder of inputs is first filled with a small state_dict.
//   build/fuzz/bin/pt_file_fuzz -max_total_time=600 FOLDER
#include <headrace/error.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "core/base/fuzz_inputs.h"
#include "data/store/pt_file.h"
#include "data/store/pt_file_testing.h"

namespace {

using namespace headrace;

void fill(const std::filesystem::path& folder) {
  const std::string pickle = pickled_tensor("w", {.size = {2, 2}, .stride = {2, 1}});
  write_input(folder / "pickle", '\0' + pickle);
  write_input(folder / "archive", '\1' + torch_archive(pickle, {{"data/0", std::string(16, 'x')}}));
  write_input(folder / "global", '\0' + pickled_dict("w", pickled_global("os", "system") + pickled("ls") + "\x85R"));
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  return headrace::fill_inputs(*argc, *argv, fill);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::string file(data + 1, data + size);
  if (data[0] % 2 == 0) file = torch_archive(file, {{"data/0", std::string(16, 'x')}});
  try {
    for (const PtEntry& entry : pt_entries(file, "fuzz")) {
      // What a tensor reaches lies in the file.
      if (entry.begin > file.size() || entry.bytes > file.size() - entry.begin) std::abort();
      if (entry.shape.size() != entry.strides.size()) std::abort();
    }
  } catch (const Error&) {  // What is no whole file of tensors is refused.
  }
  return 0;
}
