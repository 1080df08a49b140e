// What the fuzzers share: an x_fuzz.cpp beside each parser, run by libFuzzer (make check PARTS=fuzz) and over the
// inputs that are kept in tests/fuzz_inputs (CTest fuzz.x).
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "core/base/temporary_folder.h"

namespace headrace {

// Neither aside nor synced, unlike core/base/files.h: a fuzzer writes thousands of files a second.
inline void write_input(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc).write(bytes.data(), std::ssize(bytes));
}

// For parsers that open files: a folder of this process, gone at its end; in memory where there is such a place.
inline const std::filesystem::path& fuzz_folder() {
  const std::filesystem::path memory = "/dev/shm";
  static const TemporaryFolder folder{std::filesystem::exists(memory) ? memory
                                                                      : std::filesystem::temp_directory_path()};
  return folder.path();
}

// The body of a fuzzer's LLVMFuzzerInitialize: calls `fill(folder)` to write first inputs when the folder in which
// libFuzzer collects them, the first of its arguments that is one, is empty.
template <class Fill>
int fill_inputs(int count, char** arguments, const Fill& fill) {
  for (int i = 1; i < count; ++i) {
    const std::filesystem::path folder = arguments[i];
    if (!std::filesystem::is_directory(folder)) continue;
    if (std::filesystem::is_empty(folder)) fill(folder);
    break;
  }
  return 0;
}

}  // namespace headrace
