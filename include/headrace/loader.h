// Reads samples, transforms them on worker threads straight into pooled batches, and yields the batches in order.
//
// Order and bytes depend on (seed, epoch, options that change data) alone, never on threads, prefetch_batches or cache;
// the order of the samples of all ranks together does not depend on their number either.
// A Loader owns its threads; its destructor stops and joins them. One thread may iterate at a time, one epoch at a
// time. Memory: (prefetch_batches + 2) batches, taken from a pool when the Loader is built. In the steady state a batch
// costs one small allocation, the control block of its handle. A caller that keeps more than two batches makes the pool
// grow by what it keeps, up to the memory limit; next() never waits for the caller itself.
#pragma once

#include <headrace/dtype.h>
#include <headrace/error.h>
#include <headrace/source.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/loader/data_options.h"

namespace headrace {

// One named array of a batch; `bytes` is 64-byte aligned and writable by whoever holds the Batch.
struct BatchField {
  std::string name;
  DType dtype;
  Shape shape;
  std::vector<std::int64_t> strides;  // Elements.
  std::span<std::byte> bytes;
};

// A batch on the host: "image" (N, C, H, W) of transform.dtype, whose strides are transform.layout's, "labels" i64 (N)
// and "valid" u8 (N), which is 1 where a sample counts.
// Copies share the memory, which goes back to the loader's pool when the last copy dies, also after the Loader itself
// is gone. A sample that only fills the batch up has valid 0.
class Batch {
 public:
  std::int64_t size() const;  // Samples.
  std::int64_t epoch() const;
  std::int64_t index() const;                            // Position in its epoch, from 0.
  std::span<const std::int64_t> sample_indices() const;  // Into the source, in order.
  const std::vector<BatchField>& fields() const;
  const BatchField& field(std::string_view name) const;  // Error{invalid_argument} lists the names there are.

  struct Slot;  // data/detail
  explicit Batch(std::shared_ptr<Slot> slot) : slot_(std::move(slot)) {}

 private:
  std::shared_ptr<Slot> slot_;
};

// A batch that was asked for: a std::future of it that counts for how long its owner is blocked in it, which is what
// statistics and AUTOTUNE take for the consumer's waiting; what it does beside an open request is its own work. Of one
// thread at a time. May outlive its Loader.
class BatchFuture {
 public:
  // `blocked_ns`, if there is one, gets the time.
  explicit BatchFuture(std::future<std::optional<Batch>> batch,
                       std::shared_ptr<std::atomic<std::int64_t>> blocked_ns = nullptr)
      : batch_(std::move(batch)), blocked_ns_(std::move(blocked_ns)) {}

  // As std::future's.
  bool valid() const noexcept { return batch_.valid(); }
  void wait() const;
  std::future_status wait_for(std::chrono::nanoseconds limit) const;
  std::optional<Batch> get();

 private:
  std::future<std::optional<Batch>> batch_;
  std::shared_ptr<std::atomic<std::int64_t>> blocked_ns_;  // Owners: the loader, and its futures.
};

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

// Totals since the Loader was built. Busy time is summed over the workers; with threads = 0 it is the consumer's.
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
  std::int64_t consumer_busy_ns = 0;   // The consumer's, between two batches of an epoch, without its waiting.
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
  std::int64_t wait_for_slot_ns = 0;   // Workers waiting for room (the consumer is slower).
  std::int64_t wait_for_batch_ns = 0;  // The consumer blocked in next() or a BatchFuture (the loader is slower).
  std::int64_t ready_batches = 0;      // Whole batches waiting when one was asked for, summed; / batches: mean fill.
  std::int64_t batch_bytes = 0;        // Of one full batch.
  std::int64_t pool_bytes = 0;         // Of all batches allocated.
  std::int64_t workspace_bytes = 0;    // Of the files and images that workers hold.
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

  std::int64_t samples = 0;          // Loaded.
  std::vector<Pass> passes;          // As they were taken; before the first sample those that the options lead to.
  std::vector<Pass> stage_by_stage;  // What the same bytes would take if each stage were a pass of its own.
  std::optional<Moved> moved;        // nullopt before the first sample,
  std::optional<Moved> moved_stage_by_stage;  // likewise.
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

// Where the next batch stands, and what must be the same where the pass goes on. The same on every rank that has taken
// as many batches. Plain values, to be kept in any form: 48 bytes and the options.
struct LoaderState {
  std::int64_t epoch = 0;
  std::int64_t position = 0;  // Samples of the epoch that were delivered, those of all ranks together.
  std::uint64_t seed = 0;
  std::uint64_t source = 0;  // Source::fingerprint().
  std::int64_t batch_size = 0;
  std::int64_t world_size = 1;
  // Every key that decides samples or bytes, a line each: "data.shuffle = true". One that is missing, as an earlier
  // version did not know it, counts as its default.
  std::string options;
};

class Loader;

// One pass over the data. Destroying it early stops the work in progress within a few samples.
class Epoch {
 public:
  Epoch(Epoch&&) noexcept;
  ~Epoch();
  // The next batch, or nullopt at the end. Blocks. Rethrows the first error of a worker, which names the sample; the
  // epoch is over then and a new one may start. In place of its last batch an epoch without a single sound sample gives
  // Error{corrupt_data}. `while_waiting`, if given, is called every 50 ms while it waits for the loader's threads; what
  // that throws goes on and leaves the epoch as it was: next() may be called again.
  std::optional<Batch> next(const std::function<void()>& while_waiting = nullptr);
  // The same without waiting: the future holds what next() would have given or thrown. The worker that completes the
  // batch fulfils it; without workers request() itself loads. One request may be open at a time, and next() must not be
  // called beside it. Destroying the epoch fails an open one with Error{cancelled}.
  BatchFuture request();
  std::int64_t batches() const;  // Of this rank in the whole epoch, from its batch 0.

