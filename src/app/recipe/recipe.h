// One TOML file = one value made of the modules' option structs. LibTorch-free: it sees option headers alone.
#pragma once

#include <headrace/option_fields.h>
#include <headrace/options/data.h>
#include <headrace/options/eval.h>
#include <headrace/options/loss.h>
#include <headrace/options/lr_scheduler.h>
#include <headrace/options/model.h>
#include <headrace/options/optimizer.h>
#include <headrace/options/report.h>
#include <headrace/options/train.h>
#include <headrace/options/tune.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/hardware/compute_options.h"

namespace headrace {

struct Recipe {
  std::int64_t seed = 1;
  DataOptions data;
  ModelOptions model;
  LossOptions loss;
  OptimizerOptions optimizer;
  LrSchedulerOptions lr_scheduler;
  TrainOptions train;
  EvalOptions eval;
  ComputeOptions compute;
  TuneOptions tune;
  ReportOptions report;
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, Recipe>
void describe(Visitor& visit, Options& o) {
  visit("seed", o.seed, Range<std::int64_t>{0, 4294967295},
        "Decides initial weights, sample order and every random transform.");
  visit("data", o.data, "");
  visit("model", o.model, "");
  visit("loss", o.loss, "");
  visit("optimizer", o.optimizer, "");
  visit("lr_scheduler", o.lr_scheduler, "");
  visit("train", o.train, "");
  visit("eval", o.eval, "");
  visit("compute", o.compute, "");
  visit("tune", o.tune, "");
  visit("report", o.report, "");
}

// Where each key's value came from: "default", "default with tune.online", "fashion_mnist.toml:12", "flag". Tables of a
// list of tables are keys of their own: "tune.planted[0].off_ms".
using Origins = std::map<std::string, std::string>;

struct LoadedRecipe {
  Recipe recipe;
  Origins origins;
  std::string name;  // The file's stem: "fashion_mnist".
};

// Every key with its value, the elements of lists of tables included. The fields refer to `recipe`.
std::vector<Field> all_fields(Recipe& recipe);

// Reads the file (at most 1 MiB), then applies `flags` ({"data.batch_size", "512"}) in order, then the default of
// tune.allow that goes with tune.online, then checks contradictions between keys. Errors name file and line, or the
// flag. A list of tables is a flag in TOML's form: {"tune.planted", "[{name = 'a', on_ms = 2}]"}.
LoadedRecipe load_recipe(const std::filesystem::path& path,
                         const std::vector<std::pair<std::string, std::string>>& flags);

// The same for a recipe that was made, not read: applies `flags`, checks, and gives every key its origin, "default"
// where `loaded` has none. Errors that name no flag begin with `where`.
LoadedRecipe with_flags(LoadedRecipe loaded, const std::vector<std::pair<std::string, std::string>>& flags,
                        const std::string& where);

// Contradictions between keys that each are in range: no source, means and deviations that differ in number, planted
// knobs without or with equal names, ... Error{invalid_argument} names the keys.
void check_recipe(const Recipe& recipe);
// Contradictions that show once the number of training samples is known: no whole batch to train on, warm-up as long as
// the run, a OneCycleLR that ends before it. Returns the optimizer steps of the whole run.
std::int64_t check_run_length(const Recipe& recipe, std::int64_t training_samples);

// Sets keys from values as TOML writes them ({"optimizer.fused", "true"}): the tuner's changes.
void apply_settings(Recipe& recipe, const std::map<std::string, std::string>& settings);

}  // namespace headrace
