// A recipe with what a tuner has kept, and without.
#pragma once

#include <headrace/tune.h>

#include <filesystem>
#include <vector>

#include "app/recipe/recipe.h"

namespace headrace {

// The recipe's own values of every key that these candidates set; planted knobs and strategies are off.
Settings as_written(Recipe recipe, const std::vector<Candidate>& candidates);

// The recipe with the ledger's best settings; those of planted knobs and strategies are no settings of a recipe.
Recipe tuned_recipe(const Recipe& recipe, const Ledger& ledger);

// That recipe as TOML, each key that was kept with its gain.
void write_tuned_toml(const std::filesystem::path& path, Recipe tuned, const Ledger& ledger);

}  // namespace headrace
