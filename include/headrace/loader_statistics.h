// What a Loader tells about its work: times, bytes, the settings that it chose, samples that it replaced.
#pragma once

#include <headrace/transform.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

// One of the stages that a sample passes, and what passed it since the Loader was built. Read, decode and transform are
// work of the same threads, one after the other without a queue between them: a thread that finds no room for another
// batch waits before it reads.
struct LoaderStage {
  std::string_view name;                // "read", "decode", "transform" or "consume".
  std::int64_t records = 0;             // Samples; cached ones are not read, nor decoded where they are kept decoded.
  std::int64_t busy_ns = 0;             // Of all threads; of "consume", the consumer's own time between two batches.
  std::int64_t wait_for_input_ns = 0;   // Its input was not there.
  std::int64_t wait_for_output_ns = 0;  // There was no room for its output.
  std::int64_t bytes = 0;               // Files or pixels read; pixels decoded; of batches written, and delivered.
  double queue = 0;                     // Mean of whole batches waiting before it.
  bool limits = false;                  // Of the one stage that bounds the rate.
};

// Totals since the Loader was built. Busy time is summed over the workers; with num_workers = 0 it is the training
// loop's.
struct LoaderStatistics {
  std::int64_t samples = 0;      // Read and transformed.
  std::int64_t batches = 0;      // Delivered.
  std::int64_t busy_ns = 0;      // Reading and transforming.
  std::int64_t read_ns = 0;      // The part of busy_ns spent in Source::read.
  std::int64_t decode_ns = 0;    // The part of busy_ns spent in decoding JPEG and PNG.
  std::int64_t cpu_ns = 0;       // CPU time of the workers, measured every few milliseconds,
  std::int64_t cpu_busy_ns = 0;  // over this part of busy_ns. The rest of it is waiting.
  std::int64_t read = 0;         // Samples that Source::read gave, and their bytes.
  std::int64_t read_bytes = 0;
  std::int64_t decoded = 0;  // Images decoded, and the bytes of the pixels that were wanted of them.
  std::int64_t decoded_bytes = 0;
  std::int64_t written_bytes = 0;  // Of samples in batches.
  std::int64_t delivered = 0;      // Samples, and their bytes.
  std::int64_t delivered_bytes = 0;
  std::int64_t collate_ns = 0;         // Making batches of samples: taking memory and handing it out. No byte is moved.
  std::int64_t consumer_busy_ns = 0;   // Of the training loop between two batches, waiting for data excluded.
  std::int64_t num_workers = 0;        // In force now,
  std::int64_t prefetch_batches = 0;   // likewise.
  std::int64_t workers_started = 0;    // Of the Loader's own, ended ones included.
  std::int64_t corrupt = 0;            // Times that a sample was replaced or zeroed, or a replacement was corrupt too.
  std::int64_t cache_hits = 0;         // Samples found in the cache.
  std::int64_t cache_misses = 0;       // Samples looked for in vain.
  std::int64_t cache_bytes = 0;        // Held by the cache now.
  std::int64_t index_hits = 0;         // Images decoded by their entropy index.
  std::int64_t index_misses = 0;       // Images that the index did not know: new, changed, or there is none of them.
  std::int64_t index_refused = 0;      // Indices that were damaged or did not fit; the image was decoded without.
  std::int64_t wait_for_slot_ns = 0;   // Workers waiting for room (the consumer, or its device, is slower).
  std::int64_t wait_for_batch_ns = 0;  // The consumer blocked in next() or a BatchFuture (the loader is slower).
  std::int64_t ready_batches = 0;      // Whole batches waiting when one was asked for, summed; / batches: mean fill.
  std::int64_t batch_bytes = 0;        // Of one full batch.
  std::int64_t pool_bytes = 0;         // Of all batches allocated.
  // Batches whose memory is not used again: it is page-locked, and when their last view died a CUDA graph was captured
  // on that thread, which may read them at each replay, or CUDA reported an error. Their bytes are part of pool_bytes.
  std::int64_t retired_batches = 0;
  std::int64_t workspace_bytes = 0;  // Of the files and images that workers hold.
  // From asking for a batch to its delivery, loading by the consumer included: half, 5 in 100, 1 in 100 of the requests
  // took this long or longer, within 4 %. nullopt before the first delivery.
  std::optional<std::int64_t> latency_ns_p50;
  std::optional<std::int64_t> latency_ns_p95;
  std::optional<std::int64_t> latency_ns_p99;

  // What starves the consumer is the stage that keeps the threads busiest; a consumer that waits for less than 2 % of
  // the time is itself what limits.
  std::array<LoaderStage, 4> stages() const;
};

// A change that the Loader chose by itself, for a setting that is AUTOTUNE, and what became of it.
struct LoaderDecision {
  std::int64_t batch = 0;         // Delivered before it since the Loader was built.
  double at_s = 0;                // Since then.
  std::string what;               // "data.num_workers", "data.prefetch_batches" or "data.cache".
  std::int64_t from = 0, to = 0;  // Of data.cache values of Cache; text_of() names them.
  std::string why;                // With the rates it was made from.
  double before = 0;              // Samples a second that the consumer got before,
  std::optional<double> after;    // and after it; nullopt: not measured (yet).
  bool rolled_back = false;       // It did not pay, and the next decision takes it back; or none of it could be had.

  std::string text_of(std::int64_t value) const;  // "3", or of data.cache "decoded"; "unknown": no Cache.
};

// What a Loader does with a sample: passes over its values, one after the other. Bytes are means of all samples loaded,
// also of those that a pass left out; nullopt before the first sample.
struct LoaderPlan {
  struct Pass {
    std::string name;  // Stages done in one pass stand in one name: "resize, flip, to float, planes, into the batch".
    std::int64_t samples = 0;         // That took it.
    std::optional<double> bytes_in;   // Read; of a file all of it, though a crop's decoding may end before its end.
    std::optional<double> bytes_out;  // Written to memory. What lies in memory already is not copied: 0.
  };
  struct Moved {         // Bytes a sample.
    double copied = 0;   // Written,
    double touched = 0;  // and read or written.
  };

  std::int64_t samples = 0;               // Loaded.
  std::int64_t retired_batches = 0;       // As LoaderStatistics::retired_batches.
  std::vector<TransformStep> transforms;  // Which operations share a pass, and what keeps the others from it.
  std::vector<Pass> passes;               // As they were taken; before the first sample those that the options lead to.
  // What the same bytes would take if each stage were a pass of its own; empty for a list of operations that is more
  // than one pass.
  std::vector<Pass> stage_by_stage;
  std::optional<Moved> moved;                 // nullopt before the first sample,
  std::optional<Moved> moved_stage_by_stage;  // likewise, and where stage_by_stage is empty.
};

// A transform that a user could leave out, and what it costs.
struct TransformCost {
  std::string name;     // "crop" (the random one, in place of the center), "pad" or "flip".
  std::string setting;  // That leaves it out: "data.transform.flip_probability = 0"; of several keys with "; " between.
  // Of the time that making a sample takes which no cache holds. Below 0: without it that takes longer.
  double share = 0;
  double read_share = 0;     // Of reading the rows of an image that a crop wants; 0 where samples are read whole,
  double decode_share = 0;   // of decoding,
  double augment_share = 0;  // and of the pass from there into the batch.
};

// A sample that on_corrupt replaced or zeroed.
struct CorruptSample {
  std::int64_t index;
  std::string name;
  std::string reason;  // The Error's message.
};

}  // namespace headrace
