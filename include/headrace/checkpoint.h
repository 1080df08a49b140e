// Checkpoints of a training run: one safetensors file each, whole or not there. checkpoint_writer.h writes them beside
// training. All functions are for the thread that steps the trainer, between two steps.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/trainer.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace headrace {

// What a run knows beside its trainer and must find again when it goes on. A load compares `model`, and hands the rest
// back as it was given.
struct RunState {
  std::string model;                   // Name of the network.
  std::uint64_t seed = 0;              // Of initial weights, sample order and transforms.
  std::uint64_t data = 0;              // Source::fingerprint() of the training data.
  std::int64_t batches_per_epoch = 0;  // What a position in an epoch means.
  bool evaluation_due = false;         // The last step of an epoch is done, its evaluation is not.
  std::string history = "{}";          // The caller's text: the epochs' results so far.
  std::string tuning{};                // Likewise, what a run that tunes itself has switched; empty: it does not.
  // The caller's own, as the state of an external optimizer.
  std::vector<std::pair<std::string, at::Tensor>> tensors{};
};

// What a checkpoint says beside its tensors, in the safetensors header's __metadata__ (all texts): format
// "headrace-checkpoint", version, model, seed, data, batches_per_epoch, evaluation_due, history, optimizer, epoch,
// batch, optimizer_steps (the schedule's position), loss_sum, loss_samples, loss_scale, scale_good_updates,
// skipped_updates, compute_threads, tuning where it is not empty, guard_losses, ..., guard_lr_factor (GuardCounts)
// where the step guard found something, plateau_best, ... (PlateauState) where the schedule has had a metric,
// micro_batch, micro_batch_grows and out_of_memory where batches are computed in parts or memory has run out (earlier
// builds of this version leave these out and go on with whole batches, whose bits are others); xxh3 of the tensors'
// bytes and header_xxh3 of everything else. Tensors: "model/<name>" of parameters and buffers as they are trained,
// "ema/<name>" of the trainer's averages of them where it keeps some, "optimizer/<name>/exp_avg", ..., "generator/cpu";
// with the step guard's policy rollback and no external optimizer these again as "last_good/model/<name>", ..., and the
// states of other generators, whole or not at all, which a trainer of another policy leaves out; "run/<name>" of
// RunState::tensors. The version is 2 with averages and without: a file without them is as earlier versions write it,
// and those refuse to resume from one with them, as it holds tensors that the model does not have.
struct CheckpointInfo {
  std::filesystem::path path;
  RunState run;
  std::string optimizer;  // "adamw", "sgd", or an external one's name.
  Progress progress;
  std::int64_t compute_threads = 0;
  bool averages = false;  // The file has averages; a load of weights alone takes these.
};

// Writes one file of this name. Makes its folder if need be. Errors and cost as save_checkpoint.
void write_checkpoint(const std::filesystem::path& path, Trainer& trainer, const RunState& run);

// Makes the folder if need be and writes <folder>/checkpoint-<optimizer steps, 9 digits>.safetensors by write, fsync,
// rename, fsync of the folder; then removes all but the newest `keep` whole ones (one whose header does not fit its
// file counts as none and stays). Newest is by optimizer steps, never by a clock. Error{io} names file and reason;
// older checkpoints are untouched then. Error{invalid_argument} within an accumulation window: gradients are not saved.
// Cost: one pass over the tensors for the checksum, one for the file, and the disk's fsync.
std::filesystem::path save_checkpoint(const std::filesystem::path& folder, Trainer& trainer, const RunState& run,
                                      std::int64_t keep);

// In a run's folder.
inline constexpr const char* kBestCheckpoint = "checkpoint-best.safetensors";

// Writes <folder>/checkpoint-best.safetensors, a checkpoint like the others with "score" in its header, of which more
// is better, unless the one that is there says at least as much; so a later process needs no memory of what was best.
// Earlier versions called it "val_accuracy"; a file that says neither, from still earlier ones that chose by test,
// counts as none. Earlier builds ignore a file with "score", and write their own over it. Returns whether it wrote
// one. Never removed by save_checkpoint. Errors as there.
bool save_best_checkpoint(const std::filesystem::path& folder, Trainer& trainer, const RunState& run, double score);

// Loads one file: checks header bounds, checksums, names, shapes and dtypes before anything is changed. Errors:
// corrupt_data (with what), invalid_argument (another model or optimizer, with both names, or missing, surplus or
// wrongly shaped tensors by name; averages in only one of file and trainer, with train.ema_decay), unsupported
// (another format version). Optimizer state of parameters that require no gradients now is no surplus: it is left out.
// With `weights_only` the optimizer, progress and generators stay as they are. The model then gets the file's averages
// of parameters and buffers where it has some. The trainer may keep averages or not: its own stay as they are, and
// Trainer::with_averages() would put them in the place of what was loaded; a rollback returns to what was loaded.
// `accept` gets the run's part once all is checked and before anything is changed but the generator, which is put back
// where it throws; what it throws goes on.
CheckpointInfo load_checkpoint(const std::filesystem::path& path, Trainer& trainer, const std::string& model,
                               bool weights_only = false, const std::function<void(const RunState&)>& accept = {});

// The newest checkpoint of the folder that loads; each one that is unreadable or corrupt is named in `warnings` with
// the reason and the next older one is tried, last of all the best. nullopt: the folder has none. When there are some
// and none loads, the newest one's error is thrown, so that no run starts over by mistake; so is at once
// invalid_argument (another model's) and unsupported (another format version).
std::optional<CheckpointInfo> load_newest_checkpoint(const std::filesystem::path& folder, Trainer& trainer,
                                                     const std::string& model, bool weights_only,
                                                     std::vector<std::string>& warnings,
                                                     const std::function<void(const RunState&)>& accept = {});

}  // namespace headrace
