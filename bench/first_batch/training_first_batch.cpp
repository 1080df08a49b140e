// The first batch of `headrace train`, in milliseconds from the first look at the data.
//   training_first_batch RECIPE data       opens what a training opens, builds its loaders and takes one batch
//   training_first_batch RECIPE training   builds the whole training, network and optimizer included, and takes one
//   batch
#include <fmt/format.h>
#include <headrace/loader.h>
#include <headrace/source.h>

#include <memory>
#include <string>
#include <vector>

#include "app/recipe/recipe.h"
#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/base/run_program.h"
#include "core/hardware/machine.h"
#include "engine/assembly/training.h"

namespace headrace {
namespace {

std::int64_t first_batch(Loader& loader) {
  auto epoch = loader.epoch(0);
  return epoch.next().value().size();
}

std::int64_t of_data(const Recipe& recipe) {
  const std::shared_ptr<const Source> source = open_source(recipe.data.source, Split::train);
  const std::shared_ptr<const Source> val_source = open_source(recipe.data.source, Split::val);
  Loader loader{source, recipe.data, 1, /*training=*/true};
  const Loader val_loader{val_source, recipe.data, 1, /*training=*/false};
  return first_batch(loader);
}

std::int64_t of_training(const Recipe& recipe) {
  Training training{recipe, detect_machine()};
  return first_batch(training.loader());
}

void run(const std::vector<std::string>& words) {
  if (words.size() != 2) fail(ErrorCode::invalid_argument, "wanted RECIPE and data | training");
  const std::string& what = words[1];
  if (what != "data" && what != "training") fail(ErrorCode::invalid_argument, "{}; wanted data | training", what);
  const LoadedRecipe loaded = load_recipe(words[0], {});
  const std::int64_t begin_ns = monotonic_ns();
  const std::int64_t size = what == "data" ? of_data(loaded.recipe) : of_training(loaded.recipe);
  fmt::print("{:.2f} ms to {} samples\n", seconds_since(begin_ns) * 1e3, size);
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  return headrace::run_program(argc, argv, headrace::run, "training_first_batch");
}
