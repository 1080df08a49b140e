// The first batch of `headrace train`, in milliseconds from the first look at the data.
//   training_first_batch RECIPE data       opens what a training opens, builds its loaders and takes one batch
//   training_first_batch RECIPE training   builds the whole training, network and optimizer included, and takes one
//   batch
#include <fmt/format.h>
#include <headrace/error.h>
#include <headrace/loader.h>
#include <headrace/source.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <string>

#include "assembly/training.h"
#include "base/clock.h"
#include "hardware/machine.h"
#include "recipe/recipe.h"

namespace headrace {
namespace {

std::int64_t first_batch(Loader& loader) {
  auto epoch = loader.epoch(0);
  return epoch.next().value().size();
}

std::int64_t of_data(const Recipe& recipe) {
  const std::shared_ptr<const Source> source = open_source(recipe.data.source, Split::train);
  const std::shared_ptr<const Source> test_source = open_source(recipe.data.source, Split::test);
  Loader loader{source, recipe.data, 1, /*training=*/true};
  const Loader test_loader{test_source, recipe.data, 1, /*training=*/false};
  return first_batch(loader);
}

std::int64_t of_training(const Recipe& recipe) {
  Training training{recipe, detect_machine()};
  return first_batch(training.loader());
}

void run(const std::string& path, const std::string& what) {
  if (what != "data" && what != "training") fail(ErrorCode::invalid_argument, "{}; wanted data | training", what);
  const LoadedRecipe loaded = load_recipe(path, {});
  const std::int64_t begin_ns = monotonic_ns();
  const std::int64_t size = what == "data" ? of_data(loaded.recipe) : of_training(loaded.recipe);
  fmt::print("{:.2f} ms to {} samples\n", static_cast<double>(monotonic_ns() - begin_ns) * 1e-6, size);
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  try {
    if (argc != 3) headrace::fail(headrace::ErrorCode::invalid_argument, "wanted RECIPE and data | training");
    headrace::run(argv[1], argv[2]);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "training_first_batch: {}\n", error.what());
    return 1;
  }
}
