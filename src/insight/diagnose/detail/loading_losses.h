// What a step loses to the stages of loading, and compute to the threads that load.
#pragma once

#include <vector>

#include "insight/diagnose/detail/resource_losses.h"

namespace headrace::detail {

struct LoadingLosses {
  std::vector<LossEstimate> stages;  // Storage, decode, augment, collate, imbalance.
  double unknown_s = 0;              // Of a step: waited for, nobody knows for which stage.
  double taken_from_compute_s = 0;   // Of a step, by threads that load beside it; as far as experiments tell.
  bool taking_is_measured = false;
};

// `wait_error`: half of the interval of the mean data wait, over it.
//
// What a stage costs is what its absence would spare. The training thread that loads by itself would be spared the
// stage; of workers the wait that is left is that of a pipeline whose batches take so much less. Batches that each take
// their mean tell what is lost because they differ.
LoadingLosses loading_losses(const StepMeans& mean, double wait_error, const ResourceFigures& figures);

}  // namespace headrace::detail
