// What the fuzzers share: an x_fuzz.cpp beside each parser, run by libFuzzer (make fuzz) and over the inputs that are
// kept in tests/fuzz_inputs (CTest fuzz.x).
#pragma once

#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace headrace {

// Neither aside nor synced, unlike base/files.h: a fuzzer writes thousands of files a second.
inline void write_input(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc).write(bytes.data(), std::ssize(bytes));
}

// For parsers that open files: a folder of this process, gone at its end; in memory where there is such a place.
inline const std::filesystem::path& fuzz_folder() {
  static const std::filesystem::path folder = [] {
    const std::filesystem::path memory = "/dev/shm";
    const bool is_there = std::filesystem::exists(memory);
    std::string pattern = (is_there ? memory : std::filesystem::temp_directory_path()) / "headrace-fuzz-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    std::atexit([] { std::filesystem::remove_all(fuzz_folder()); });
    return std::filesystem::path(pattern);
  }();
  return folder;
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
