// Steps of a recipe's network on one batch of its data, with the allocator asked for: a line of JSON with the median
// milliseconds and the median minor page faults of a step, and the largest resident size.
//   training_steps RECIPE system|arena STEPS
#include <fmt/format.h>
#include <headrace/loader.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "app/recipe/recipe.h"
#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/base/middle.h"
#include "core/base/run_program.h"
#include "core/hardware/machine.h"
#include "engine/assembly/training.h"

namespace headrace {
namespace {

constexpr int kSettling = 4;  // Steps before the first that counts.

double page_faults() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_minflt);
}

void run(const std::vector<std::string>& words) {
  if (words.size() != 3) fail(ErrorCode::invalid_argument, "wanted RECIPE, system | arena and STEPS");
  const LoadedRecipe loaded = load_recipe(words[0], {{"compute.allocator", words[1]}});
  const int steps = std::max(1, std::atoi(words[2].c_str()));
  Training training{loaded.recipe, detect_machine()};
  const Batch batch = [&] { return training.loader().epoch(0).next().value(); }();
  training.loader().set_num_workers(0);  // Nobody else on the cores.
  std::vector<double> milliseconds, faults;
  for (int i = 0; i < steps + kSettling; ++i) {
    const std::int64_t begin_ns = monotonic_ns();
    const double before = page_faults();
    training.trainer().step(batch);
    if (i < kSettling) continue;
    milliseconds.push_back(seconds_since(begin_ns) * 1e3);
    faults.push_back(page_faults() - before);
  }
  fmt::print("{{\"milliseconds\": {:.3f}, \"faults\": {:.0f}, \"peak_bytes\": {}}}\n", middle_of(milliseconds),
             middle_of(faults), peak_memory().value());
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  return headrace::run_program(argc, argv, headrace::run, "training_steps");
}