 private:
  friend class Loader;
  struct Impl;
  explicit Epoch(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Of one image in a batch.
struct ImageShape {
  int channels;
  int height;
  int width;
};

// What a Loader with these options makes of this source's images. Error{invalid_argument}: images of many sizes and
// no transform.size, or sides and channels that cannot be handled.
ImageShape batch_shape(const Source& source, const TransformOptions& transform);

class Loader {
 public:
  // `training` switches shuffle, samplers, buckets, last_batch = drop and random transforms on; without it every sample
  // comes once, in order.
  // Error{invalid_argument} for options that do not fit the source (mean of 3 channels on 1), Error{out_of_memory} with
  // both numbers when the pool would not fit into `memory_limit` bytes (0: the process's limit), or cache_mib not into
  // what is left of it.
  Loader(std::shared_ptr<const Source> source, DataOptions options, std::uint64_t seed, bool training,
         std::int64_t memory_limit = 0);
  ~Loader();

  // Batches of pass `index` (from 0), from batch `first_batch` on. At most one Epoch may be alive.
  Epoch epoch(std::int64_t index, std::int64_t first_batch = 0) &;
  Epoch epoch(std::int64_t index, std::int64_t first_batch = 0) && = delete;  // The epoch would outlive its loader.
  // The pass after the one begun last, 0 at first; or where start_at() or restore() put it.
  Epoch next_epoch() &;
  Epoch next_epoch() && = delete;

  // Where the batch after the delivered ones stands; after an epoch's last one the start of the next. A request counts
  // as delivered when it is made. Error{invalid_argument} within an epoch of in_order = false.
  LoaderState state() const;
  // next_epoch() goes on there, on any number of threads or ranks, with the same samples in the same bytes.
  // Error{invalid_argument} names what differs: seed, source, an option that decides bytes, or batch_size, which may
  // only change together with world_size so that their product stays.
  void restore(const LoaderState& state);
  // next_epoch() begins there. Errors as epoch().
  void start_at(std::int64_t index, std::int64_t first_batch = 0);

  std::int64_t batches_per_epoch() const;  // Of this rank.
  int channels() const;                    // Of the images in its batches, as batch_shape tells.
  int height() const;
  int width() const;
  // Between batches, also within a running epoch; no byte of any batch changes. From any thread. With AUTOTUNE the
  // Loader goes on from what it had found when a number took its place, or from what is in force, and adapts it as it
  // measures: threads (1 to data.num_workers_max) so that the
  // fewest that feed the consumer run, depth so that it does not starve, within data.prefetch_mib. It measures over 32
  // batches or 2 seconds, changes one thing, and takes back what does not pay. Error{io} or {out_of_memory} where a
  // thread or the memory for more batches cannot be had; nothing changes then.
  void set_num_workers(std::int64_t count);
  // Ends the threads there are and starts as many new ones; between two epochs. Error{io} or {out_of_memory}: the
  // system gave fewer, and those are in force.
  void renew_workers();
  void set_prefetch_batches(std::int64_t batches);
  // "data.num_workers" and "data.prefetch_batches", requested and in force.
  Applied applied_num_workers() const;
  Applied applied_prefetch() const;
  // In order; of many the newest 1,000.
  std::vector<LoaderDecision> decisions() const;
  // The same. Switched off, the cache's memory goes back as soon as no worker reads it; switched on, it begins empty.
  // Cache::automatic begins without one, chooses decoded or encoded where the consumer starves and the model promises
  // at least 5 %, and judges by the samples a second that the consumer gets once the cache has been filled: after the
  // rest of that epoch and a whole one, in which nothing else is changed. Another form takes the place of the one in
  // force, whose memory is free for it. With `keep` that one stays as it is while it is off, for comparing the two, and
  // its memory with it. None is on, as applied_cache() tells, where nothing is left of the memory limit, where the
  // source's pixels are in memory already, and for Cache::encoded where it gives pixels, no files.
  // Error{out_of_memory} as in the constructor; nothing changes then.
  void set_cache(Cache cache, bool keep = false);
  // What a cache may hold that is switched on now, in the place of what this loader's hold. Errors as above.
  std::int64_t cache_bytes_max() const;
  // "data.cache", requested and in force.
  Applied applied_cache() const;
  // "data.index", likewise. While data.index builds, the consumer waits at the end of the first whole epoch until the
  // index is written.
  Applied applied_index() const;
  // By index, each once; at most the first 1,000 that were found.
  std::vector<CorruptSample> corrupt_samples() const;
  LoaderStatistics statistics() const;
  // Of all samples since the Loader was built.
  LoaderPlan explain() const;
  // The dearest first; empty where nothing optional is switched on, or no sample can be made. Measured in the calling
  // thread with and without each, on samples from all over the source: as many as are made in 60 ms, at most 1,024, at
  // least one. Costs about a second, 3 at most but for a round that takes longer, and memory for the samples and for
  // rows of batches: up to 64 MiB each, and a quarter of what is left of the memory limit, but for the first of each.
  // Nothing is counted in statistics().
  std::vector<TransformCost> transform_costs() const;

 private:
  friend class Epoch;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
