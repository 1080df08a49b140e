// Checkpoints: one safetensors file each, whole or not there.
#pragma once

#include <headrace/trainer.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace headrace {

// What a checkpoint says beside its tensors, in the safetensors header's __metadata__ (all texts): format
// "headrace-checkpoint", version, model, epoch, batch, optimizer_steps, compute_threads, seed, xxh3 of the tensor
// bytes. Tensors: "model/<name>", "optimizer/<name>/exp_avg", ..., "generator/cpu".
struct CheckpointInfo {
  std::filesystem::path path;
  std::string model;
  Progress progress;
  std::int64_t compute_threads = 0;
  std::uint64_t seed = 0;
};

// Makes the folder if need be and writes <folder>/checkpoint-<optimizer steps, 9 digits>.safetensors by write, fsync,
// rename, fsync of the folder; then removes all but the newest `keep` whole ones (one whose header does not fit its
// file counts as none and stays). Error{io} names file and reason; older checkpoints are untouched then.
// Error{invalid_argument} within an accumulation window: gradients are not saved.
std::filesystem::path save_checkpoint(const std::filesystem::path& folder, Trainer& trainer, const std::string& model,
                                      std::uint64_t seed, std::int64_t keep);

// Loads one file: checks header bounds, names, shapes, dtypes and the checksum before anything is changed. Errors:
// corrupt_data (with what), invalid_argument (another model, with both names, or missing, surplus or wrongly shaped
// tensors by name), unsupported (another format version). With `weights_only` the optimizer, progress and generators
// stay as they are.
CheckpointInfo load_checkpoint(const std::filesystem::path& path, Trainer& trainer, const std::string& model,
                               bool weights_only);

// The newest checkpoint of the folder that loads; each one that is unreadable or corrupt is named in `warnings` with
// the reason and the next older one is tried. nullopt: the folder has none. When there are some and none loads, the
// newest one's error is thrown, so that no run starts over by mistake; so is at once invalid_argument (another model's)
// and unsupported (another format version).
std::optional<CheckpointInfo> resume_newest(const std::filesystem::path& folder, Trainer& trainer,
                                            const std::string& model, std::vector<std::string>& warnings);

}  // namespace headrace
