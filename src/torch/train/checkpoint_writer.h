// Checkpoints written beside training: the step waits for a copy, another thread writes it.
#pragma once

#include <headrace/trainer.h>

#include <cstdint>
#include <filesystem>
#include <memory>

#include "torch/train/checkpoint.h"

namespace headrace {

// Not thread-safe: for the thread that steps the trainer. One write is under way at a time; whoever saves meanwhile
// waits for it first. Holds a copy of all that a checkpoint holds from the first save on (memory account "checkpoint
// copy"), as fresh memory would cost more than the copy. The files are those of save_checkpoint and
// save_best_checkpoint, bit for bit.
class CheckpointWriter {
 public:
  // `beside` false: each save writes before it returns, without thread and copy.
  explicit CheckpointWriter(bool beside);
  // Waits for a write under way; its error is lost unless check() or finish() was called.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // As save_checkpoint and save_best_checkpoint; what was written before counts for the best. The error of a write is
  // thrown once, by the next call of these, check() or finish(); these throw it when their own write is begun, or made:
  // it keeps none from being made. The older checkpoints are untouched by a write that failed, and training may go on.
  void save(const std::filesystem::path& folder, Trainer& trainer, const RunState& run, std::int64_t keep);
  bool save_best(const std::filesystem::path& folder, Trainer& trainer, const RunState& run, double score);
  // Throws the error of a write that has failed by now; never waits.
  void check();
  // Returns when everything saved is on the disk.
  void finish();
  bool is_writing() const;       // A write beside training is under way.
  std::int64_t written() const;  // Checkpoints on the disk by now.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
