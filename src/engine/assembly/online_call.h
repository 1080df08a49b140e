// One micro-batch of a training under way, kept so that its forward and backward can be made again under other
// settings.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/batch.h>
#include <headrace/live_loop.h>
#include <headrace/trainer.h>

#include <optional>
#include <vector>

#include "engine/assembly/planted_knobs.h"
#include "engine/assembly/state.h"

namespace headrace {

// What a forward and backward gave.
struct CallResult {
  std::vector<at::Tensor> gradients;  // In the parameters' order; undefined: it has none.
  std::vector<at::Tensor> outputs;    // The loss, then the named outputs in the order of their names.
  double seconds = 0;                 // Of forward and backward.
};

// Not thread-safe. Holds the batch's host memory, which it shares with the loader's pool, and copies of the generator
// and the buffers, from keep() to drop().
class OnlineCall {
 public:
  // Both outlive it.
  OnlineCall(Trainer& trainer, PlantedKnobs& planted) : trainer_(trainer), planted_(planted) {}

  void keep(const Batch& batch) { batch_ = batch; }
  // The loop's own forward of that batch begins.
  void begin();
  void drop();
  bool is_kept() const noexcept { return batch_.has_value() && generator_.defined(); }

  // Forward and backward of the kept batch under the settings in force, from what the loop's own began with. Gradients,
  // buffers, generator and window are the caller's to put back (KeptLoop).
  CallResult make_again();

 private:
  Trainer& trainer_;
  PlantedKnobs& planted_;
  std::optional<Batch> batch_;
  at::Tensor generator_;
  std::vector<at::Tensor> buffers_;
};

// Of all gradients together.
SquareSums gradient_squares(const std::vector<at::Tensor>& reference, const std::vector<at::Tensor>& candidate);
bool all_finite(const std::vector<at::Tensor>& gradients);
// Without update_difference. `parameters` name the tensors.
ReplayDistance distance_of(const NamedTensors& parameters, const CallResult& reference, const CallResult& candidate);

// Parameters and optimizer state after one update by these gradients under the settings in force. All of them are put
// back; the parameters have no gradients afterwards. Two copies of parameters and state, and one update.
NamedTensors updated_by(Trainer& trainer, const std::vector<at::Tensor>& gradients);

}  // namespace headrace
