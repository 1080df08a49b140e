// Writes what open_source makes of an ImageFolder: folder_parity_test.py compares it with torchvision's.
//   folder_probe DIR train|test      one JSON document on stdout: {"classes": [names], "samples": [[name, label], ...]}
#include <headrace/error.h>
#include <headrace/source.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: folder_probe DIR train|test\n");
    return 2;
  }
  try {
    const auto split = std::string(argv[2]) == "train" ? headrace::Split::train : headrace::Split::test;
    const auto source = headrace::open_source(std::string("folder:") + argv[1], split);
    nlohmann::json document{{"classes", source->class_names()}, {"samples", nlohmann::json::array()}};
    for (std::int64_t i = 0; i < source->size(); ++i) {
      document["samples"].push_back({source->sample_name(i), source->label(i)});
    }
    std::puts(document.dump().c_str());
    return 0;
  } catch (const headrace::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
