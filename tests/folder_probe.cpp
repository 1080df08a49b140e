// Writes what open_source and the Loader make of an ImageFolder: folder_parity_test.py compares it with torchvision's.
//   folder_probe list DIR train|val|test      {"classes": [names], "samples": [[name, label], ...]}
//   folder_probe load DIR SIZE RESIZE     of DIR/test, in its order, for evaluation: float32, N x 3 x SIZE x SIZE
#include <headrace/loader.h>
#include <headrace/source.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/fail.h"
#include "core/base/run_program.h"
#include "data/source/sample_reader.h"

namespace {

using namespace headrace;

void list(const std::string& folder, const std::string& split) {
  const auto source = open_source("folder:" + folder, split_named(split, "folder_probe: split"));
  nlohmann::json document{{"classes", source->info().class_names}, {"samples", nlohmann::json::array()}};
  const SampleReader reader{*source};
  for (std::int64_t i = 0; i < source->size(); ++i) {
    document["samples"].push_back({reader.name(i), reader.label(i)});
  }
  std::puts(document.dump().c_str());
}

void load(const std::string& folder, std::int64_t size, std::int64_t resize) {
  DataOptions options;
  options.batch_size = 4;
  options.transform.size = size;
  options.transform.resize = resize;
  options.transform.mean = {0.485, 0.456, 0.406};
  options.transform.std = {0.229, 0.224, 0.225};
  Loader loader{open_source("folder:" + folder, Split::test), options, 1, /*training=*/false};
  Epoch epoch = loader.epoch(0);
  while (const auto batch = epoch.next()) {
    const auto& bytes = batch->field("image").bytes;
    if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size()) {
      fail(ErrorCode::io, "folder_probe: cannot write");
    }
  }
}

void run(const std::vector<std::string>& words) {
  if (words.size() == 3 && words[0] == "list") return list(words[1], words[2]);
  if (words.size() == 4 && words[0] == "load") return load(words[1], std::stoll(words[2]), std::stoll(words[3]));
  fail(ErrorCode::invalid_argument, "folder_probe: wanted list DIR SPLIT, or load DIR SIZE RESIZE");
}

}  // namespace

int main(int argc, char** argv) {
  return run_program(argc, argv, run);
}
