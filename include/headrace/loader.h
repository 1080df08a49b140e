// Reads samples, transforms them on worker threads straight into pooled batches, and yields the batches in order.
//
// Order and bytes depend on (seed, epoch, options that change data) alone, never on num_workers, prefetch_batches or
// cache; the order of the samples of all ranks together does not depend on their number either. A Loader owns its
// threads; its destructor stops and joins them. One thread may iterate at a time, one epoch at a time. Memory:
// (prefetch_batches + 2) batches, taken from a pool when the Loader is built. In the steady state a batch costs one
// small allocation, the control block of its handle; ragged fields take memory of their own, which grows to what most
// batches need, within the same limit. A caller that keeps more than two batches makes the pool grow by
// what it keeps, up to the memory limit; next() never waits for the caller itself.
#pragma once

#include <headrace/batch.h>
#include <headrace/error.h>
#include <headrace/given_order.h>
#include <headrace/loader_state.h>
#include <headrace/loader_statistics.h>
#include <headrace/operation.h>
#include <headrace/options/data.h>
#include <headrace/source.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace headrace {

class Loader;

// One epoch: every sample of this rank once. Where the source does not tell its size (kUnknownSize) the epoch is over
// when next() has given nullopt, not with its last batch. Destroying it early stops the work in progress within a few
// samples.
class Epoch {
 public:
  Epoch(Epoch&&) noexcept;
  ~Epoch();
  // The next batch, or nullopt at the end. Blocks. Rethrows the first error of a worker, which names the sample; the
  // epoch is over then and a new one may start. In place of its last batch, or of nullopt where the source does not
  // tell its size, an epoch without a single sound sample gives Error{corrupt_data}. `while_waiting`, if given, is
  // called every 50 ms while it waits for the loader's threads; what that throws goes on and leaves the epoch as it
  // was: next() may be called again.
  std::optional<Batch> next(const std::function<void()>& while_waiting = nullptr);
  // The same without waiting: the future holds what next() would have given or thrown. The worker that completes the
  // batch fulfils it; without workers request() itself loads. One request may be open at a time, and next() must not be
  // called beside it. Destroying the epoch fails an open one with Error{cancelled}.
  BatchFuture request();
  // Of this rank in the whole epoch, from its batch 0. Error{invalid_argument}: the source does not tell its size.
  std::int64_t batches() const;

