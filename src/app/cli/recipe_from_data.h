// A recipe for data and the name of a network, where nobody wrote one: `headrace tune --data DIR --model NAME`.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include "app/cli/console.h"
#include "app/cli/invocation.h"
#include "app/recipe/recipe.h"

namespace headrace {

// The recipe that the invocation names, or one for its --data and --model. Errors: load_recipe's, recipe_from_data's.
LoadedRecipe recipe_of(const Invocation& invocation);

// A basic recipe: AdamW in float32, one thread that loads, nothing switched on that `tune` would try. The kind of data,
// classes, image size, normalisation and batch size are told by what lies at `data` (data/source/data_address.h) and by
// at most 256 of the training samples; everything else has the default of any recipe. `flags` come last and win. The
// origin of each key that was set is a sentence that says what told its value. `model` is not looked up: LibTorch's
// side knows the networks. Costs what opening the data costs, and the headers, or pixels, of these samples.
//
// Errors: address_of's, open_source's, load_recipe's of the flags; invalid_argument, a flag that names data or network
// again, or data of fewer than two classes; corrupt_data, no sample that was looked at could be read.
LoadedRecipe recipe_from_data(const std::filesystem::path& data, const std::string& model,
                              const std::vector<std::pair<std::string, std::string>>& flags);

// A key that nobody gave.
struct Assumption {
  std::string key;
  std::string value;   // As TOML.
  std::string source;  // What told it: "12 classes: the folders of photos/train".
};
// Of a recipe from data, in the order of the recipe's keys; keys that a flag set are none.
std::vector<Assumption> assumptions_of(const LoadedRecipe& loaded);
void tell_assumptions(Console& console, const LoadedRecipe& loaded);
// [{"key", "value", "source"}]
nlohmann::ordered_json assumptions_json(const LoadedRecipe& loaded);

}  // namespace headrace
