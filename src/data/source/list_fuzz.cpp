// Any bytes as a list of paths and labels, for both splits. An empty folder of inputs is first filled with small lists.
//   build/fuzz/bin/list_fuzz -max_total_time=600 FOLDER
#include <headrace/error.h>
#include <headrace/source.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "core/base/fuzz_inputs.h"
#include "data/source/read_sample.h"

namespace {

using namespace headrace;

void fill(const std::filesystem::path& folder) {
  write_input(folder / "commas", "path,label,split\n1,cat,test\n\"2\",\"d\"\"og\"\n#\n../1,cat\n");
  write_input(folder / "tabs",
              "\xEF\xBB\xBF"
              "1\t7\r\n2\t3\tval\n");
  write_input(folder / "spaces", "1 0\n2  1\n3 absent");
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (const char* name : {"1", "2"}) headrace::write_input(headrace::fuzz_folder() / name, "bytes");
  return headrace::fill_inputs(*argc, *argv, fill);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::filesystem::path list = fuzz_folder() / "list";
  write_input(list, {reinterpret_cast<const char*>(data), size});
  for (const Split split : {Split::train, Split::val, Split::test}) {
    try {
      const auto source = open_source("list:" + list.string(), split);
      for (std::int64_t i = 0; i < source->size(); ++i) {
        const std::string name = stored_name_of(*source, i);
        const bool leads_out = name.front() == '/' || name.starts_with("../") || name.find("/../") != std::string::npos;
        if (leads_out || label_of(*source, i) < 0 || label_of(*source, i) >= source->info().num_classes) std::abort();
      }
    } catch (const Error&) {
    }
  }
  return 0;
}