 private:
  friend class Loader;
  struct Impl;
  explicit Epoch(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// What a Loader whose options have this transform and no list of operations makes of this source's images.
// Error{invalid_argument}: images of many sizes and no transform.size, or a size and channels that cannot be handled.
ImageShape batch_shape(const Source& source, const TransformOptions& transform);

class Loader {
 public:
  // `training` switches shuffle, samplers, buckets, last_batch = drop and random transforms on; without it every sample
  // comes once, in order.
  // Error{invalid_argument} for options that do not fit the source (mean of 3 channels on 1, a transform where there is
  // no image), Error{unsupported} for fields that no batch holds, Error{out_of_memory} with both numbers when the pool
  // would not fit into `memory_limit` bytes (0: the process's limit), or cache_mib not into what is left of it.
  // `order`: gives each epoch's order, in training or not. Error{invalid_argument} then for data.sampler, weights,
  // shuffle_window, buckets and a world_size above 1; and from an epoch's beginning for an order that names a sample
  // which is not there, or a batch that is empty or larger than batch_size.
  // A source of unknown size: Error{invalid_argument} for shuffle and on_corrupt = replace in training, a world_size
  // above 1, a cache, an order that is given and operations with partners; from an epoch for one that has no sample, or
  // none left of it by last_batch = drop.
  //
  // `operations`: what becomes of the images, in place of options.transform, of which layout alone remains, and of
  // options.transforms, in training and without. Their names are what a LoaderState tells of them.
  Loader(std::shared_ptr<const Source> source, DataOptions options, std::uint64_t seed, bool training,
         std::int64_t memory_limit = 0, OrderOfEpoch order = nullptr,
         std::vector<std::shared_ptr<const Operation>> operations = {});
  ~Loader();

  // Batches of epoch `index` (from 0), from batch `first_batch` on, which is 0 where orders are given. At most one
  // Epoch may be alive.
  Epoch epoch(std::int64_t index, std::int64_t first_batch = 0) &;
  Epoch epoch(std::int64_t index, std::int64_t first_batch = 0) && = delete;  // The epoch would outlive its loader.
  // The epoch after the one begun last, 0 at first; or where start_at() or restore() put it.
  Epoch next_epoch() &;
  Epoch next_epoch() && = delete;
  std::int64_t next_epoch_index() const;  // Which one that would be.

  // Where the batch after the delivered ones stands; after an epoch's last one the start of the next. A request counts
  // as delivered when it is made. Error{invalid_argument} within an epoch of in_order = false. Where the source does
  // not tell its size a request counts when its batch is there, and state() throws until then; behind an epoch's last
  // batch it stands at the end of that epoch, until the consumer has asked for one more.
  LoaderState state() const;
  // next_epoch() goes on there, on any number of threads or ranks, with the same samples in the same bytes.
  // Error{invalid_argument} names what differs: seed, source, an option that decides bytes, or batch_size, which may
  // only change together with world_size so that their product stays. Where orders are given, the epoch that begins
  // there refuses another order than the state's.
  void restore(const LoaderState& state);
  // next_epoch() begins there. Errors as epoch().
  void start_at(std::int64_t index, std::int64_t first_batch = 0);

  // What its batches are made of, in this order: the fields of the source's samples.
  const Schema& schema() const;
  // Of this rank. Where orders are given, of the epoch begun last; Error{invalid_argument} before the first, and where
  // the source does not tell its size.
  std::int64_t batches_per_epoch() const;
  // Of the images in its batches. Error{invalid_argument}: they have none.
  int channels() const;
  int height() const;
  int width() const;
  // Between batches, also within a running epoch; no byte of any batch changes. From any thread. With AUTOTUNE the
  // Loader goes on from what it had found when a number took its place, or from what is in force, and adapts it as it
  // measures: threads (1 to data.num_workers_max) so that the fewest that feed the consumer run, depth so that it does
  // not starve, within data.prefetch_mib. It measures over 32 batches or 2 seconds, changes one thing, and takes back
  // what does not pay; with data.auto_tune = false it does none of that, and what is AUTOTUNE stays as it is. Error{io}
  // or {out_of_memory} where a thread or the memory for more batches cannot be had; nothing changes then.
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
  // Between batches, from any thread; no byte of any batch changes. Switched off, the cache's memory goes back as soon
  // as no worker reads it; switched on, it begins empty. Cache::automatic begins without one, chooses decoded or
  // encoded where the consumer starves and the model promises at least 5 %, and judges by the samples a second that the
  // consumer gets once the cache has been filled: after the rest of that epoch and a whole one, in which nothing else
  // is changed. Another form takes the place of the one in force, whose memory is free for it. With `keep` that one
  // stays as it is while it is off, for comparing the two, and its memory with it. None is on, as applied_cache()
  // tells, where nothing is left of the memory limit, where the source's pixels are in memory already, and for
  // Cache::encoded where it gives pixels, no files. Error{out_of_memory} as in the constructor; nothing changes then.
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
  // The dearest first; empty for a list of operations and a source of unknown size, where nothing optional is switched
  // on, or no sample can be made.
  // Measured in the calling thread with and without each, on samples from all over the source: as many as are made in
  // 60 ms, at most 1,024, at least one. Costs about a second, 3 at most but for a round that takes longer, and memory
  // for the samples and for rows of batches: up to 64 MiB each, and a quarter of what is left of the memory limit, but
  // for the first of each. Nothing is counted in statistics().
  std::vector<TransformCost> transform_costs() const;

 private:
  friend class Epoch;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
