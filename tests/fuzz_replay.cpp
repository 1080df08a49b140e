// main() of a fuzzer without libFuzzer: each file of a folder once. So what fuzzing found stays found with every
// compiler and sanitizer (CTest fuzz.x over tests/fuzz_inputs/x).
//   build/release/bin/jpeg_fuzz_replay FOLDER
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <vector>

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  int words = 1;  // No folder to fill.
  LLVMFuzzerInitialize(&words, &argv);
  std::set<std::filesystem::path> inputs;
  for (const auto& entry : std::filesystem::directory_iterator{argv[1]}) inputs.insert(entry.path());
  for (const std::filesystem::path& input : inputs) {
    std::printf("%s\n", input.c_str());
    std::fflush(stdout);  // The last line names the one that crashed.
    std::ifstream file{input, std::ios::binary};
    const std::vector<char> bytes{std::istreambuf_iterator<char>{file}, {}};
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  std::printf("%zu inputs\n", inputs.size());
  return inputs.empty() ? 1 : 0;
}
