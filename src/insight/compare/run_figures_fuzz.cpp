// Any bytes as the JSON lines that a run writes, and as its result.json; what is read is written, read again and must
// be the same.
//   build/fuzz/bin/run_figures_fuzz -max_total_time=600 FOLDER
#include <headrace/error.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "core/base/fuzz_inputs.h"
#include "insight/compare/run_figures.h"

namespace {

using namespace headrace;

void fill(const std::filesystem::path& folder) {
  write_input(folder / "lines",
              "{\"step_s\": 0.1, \"samples\": 3, \"stages\": {\"forward\": 0.05}}\n{\"outputs\": [1, 2]}\n");
  write_input(folder / "monitor", "{\"version\":1,\"step\":2,\"metric\":\"a\",\"value\":1}\n\n{\"loss\": 1e308}\n");
  write_input(folder / "training",
              "{\"format\":\"headrace-train\",\"version\":1,\"training\":{\"seconds\":1,\"epochs\":[{\"loss\":1}]}}");
  write_input(
      folder / "profile",
      "{\"format\":\"headrace-profile\",\"version\":1,\"time_split\":{\"steps\":1,\"data_wait_s\":1,\"transfer_s\":"
      "1,\"forward_s\":1,\"backward_s\":1,\"optimizer_s\":1,\"other_s\":1,\"step_s\":[1]},"
      "\"loading\":{\"cache\":{\"hits\":0,\"misses\":0}}}");
}

template <class Read>
void check(const Read& read) {
  std::optional<RunFigures> figures;
  try {
    figures = read();
  } catch (const Error&) {
    return;
  }
  const RunFigures again = figures_from_json(to_json(*figures), "written");
  if (again.metrics != figures->metrics || again.stage_s != figures->stage_s || again.outputs != figures->outputs ||
      again.not_applicable != figures->not_applicable) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  return headrace::fill_inputs(*argc, *argv, fill);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check([&] { return figures_of_lines(text, "fuzzed.jsonl"); });
  const auto document = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  check([&] { return figures_of_document(document, "fuzzed.json"); });
  return 0;
}
