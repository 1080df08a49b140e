// Which blocks of a network its training steps compute again: as asked for, or as a budget finds it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch/model/activation_checkpointing.h"
#include "torch/model/detail/block_choice.h"
#include "torch/model/detail/live_storages.h"

namespace headrace {

// A network's first training forward is measured, and each on more images than the last that was: operators pay some
// 1 us more each. With a budget such a forward has all blocks computed again, and the choice is in force from the next
// on; it depends on bytes alone, so that every process that trains the same makes the same. Not thread-safe.
class BlockCheckpointing {
 public:
  explicit BlockCheckpointing(std::vector<std::string> names);  // Of blocks, in the order of the forward; may be empty.

  // Forgets what it measured. Of a network without blocks nothing is chosen. Error{invalid_argument}:
  // requested_blocks().
  void set(const CheckpointingRequest& request);
  const CheckpointingRequest& request() const { return request_; }
  bool recomputes(std::size_t block) const { return recomputed_[block]; }
  bool offloads(const at::Tensor& input) const;  // Whether its block keeps it in the host's memory.

  bool is_due(const at::Tensor& images) const;  // Whether a training forward of them is to be measured.
  // pass(), which is measured; `constant` are the parameters and buffers. What pass() throws leaves it due.
  at::Tensor measured(const at::Tensor& images, const std::vector<at::Tensor>& constant,
                      const std::function<at::Tensor()>& pass);
  // Around a block's own pass, while its graph is whole; one block after the other. Nothing where none is measured.
  void begin_block(const at::Tensor& input);
  void end_block(const at::Tensor& output);

  CheckpointingReport report(at::Device device) const;  // Of a network there.

 private:
  // A forward that is being measured.
  struct Measurement {
    Measurement(at::Device device, const std::vector<at::Tensor>& older) : storages(device, older) {}

    LiveStorages storages;
    std::int64_t before = 0;              // Bytes when the present block began.
    std::vector<std::int64_t> saved;      // Of each block.
    std::vector<StorageSeen> boundaries;  // The input of the first block, and the output of each.
  };
  // What was found, and of which forward.
  struct Found {
    SavedBytes bytes;
    std::int64_t numbers;  // Of its images.
    bool autocast;
    bool fits;
  };

  SavedBytes learned(const Measurement& measurement, bool inputs_on_device) const;
  Applied applied_budget() const;

  std::vector<std::string> names_;
  CheckpointingRequest request_;
  std::vector<bool> recomputed_;
  std::unique_ptr<Measurement> measurement_;  // Null: none under way.
  std::optional<Found> found_;
};

}  // namespace headrace
