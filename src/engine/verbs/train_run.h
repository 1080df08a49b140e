// Training from where a trainer stands to the recipe's last epoch, with evaluations, checkpoints and progress.
#pragma once

#include <filesystem>

#include "app/cli/console.h"
#include "engine/assembly/online_run.h"
#include "engine/assembly/training.h"
#include "engine/verbs/train_history.h"
#include "engine/verbs/train_outcome.h"
#include "torch/train/checkpoint.h"

namespace headrace {

// What the names of the mean's tensors begin with in RunState::tensors, where train.swa_start keeps one.
inline constexpr const char* kSwaTensors = "swa/";

// What the checkpoint told from which the trainer was loaded.
struct ResumedRun {
  TrainHistory history{};
  NamedTensors tensors{};  // RunState::tensors.
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
// the last is. Where the trainer keeps averages, these are evaluated and become the result. With train.swa_start the
// mean of the weights after the last epochs is the result, once a pass over the training data has renewed its batch
// norms' statistics; a signal during that pass ends the run without a result, which --resume finds. After each
// evaluation ReduceLROnPlateau is told val's loss, with mode = "max" its accuracy. With train.early_stopping_patience
// an epoch before the last may end the run, as the last would; Error of require_val(). A write that failed ends the
// run, after the update under way, with its error; where another error ends the run, a warning tells why the last write
// failed. Test is read once, at the end, with the result's weights; model.safetensors are these, alone and under their
// plain names. The trainer is left at the last epoch, with its own weights. Before the first step eval_transform.toml
// is there, and at the end, where the loader was to find its settings by itself, fixed.toml: the recipe with what it
// has found, by which it decides nothing. `online` switches settings between the updates, evaluations are made as the
// recipe is written, and checkpoints hold what it has to say; null: settings stay as they are. A warning tells of each
// time that memory ran out and the run went on.
TrainRun train_to_end(Training& training, const std::filesystem::path& folder, Console& console,
                      ResumedRun resumed = {}, OnlineRun* online = nullptr);

}  // namespace headrace
