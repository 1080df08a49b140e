// Checkpoints written beside training: training waits for a copy, another thread writes it.
#pragma once

#include <headrace/checkpoint.h>
#include <headrace/trainer.h>

#include <cstdint>
#include <filesystem>
#include <memory>

namespace headrace {

// Not thread-safe: for the thread that steps the trainer. One write is under way at a time; a save meanwhile waits for
// it first. From the first save on it keeps the memory of the copy, as much as a checkpoint has (memory account
// "checkpoint copy"): allocating it anew each time would cost more than copying. The files are those of save_checkpoint
// and save_best_checkpoint, bit for bit.
class CheckpointWriter {
 public:
  // `beside` false: each save writes before it returns, without thread and copy.
  explicit CheckpointWriter(bool beside);
  // Waits for a write under way, whose error is lost: call finish() first.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // As save_checkpoint and save_best_checkpoint; save_best() looks at the disk once the previous write is over.
  // The error of a write is thrown once, by the next call of save(), save_best(), check() or finish(). save() and
  // save_best() first start their own write, or make it: a failed write does not prevent the next one. It leaves older
  // checkpoints untouched, and training may go on.
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
