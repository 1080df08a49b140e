// Training from where a trainer stands to the recipe's last epoch, with evaluations, checkpoints and progress.
#pragma once

#include <headrace/report.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include "app/cli/console.h"
#include "engine/assembly/online_run.h"
#include "engine/assembly/training.h"
#include "engine/verbs/train_history.h"
#include "insight/diagnose/json.h"
#include "torch/train/checkpoint.h"

namespace headrace {

struct TrainRun {
  std::vector<EpochResult> epochs;    // Of the whole run, those of earlier processes too.
  std::optional<TrainResult> result;  // nullopt: a signal ended it.
  double seconds = 0;                 // Of the whole run: see TrainHistory.
  int stopped_by = 0;                 // The signal that ended it, after a checkpoint; 0: ran to its end.
  bool stopped_early = false;         // train.early_stopping_patience ended it before the last epoch.
  std::int64_t checkpoints = 0;       // Written by this process,
  double checkpoint_seconds = 0;      // and the time that training stood still for them.
  std::int64_t out_of_memory = 0;     // Times that memory ran out and batches were cut, of the whole run.
  std::int64_t micro_batch = 0;       // Samples computed at once at its end, at most; 0: whole batches.
};

// Error{invalid_argument} when the folder holds checkpoints, which --resume would take for this run's.
void refuse_earlier_checkpoints(const std::filesystem::path& folder);

// Error{invalid_argument} when train.early_stopping_patience is to end the run, or ReduceLROnPlateau to lower its
// learning rate, and there is no split val to judge by.
void require_val(const Training& training);

// What a checkpoint of this run says beside its tensors.
RunState run_state(const Training& training, const TrainHistory& history);

// Whether an earlier version's history calls test what this data calls val: see parse_history.
bool tests_were_val(const Training& training);

// Checkpoints go to `folder` every train.checkpoint_every_s seconds between two windows, at each epoch's end before its
// evaluation, when a signal asks to stop, and at the end; all are on the disk when this returns. With a split val each
// epoch is evaluated on it and the best is kept beside them, the result of the run; without one nothing is chosen and
// the last is. Where the trainer keeps averages, these are evaluated and become the result. After each evaluation
// ReduceLROnPlateau is told val's loss, with mode = "max" its accuracy. With train.early_stopping_patience an epoch
// before the last may end the run, as the last would; Error of require_val(). A write that failed ends the run, after
// the update under way, with its error; where another error ends the run, a warning tells why the last write failed.
// Test is read once, at the end, with the result's weights; model.safetensors are these, alone and under their plain
// names. The trainer is left at the last epoch, with its own weights. Before the first step eval_transform.toml is
// there, and at the end, where the loader was to find its settings by itself, fixed.toml: the recipe with what it has
// found, by which it decides nothing. `history` is what the checkpoint told from which the trainer was loaded. `online`
// switches settings between the updates, evaluations are made as the recipe is written, and checkpoints hold what it
// has to say; null: settings stay as they are. A warning tells of each time that memory ran out and the run went on.
TrainRun train_to_end(Training& training, const std::filesystem::path& folder, Console& console,
                      TrainHistory history = {}, OnlineRun* online = nullptr);

nlohmann::ordered_json to_json(const TrainRun& run);
// "val_accuracy" and "test_accuracy" of the result, null where there is none, "val_top5_accuracy" and
// "test_top5_accuracy" where there are some, and "choice", how it was chosen.
void add_outcome(nlohmann::ordered_json& document, const TrainRun& run);
// "test accuracy 0.9132, val accuracy 0.9210 of epoch 3, the best of 4, stopped early": of a run that ended or was
// stopped.
std::string outcome_text(const TrainRun& run);
// Puts the result and the curves by epoch into the report; nothing without an epoch.
void show_training(Report& report, const TrainRun& run);

}  // namespace headrace
