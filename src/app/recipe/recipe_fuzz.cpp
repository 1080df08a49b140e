// Any bytes as a recipe; what is read is written, read again and must be the same. An empty folder of inputs is first
// filled with a recipe of every key.
//   build/fuzz/bin/recipe_fuzz -max_total_time=600 FOLDER
#include <headrace/error.h>
#include <headrace/option_fields.h>
#include <headrace/option_text.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "app/recipe/recipe.h"
#include "core/base/fuzz_inputs.h"

namespace {

using namespace headrace;

void fill(const std::filesystem::path& folder) {
  Recipe recipe;
  write_input(folder / "defaults", write_toml(fields_of(recipe), {}));
  write_input(folder / "lists", "seed = 1\n[data.transform]\nmean = [0.1, 0.2]\n[[tune.planted]]\nname = \"a\"\n");
  write_input(folder / "operations",
              "[[data.transforms]]\nsize = 9\nname = \"Resize\"\n[[data.eval_transforms]]\nname = \"Normalize\"\n");
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  return headrace::fill_inputs(*argc, *argv, fill);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Recipe recipe, again;
  try {
    read_toml(fields_of(recipe), text, "fuzzed.toml");
  } catch (const Error&) {
    return 0;
  }
  const std::string written = write_toml(fields_of(recipe), {});
  read_toml(fields_of(again), written, "written.toml");
  if (write_toml(fields_of(again), {}) != written) std::abort();
  return 0;
}
