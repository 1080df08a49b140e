// One TOML file = one value made of the modules' option structs. LibTorch-free: it sees *_options.h headers alone.
#pragma once

#include <headrace/options.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "data/data_options.h"
#include "hardware/compute_options.h"
#include "model/model_options.h"
#include "train/train_options.h"
#include "tune/tune_options.h"

namespace headrace {

struct Recipe {
  std::int64_t seed = 1;
  DataOptions data;
  ModelOptions model;
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  TrainOptions train;
  ComputeOptions compute;
  TuneOptions tune;
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, Recipe>
void describe(Visitor& visit, Options& o) {
  visit("seed", o.seed, Range<std::int64_t>{0, 4294967295},
        "Decides initial weights, sample order and every random transform.");
  visit("data", o.data, "");
  visit("model", o.model, "");
  visit("optimizer", o.optimizer, "");
  visit("schedule", o.schedule, "");
  visit("train", o.train, "");
  visit("compute", o.compute, "");
  visit("tune", o.tune, "");
}

// Where each key's value came from: "default", "fashion_mnist.toml", "flag".
using Origins = std::map<std::string, std::string>;

struct LoadedRecipe {
  Recipe recipe;
  Origins origins;
  std::string name;  // The file's stem: "fashion_mnist".
};

// Reads the file (at most 1 MiB), then applies `flags` ({"data.batch_size", "512"}) in order, then checks
// contradictions between keys. Errors name file and line, or the flag.
LoadedRecipe load_recipe(const std::filesystem::path& path,
                         const std::vector<std::pair<std::string, std::string>>& flags);
// Contradictions between keys: warm-up longer than the run, no source, planted knobs without or with equal names, ...
void check_recipe(const Recipe& recipe);

}  // namespace headrace
