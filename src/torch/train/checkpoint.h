// What headrace/checkpoint.h writes, in its steps, and what is asked of a folder and a file of checkpoints.
#pragma once

#include <headrace/checkpoint.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "torch/tensor/safetensors.h"

namespace headrace {

// A checkpoint that is not on the disk yet. The thread that steps the trainer makes it; any thread may write it.
struct UnwrittenCheckpoint {
  std::filesystem::path path;
  NamedTensors tensors;  // Shared with the trainer: write it before the next step, or put copies here.
  SafetensorsTexts texts;
  std::int64_t keep = 0;  // Of the folder's checkpoints, the newest whole ones that stay; 0: all.
};

// What save_checkpoint and save_best_checkpoint write; nullopt: the best that is there is as good. Cost: a copy of the
// generator's state, and for the best the header of the file that is there.
UnwrittenCheckpoint next_checkpoint(const std::filesystem::path& folder, Trainer& trainer, const RunState& run,
                                    std::int64_t keep);
std::optional<UnwrittenCheckpoint> best_checkpoint(const std::filesystem::path& folder, Trainer& trainer,
                                                   const RunState& run, double score);
// Makes its folder if need be, writes it and removes what is not to be kept. Touches no trainer, generator or setting
// of the process, and computes with the calling thread alone where the tensors are contiguous and on the CPU.
void write_checkpoint(UnwrittenCheckpoint checkpoint);

// What a file of write_checkpoint() would hold, in memory and without checksums; the tensors are shared with the
// trainer. Error{invalid_argument} within an accumulation window. Cost: a copy of the generator's state.
SafetensorsFile checkpoint_state(Trainer& trainer, const RunState& run);
// load_checkpoint() of what checkpoint_state() gave, whose tensors may lie on any device but generator states, which
// are the CPU's. Keeps none of them but those that it hands to `accept`. Errors as there; `name` stands in them for a
// path.
CheckpointInfo load_checkpoint_state(const std::filesystem::path& name, SafetensorsFile state, Trainer& trainer,
                                     const std::string& model, const std::function<void(const RunState&)>& accept = {});

// One of the folder's checkpoints, or its best, whole or not; nullopt: it has none, or is not there. Error{io}: it
// cannot be listed.
std::optional<std::filesystem::path> any_checkpoint(const std::filesystem::path& folder);

// The most optimizer steps that one of the folder's checkpoints, its best included, says of itself in its header; one
// that cannot be read does not count. nullopt: there is none. Error{io}: the folder cannot be listed.
std::optional<std::int64_t> newest_step(const std::filesystem::path& folder);

// Whether the file's header says it is a checkpoint, of whatever version. Errors as read_safetensors_metadata.
bool is_checkpoint(const std::filesystem::path& path);

}  // namespace headrace
