// Which resource a training loop runs out of first, how sure that is, and what the loop gains without it. Pure
// functions of their arguments: nothing is measured here; safe to call from any thread.
#pragma once

#include <headrace/time_split.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace {

enum class Resource {
  storage,          // Reading samples.
  decode,           // Making samples of what was read.
  augment,          // Transforming them.
  collate,          // Making batches of samples.
  transfer,         // Moving batches to where they are computed on.
  compute,          // Forward and backward.
  optimizer,        // The update, beyond what reading and writing its tensors takes.
  python,           // The loop's own code, and the interpreter between operators.
  synchronisation,  // The training thread waits: for a lock, a device, a sleep, another program.
  memory,           // Pages from the system or from a disk, and the collection of garbage.
  cores,            // Threads that are ready to run and have no core.
  imbalance,        // Workers or ranks wait for the slowest of them.
};
const char* to_string(Resource resource) noexcept;

// What the training thread did in one part of its steps, over all of them.
struct PartUse {
  double wall_s = 0;
  double cpu_s = 0;               // Of this thread alone.
  double run_delay_s = 0;         // Ready to run without a core.
  std::int64_t minor_faults = 0;  // Pages that the system gave without a disk,
  std::int64_t major_faults = 0;  // and those that came from one.

  double blocked_s() const { return wall_s > cpu_s + run_delay_s ? wall_s - cpu_s - run_delay_s : 0; }
};
struct PartUses {
  PartUse data_wait, transfer, forward, backward, optimizer, other;
};

// What loading a batch takes of whoever does it, in mean seconds of one thread or process.
struct LoadingStages {
  double read_s = 0, decode_s = 0, augment_s = 0, collate_s = 0;
  int num_workers = 0;  // 0: the training thread loads.
  // Of single batches in the order in which they were loaded; empty: unavailable. Batches go to the workers in turn.
  std::vector<double> batch_s{};
  int prefetch_batches = 2;             // Loaded ahead, of all workers together; where batch_s is known.
  std::optional<double> warm_read_s{};  // read_s when the same samples are read a second time.

  double total_s() const { return read_s + decode_s + augment_s + collate_s; }
};

// A step's seconds, as differential runs of the loop had it.
struct StepExperiments {
  struct Figure {
    double middle = 0, low = 0, high = 0;  // With its 95 % interval.
  };
  std::optional<Figure> free_data;            // The whole step with one cached batch in place of the data.
  std::optional<double> idle_compute_wait;    // Its data wait while a sleep takes the place of compute.
  std::optional<double> undisturbed_compute;  // All but its data wait while no worker loads.

  bool any() const { return free_data || idle_compute_wait || undisturbed_compute; }
};

// What was recorded beside a time split; nullopt: unavailable. Seconds and counts are over all its steps, unless they
// say otherwise.
struct ResourceFigures {
  std::optional<PartUses> use;
  bool run_delay_known = true;  // False: `use` has 0 of it, and what waits for a core looks like what waits otherwise.
  std::optional<LoadingStages> loading;
  StepExperiments experiments;
  int compute_threads = 1;
  std::optional<double> python_in_compute_s;  // Of forward and backward: between operators.
  std::optional<double> garbage_s;            // Python's garbage collector.
  // The longest time that another thread of compute had no core; where `use` is unavailable, that any had none.
  std::optional<double> thread_delay_s;
  std::optional<double> memory_stall_s;        // The system's count of waiting for memory.
  std::vector<double> rank_busy_s;             // Of each rank, what it did not wait for others; empty: one process.
  std::optional<double> flops_per_step;        // Of forward and backward; those that were counted, so at least.
  std::optional<std::int64_t> update_bytes;    // That one update reads and writes at least,
  std::int64_t update_tensors = 0;             // in so many parameters.
  std::optional<std::int64_t> transfer_bytes;  // Of a step.
  std::optional<double> peak_flops_per_s;      // Of this machine, measured: a large product of matrices,
  std::optional<double> peak_bytes_per_s;      // a copy of memory,
  std::optional<double> page_fault_s;          // and a page that is touched first.
  std::string why_no_peak;                     // Where peak_flops_per_s or flops_per_step is unavailable.
};

// What a record holds of them, without its first `skip` steps: what forward and backward spend in no operator, where
// operators were recorded, all of them; how long the training thread had no core, where somebody recorded that; and
// the stages of loading, of spans of category "work" that are called "read", "decode", "augment" (or "transform") and
// "collate", where each step takes one batch. Nothing else: a trace does not tell what its operators compute, what a
// thread did in a part of its step, or what the machine can do. Errors are split_time()'s.
ResourceFigures figures_in(const TraceRecord& record, std::int64_t skip = 0);

struct ResourceLoss {
  Resource resource = Resource::compute;
  double lost_s = 0;                             // Of a step.
  double gain = 0, gain_low = 0, gain_high = 0;  // Step time now / step time without the loss - 1; 95 % interval.
  double confidence = 0;                         // From 0 to 1, as ResourceVerdict has it.
  bool confirmed = false;                        // A differential run showed it.
  std::string evidence;                          // "a step waits 3.1 ms for images to be decoded, 31 % of it".
  std::string advice;
  std::vector<std::string> keys;  // The settings that the advice is about.
};

// Of a step's time, by what bounds it; they add up to 1.
struct BoundShares {
  double data = 0;             // Waiting for batches.
  double copy = 0;             // Transfers.
  double memory = 0;           // As Resource::memory and
  double synchronisation = 0;  // Resource::synchronisation are estimated.
  double compute = 0;          // All the rest: forward, backward, optimizer, the loop's own code.
};

struct ResourceVerdict {
  // nullopt: data is waited for, but nobody knows for which stage; or most of a step lies in no part.
  std::optional<Resource> first;
  bool healthy = false;    // Nothing but compute takes kLossMin of a step or more.
  bool confirmed = false;  // A differential run showed `first`, or that data costs nothing where it is healthy.
  // That `first` is right: how far its loss, or its absence, stands clear of kLossMin and of the next one, in terms of
  // their scatter. At most 0.9 where no differential run confirmed it.
  double confidence = 0;
  std::string sentence;                  // With whether it is confirmed, and how sure it is, where it names something.
  std::string to_confirm;                // How one does; empty: it is confirmed, or names nothing.
  std::vector<ResourceLoss> losses;      // Of kLossMin and more, the largest first.
  std::optional<double> peak_share;      // Of the machine's measured peak that forward and backward reach at least.
  std::optional<BoundShares> shares;     // nullopt: nobody recorded what the thread did in the parts of its steps.
  std::vector<std::string> unavailable;  // What could not be judged, and why: a sentence each.
};

inline constexpr double kLossMin = 0.075;  // Of a step. Half of the 15 % that a fault has to cost to be told surely.

// Error{invalid_argument}: no steps, or a figure that is not finite or below 0.
ResourceVerdict judge_resources(const TimeSplit& split, const ResourceFigures& figures);
std::string json_text(const ResourceVerdict& verdict);

// Mean seconds that a consumer waits for a batch when it spends `compute_s` on each, batches take `batch_s` in turn,
// and batch i goes to worker i % num_workers (above 0) as soon as that is free and batch i - prefetch_batches was
// taken.
double simulated_wait(const std::vector<double>& batch_s, int num_workers, int prefetch_batches, double compute_s);

}  // namespace headrace
