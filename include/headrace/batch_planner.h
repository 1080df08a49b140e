// Finds the batch size that a memory limit holds and that trains fast, by three probes.
#pragma once

#include <headrace/trainer.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace headrace {

struct BatchPlannerOptions {
  std::int64_t initial_batch_size = 32;  // The first probe; half of it is tried too where it nearly fills the limit.
  std::int64_t max_batch_size = 512;     // Nothing larger is tried.
  // Bytes of tensors; 0: the limit in force, else beside what is held nine tenths of what the machine has left, or less
  // where the search's copies need more than the rest.
  std::int64_t memory_limit = 0;
  double target_throughput = 0;        // Samples/s that the smallest size is wanted for; 0: the best.
  std::int64_t global_batch_size = 0;  // Samples of an optimizer step, kept by accumulation; 0: none.
};

// One size that was tried.
struct BatchProbe {
  std::int64_t batch_size = 0;
  std::int64_t peak_bytes = 0;  // The most that tensors held in a step of it; where it ran out, what they held then.
  double step_s = 0;            // Forward, backward and update: median of two to five, after one that is not counted.
  double spread_s = 0;          // The slowest less the fastest.
  bool ran_out = false;         // No time was measured.
  std::int64_t kept_bytes = 0;  // Held between forward and backward: activations, with all that is always held.
  std::int64_t gradient_peak_bytes = 0;  // The most before an update; below peak_bytes where that is an update's.
};

// Up to the update a step holds fixed_bytes + activation_bytes + bytes_per_sample * batch_size.
struct BatchPlan {
  std::int64_t batch_size = 0;
  std::int64_t gradient_accumulation_steps = 1;  // With a global batch: micro-batches in an optimizer step.
  std::vector<BatchProbe> probes;                // In the order they were made.
  // Known exactly: parameters, buffers, gradients, optimizer state, averages, and all other tensors that were there. Of
  // an external optimizer the state that it has kept; what it makes in its first step is found by the probes alone.
  std::int64_t fixed_bytes = 0;
  double bytes_per_sample = 0;  // From two probes; of a single one an estimate.
  // Bytes at batch_size: of its own probe, else the more of the line, with the gradients of a window where it
  // accumulates, and of the update.
  std::int64_t predicted_peak = 0;
  std::optional<double> samples_per_second;  // At batch_size; nullopt: it was not probed itself.
  double memory_fraction = 0;                // predicted_peak as a part of memory_limit.
  double search_s = 0;                       // What the search took.
  std::string reason;                        // Why this size, and what BatchNorm makes of it, in a sentence or two.
  double activation_bytes = 0;               // That do not grow with the batch; below 0 where gradients come later.
  std::int64_t largest_batch_size = 0;       // That the limit holds; above batch_size where a smaller one was chosen.
  std::int64_t memory_limit = 0;             // Bytes that were kept to.
};

// A forward over `n` samples, which it brings; repeats of those that are there will do. Called once a probe.
using BatchOf = std::function<BoundForward(std::int64_t n)>;

// The size with the most samples a second of those that were probed and fit, or with a target the smallest that meets
// it; among equals, which are within 5 % or their spread, the largest. Probes are whole steps of the trainer, each size
// three to six of them: the initial size; one that fits if bytes grow no faster than in proportion; and the one that
// the line through both leads to. A fourth only where that line is broken, and one more for each size that is too large
// at first, which is survived; then smaller ones are tried, down to one sample. A step in the curve is looked for at
// the roundest number, where kernels and buckets change; one elsewhere may leave the plan smaller than it could be.
//
// Afterwards all is bit for bit as before: parameters, buffers, gradients and the open window, optimizer, averages,
// progress with all counts, window_notes(), the CPU's generator, what a rollback returns to. Other generators and the
// place in the data are batch_of's. With an external optimizer and the policy rollback the next step keeps a new state
// to return to. No hook of the trainer is called meanwhile; its spans are recorded.
//
// Memory: a copy of the training state beside the limit, and up to a quarter more than the limit where the machine has
// it, so that a size that is a little too large is measured instead of lost; only the plan keeps to the limit. Tensors
// of the CPU alone are counted, and counted from now on. Not thread-safe; no other thread may make tensors meanwhile,
// or they count.
//
// Error{invalid_argument}: sizes below 1, initial above max. Error{unsupported}: nobody can count tensors here, a
// parameter is not on the CPU, an external optimizer without keep_state, or no limit and the machine does not tell what
// it has left. Error{out_of_memory}: one sample does not fit, with what was asked, held and the limit. What forward
// throws goes on, and so does what an external optimizer throws while its state is put back, as where it is
// interrupted: all but that state is as before then.
BatchPlan plan_batch_size(Trainer& trainer, const BatchOf& batch_of, const BatchPlannerOptions& options = {});

// By a plan's line, for a step that does not accumulate; at least one sample.
std::int64_t predict_peak_bytes(const BatchPlan& plan, std::int64_t batch_size);
// The largest size whose predicted peak is within `memory_limit` bytes; 0: not even one sample.
std::int64_t predict_batch_size(const BatchPlan& plan, std::int64_t memory_limit);

}  // namespace headrace
