// Where the wall time of a recorded training loop went, step or no step: a pure function, safe to call from any thread.
#pragma once

#include <headrace/trace.h>

#include <cstdint>
#include <optional>
#include <string>

namespace headrace {

// What a loop does beside the parts of its steps, as whoever watches it records it.
namespace loop {
inline constexpr SpanName kEvaluation{"evaluation", "work"};  // A model's call without gradients.
inline constexpr SpanName kCheckpoint{"checkpoint", "work"};  // torch.save and the like.
inline constexpr SpanName kEpochEnd{"epoch_end", "wait"};     // The loader is asked for one batch more than it has.
inline constexpr SpanName kCpuTaken{"cpu_taken", "mark"};     // Of a step: nanoseconds ready to run without a core.
}  // namespace loop

// Seconds. All but total_s and cpu_taken_s add up to total_s.
struct WallSplit {
  double total_s = 0;  // Of the record.
  double setup_s = 0;  // Before the first part that is neither a transfer nor a checkpoint: imports, model, loader.
  double after_s = 0;  // Behind the last part.
  double data_wait_s = 0;
  double transfer_s = 0;
  double forward_s = 0;
  double backward_s = 0;
  double optimizer_s = 0;
  double validation_s = 0;  // Calls without gradients, what is loaded for them, and what lies between them.
  double checkpoint_s = 0;
  double python_s = 0;  // The script's own code between these parts, in the thread that runs it.
  double other_s = 0;   // What nobody knows: where rings were full, all before the first event that they still hold.
  // Of all of it: ready to run while other threads or programs had the cores. nullopt: unavailable.
  std::optional<double> cpu_taken_s;

  double loop_s() const { return total_s - setup_s - after_s; }  // What the parts are shares of.
};

// Of the thread with the most parts. No nanosecond counts twice: where parts overlap it belongs to the one that began
// first. Without parts all is setup. A forward outside of any step trains nothing and is validation, as is a wait for
// data or a transfer before it, and the end of its loader. Error{corrupt_data}: the record contradicts itself.
WallSplit split_wall(const TraceRecord& record);

// Seconds that threads waited, by what they waited for, over all threads; nullopt: nobody recorded such a wait. Where a
// Loader of headrace's ran, which records all of its waits, 0: there was none.
struct Waits {
  std::optional<double> empty_queue_s;     // A consumer for batches, or a reader for a worker process that is free.
  std::optional<double> full_queue_s;      // Workers for room.
  std::optional<double> lock_s;            // Spans of category "wait" whose names begin with "lock".
  std::optional<double> io_s;              // The same with "io": reads, what the page cache answers included.
  std::optional<double> cpu_taken_s;       // As WallSplit has it.
  std::string why_no_lock{}, why_no_io{};  // Why that is unavailable; empty: it is known.
};
// Of a span the time in which no other one of its thread lies within it, so that none counts twice. The record has
// every name: a TraceChoice of names that leaves waits out makes them 0. Error{corrupt_data}: as split_wall().
Waits waits_in(const TraceRecord& record);

// {"total_s", "setup_s", "after_s", "data_wait_s", ..., "share": {"data_wait", ...}} and {"empty_queue_s", ...} on one
// line; what is unavailable is null. Shares are of the loop's time.
std::string json_text(const WallSplit& split);
std::string json_text(const Waits& waits);

}  // namespace headrace
