#include "engine/verbs/train_run.h"

#include <headrace/option_fields.h>
#include <headrace/option_text.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "engine/verbs/train_loop.h"

namespace headrace {

void refuse_earlier_checkpoints(const std::filesystem::path& folder) {
  const std::optional<std::filesystem::path> earlier = any_checkpoint(folder);
  if (!earlier) return;
  fail(ErrorCode::invalid_argument,
       "train: {} holds {} of an earlier run: go on with train --resume, or choose another --out", folder.string(),
       earlier->filename().string());
}

void require_val(const Training& training) {
  if (training.val_loader() != nullptr) return;
  const Recipe& recipe = training.recipe();
  constexpr const char* kWanted =
      "the data has no split val to judge by; wanted data.val_fraction above 0, which holds one out of train, or";
  if (const std::int64_t patience = recipe.train.early_stopping_patience; patience > 0) {
    fail(ErrorCode::invalid_argument, "train: train.early_stopping_patience is {} and {} a patience of 0", patience,
         kWanted);
  }
  if (recipe.lr_scheduler.name == LrSchedulerName::ReduceLROnPlateau) {
    fail(ErrorCode::invalid_argument, "train: lr_scheduler.name is \"{}\" and {} another schedule",
         choice_name(recipe.lr_scheduler.name), kWanted);
  }
}

RunState run_state(const Training& training, const TrainHistory& history) {
  RunState state;
  state.model = training.recipe().model.name;
  state.seed = static_cast<std::uint64_t>(training.recipe().seed);
  state.data = training.data_fingerprint();
  state.batches_per_epoch = training.batches_per_epoch();
  state.evaluation_due = history.evaluation_due;
  state.history = history_text(history);
  return state;
}

bool tests_were_val(const Training& training) {
  return training.val_loader() != nullptr && training.test_loader() == nullptr &&
         training.recipe().data.val_fraction == 0;
}

namespace {

// Where the loader was to find its settings: the recipe with those that it has now, each with why, and nothing left to
// decide.
void write_fixed_recipe(const Training& training, const std::filesystem::path& folder) {
  const DataOptions& data = training.recipe().data;
  const bool is_automatic =
      data.num_workers == AUTOTUNE || data.prefetch_batches == AUTOTUNE || data.cache == Cache::automatic;
  if (!is_automatic || !data.auto_tune) return;
  const Loader& loader = training.loader();
  const Applied cache = loader.applied_cache();
  std::map<std::string, std::string> settings{
      {"data.auto_tune", "false"}, {"tune.online", "false"}, {cache.key, '"' + cache.applied + '"'}};
  std::map<std::string, std::string> reasons{{cache.key, cache.reason}};
  for (const Applied& found : {loader.applied_num_workers(), loader.applied_prefetch()}) {
    settings[found.key] = found.applied;
    reasons[found.key] = found.reason;
  }
  Recipe fixed = training.recipe();
  apply_settings(fixed, settings);
  write_file(folder / "fixed.toml", write_toml(fields_of(fixed), [&](const std::string& key) {
               const auto found = reasons.find(key);
               return found == reasons.end() ? "" : found->second;
             }));
}

}  // namespace

TrainRun train_to_end(Training& training, const std::filesystem::path& folder, Console& console, ResumedRun resumed,
                      OnlineRun* online) {
  require_val(training);
  training.write_eval_transform(folder);
  TrainRun run = TrainLoop{training, folder, console, std::move(resumed), online}.run();
  write_fixed_recipe(training, folder);
  return run;
}

}  // namespace headrace
