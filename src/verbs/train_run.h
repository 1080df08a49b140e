// Training from where a trainer stands to the recipe's last epoch, with tests, checkpoints and progress.
#pragma once

#include <headrace/insight.h>

#include <cstdint>
#include <filesystem>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include "assembly/training.h"
#include "cli/console.h"
#include "train/checkpoint.h"
#include "verbs/train_history.h"

namespace headrace {

struct TrainRun {
  std::vector<EpochResult> epochs;  // Of the whole run, those of earlier processes too.
  double seconds = 0;               // Of the whole run: see TrainHistory.
  int stopped_by = 0;               // The signal that ended it early, after a checkpoint; 0: ran to the end.
  std::int64_t checkpoints = 0;     // Written by this process,
  double checkpoint_seconds = 0;    // and the time that training stood still for them.
};

// Error{invalid_argument} when the folder holds checkpoints, which --resume would take for this run's.
void refuse_earlier_checkpoints(const std::filesystem::path& folder);

// What a checkpoint of this run says beside its tensors.
RunState run_state(const Training& training, const TrainHistory& history);

// Checkpoints go to `folder` every train.checkpoint_every_s seconds between two windows, at each epoch's end before its
// evaluation, when a signal asks to stop, and after the last evaluation; the best by test accuracy beside them. A run
// that ends leaves model.safetensors, the weights alone under their plain names. `history` is what the checkpoint told
// from which the trainer was loaded.
TrainRun train_to_end(Training& training, const std::filesystem::path& folder, Console& console,
                      TrainHistory history = {});

nlohmann::ordered_json to_json(const TrainRun& run);
// Puts the last test and the curves by epoch into the report; nothing without an epoch.
void show_training(Report& report, const TrainRun& run);

}  // namespace headrace
