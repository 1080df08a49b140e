// What operators depend on beside their arguments, to be brought back when they run again.
#pragma once

#include <ATen/core/Tensor.h>

namespace headrace {

struct ReplayState {
  at::Device device;
  bool autocast;
  at::ScalarType autocast_type;
  at::Tensor generator;  // Its state; undefined where nothing is drawn.
};

// Of this thread and, where it `draws`, of the device's default generator.
ReplayState current_state(at::Device device, bool draws);

// For a scope, as they were in the forward.
class Replayed {
 public:
  explicit Replayed(const ReplayState& given);
  ~Replayed();
  Replayed(const Replayed&) = delete;
  Replayed& operator=(const Replayed&) = delete;

 private:
  ReplayState before_;
};

// For a scope, autocast keeps no copies of weights: one of the backward, which lies outside of every autocast scope,
// would be found by the next forward, after an update. A block reads each weight once.
class NoCopiesOfWeights {
 public:
  NoCopiesOfWeights();
  ~NoCopiesOfWeights();
  NoCopiesOfWeights(const NoCopiesOfWeights&) = delete;
  NoCopiesOfWeights& operator=(const NoCopiesOfWeights&) = delete;

 private:
  bool was_kept_;
};

}  // namespace headrace
