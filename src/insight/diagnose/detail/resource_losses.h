// What a step loses to each resource, estimated from what was recorded.
#pragma once

#include <headrace/resource_verdict.h>

#include <string>
#include <vector>

namespace headrace::detail {

// A step's mean seconds, and how many steps they are of.
struct StepMeans {
  double steps = 0;
  double step_s = 0, data_wait_s = 0, transfer_s = 0, forward_s = 0, backward_s = 0, optimizer_s = 0, other_s = 0;

  double compute_s() const { return forward_s + backward_s; }
  double busy_s() const { return step_s - data_wait_s; }
};
StepMeans means_of(const TimeSplit& split);

struct LossEstimate {
  Resource resource = Resource::compute;
  double lost_s = 0, low_s = 0, high_s = 0;  // Of a step, with its 95 % interval.
  bool confirmed = false;
  bool loads_ahead = true;  // False: a stage of loading, and no worker loads while the loop computes.
  std::string evidence;
  double weight = 1;  // Of two that are as large, the one with more goes first: by what a stage of loading takes.
};
// `error`: half of the interval, over the loss; the lower end is at least 0.
LossEstimate loss_of(Resource resource, double lost_s, double error, std::string evidence);

struct Losses {
  std::vector<LossEstimate> known;       // In no order; those of 0 are left out.
  double unknown_s = 0;                  // Of a step: lost to something that nobody can name,
  std::string unknown;                   // and what it is.
  std::vector<std::string> unavailable;  // As ResourceVerdict has it.
};
Losses estimate_losses(const TimeSplit& split, const ResourceFigures& figures);

}  // namespace headrace::detail
