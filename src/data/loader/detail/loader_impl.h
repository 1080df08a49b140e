// What a Loader is made of, and how the parts are wired. loader_workers.cpp fills batches, loader_consumer.cpp hands
// them out, loader_settings.cpp changes threads, depth and cache, loader_plan.cpp explains, transform_cost.cpp weighs
// transforms, loader.cpp builds it, begins epochs and tells where it stands.
#pragma once

#include <headrace/error.h>
#include <headrace/loader.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/base/condition_variable.h"
#include "core/memory/accounts.h"
#include "core/trace/lock_wait.h"
#include "data/loader/detail/batch_layout.h"
#include "data/loader/detail/batch_window.h"
#include "data/loader/detail/cache_placement.h"
#include "data/loader/detail/chunk.h"
#include "data/loader/detail/consumer.h"
#include "data/loader/detail/loader_counters.h"
#include "data/loader/detail/loader_state.h"
#include "data/loader/detail/loader_tuning.h"
#include "data/loader/detail/order.h"
#include "data/loader/detail/pass.h"
#include "data/loader/detail/place.h"
#include "data/loader/detail/slot.h"
#include "data/loader/detail/worker_pool.h"
#include "data/loader/detail/workspace.h"
#include "data/source/entropy_index_cache.h"
#include "data/source/field_bytes.h"
#include "data/source/sample_reader.h"
#include "data/transform/plan.h"

namespace headrace {

namespace detail {
inline constexpr SpanName kLockLoader{"lock_loader", "wait"};  // Workers and consumer, of each other's `mutex`.
}  // namespace detail

struct Loader::Impl {
  using ChunkReport = detail::ChunkReport;
  using Claim = detail::Claim;
  using BatchSampler = detail::BatchSampler;
  using Pass = detail::Pass;
  using Place = detail::Place;
  using Workspace = detail::Workspace;

  Impl(std::shared_ptr<const Source> from, DataOptions how, std::uint64_t run_seed, bool for_training,
       std::int64_t limit, OrderOfEpoch orders, transform::Operations operations);

  // ---- Epochs ----
  Place place_of(std::int64_t index, std::int64_t first_batch) const;
  std::unique_ptr<Epoch::Impl> begin(std::optional<Place> from);
  BatchSampler sampler_from(std::int64_t position) const;
  std::unique_ptr<const detail::GivenEpoch> given_order(const Place& place) const;
  BatchSampler sampler_of(const detail::GivenEpoch& given, const Place& place) const;
  std::int64_t batches_per_epoch() const;
  [[noreturn]] static void fail_for_count();
  const ImageShape& image_shape() const;  // Error{invalid_argument}: there is no image.
  LoaderState state() const;
  void restore(const LoaderState& state);
  void start_at(Place place);

  // ---- Workers, and the consumer where there are none ----
  std::int64_t announced_max() const { return reader.can().expecting == nullptr ? 0 : options.batch_size; }
  void prepare(Workspace& workspace) const;
  std::unique_ptr<Workspace> make_workspace() const;
  void work(std::int64_t worker, Workspace& workspace);
  void wait_for_work(std::unique_lock<std::mutex>& lock, Workspace& workspace);
  void give_back(Workspace& workspace);
  Claim claim(std::int64_t depth);
  bool open_batch();
  void wait_for_block(std::unique_lock<std::mutex>& lock, std::condition_variable& changed) const;
  std::int64_t load(std::unique_lock<std::mutex>& lock, const Claim& claim, Workspace& workspace);
  void settle_end(std::unique_lock<std::mutex>& lock);
  void announce(const Batch::Slot& slot, Workspace& workspace) const;
  bool completes(Batch::Slot& slot, std::int64_t made) const noexcept;
  void seal(Batch::Slot& slot, ChunkReport& report) const noexcept;
  void load_requested();
  void tell_consumer(std::unique_lock<std::mutex>& lock);
  void fulfil_request(std::unique_lock<std::mutex>& lock);

  // ---- The consumer ----
  std::optional<Batch> next(const std::function<void()>& while_waiting);
  BatchFuture request();
  void give_up();
  void wait_for_front(std::unique_lock<std::mutex>& lock, const std::function<void()>& while_waiting);
  void wait_until_ready(std::unique_lock<std::mutex>& lock, const std::function<void()>& while_waiting);
  std::optional<Batch> take_front(std::int64_t begin_ns);
  void check_soundness() const;
  void end_open_pass();
  void count_ready();
  std::int64_t count_delivery(const Batch::Slot& slot, std::int64_t asked_ns);
  void measure_consumer(std::int64_t asked_ns);
  void end_pass();

  // ---- Settings ----
  void set_num_workers(std::int64_t wanted);
  void renew_workers();
  void set_prefetch_batches(std::int64_t wanted);
  void set_cache(Cache wanted, bool keep);
  Applied applied_num_workers() const;
  Applied applied_prefetch() const;
  Applied applied_cache() const;
  void deepen(std::int64_t count);
  std::int64_t prefetch_max(std::int64_t wanted, std::int64_t bytes_a_batch) const;
  std::int64_t bytes_a_batch() const { return batch_bytes + slots->ragged_bytes(); }
  std::int64_t first_prefetch() const;
  detail::LoaderTuning::Settables settables();
  void ask_for(const detail::LoaderSetting& wanted);
  void retune();

  // ---- What it tells ----
  LoaderStatistics statistics() const;
  std::vector<LoaderDecision> decisions() const;
  std::vector<CorruptSample> corrupt_samples() const;
  LoaderPlan explain() const;
  std::vector<TransformCost> transform_costs() const;
  std::int64_t held_bytes() const;

  const std::vector<detail::ToldOperation> told_operations;  // Those that came in place of the options' own.
  const bool has_list;                                       // Of operations, in the options or in their place.
  const std::shared_ptr<const Source> source;  // Owners: the loader, and the caller, who may read samples too.
  const DataOptions options;                   // As built; the live knobs are below.
  const std::uint64_t seed;
  const bool training;
  const SampleReader reader;          // Of the source.
  const detail::SampleFields fields;  // Of the source's samples.
  const std::optional<FieldBytes>
      rest;                    // How a cache keeps fields beside the image; none: there is but a label, known without.
  const transform::Plan plan;  // What is done with images.
  const ImageShape shape;      // 0 x 0: there is no image.
  const bool is_open;          // How many samples an epoch has shows at its end.
  const detail::Order order;
  const OrderOfEpoch order_of;      // Null: `order` says.
  const std::int64_t batches;       // Of a whole epoch; where orders are given, of one that takes each sample once.
                                    // is_open: more than any epoch has.
  const std::int64_t memory_limit;  // Bytes.
  const detail::BatchLayout layout;
  const std::int64_t batch_bytes;  // But for ragged values.
  const std::int64_t built_ns;
  const std::shared_ptr<detail::SlotPool> slots;  // Owners: see SlotPool.
  detail::EntropyIndexCache indices;
  Workspace own_workspace;  // The consumer's, when it loads by itself.

  const std::string bytes_options;  // LoaderState::options.

  // Taken before `mutex` by whoever changes threads, depth, cache or what is asked for of them.
  std::mutex resizing;
  // Guards what the parts below say that it does.
  mutable std::mutex mutex;
  std::condition_variable room;   // For workers: a chunk may be there to claim, or their number has changed.
  std::condition_variable ready;  // For the consumer: a batch is whole, an error is final, or the last worker stopped.
  detail::BatchWindow window;
  detail::Consumer consumer;
  detail::LoaderCounters counters;
  detail::CachePlacement cache{{reader, fields, options, rest.has_value()}, memory_limit, mutex};
  detail::LoaderTuning tuning{options, batches, settables(), mutex};

  // What the accounts told last. They do not wait for `mutex`: who holds it may wait for Python's lock, and who asks
  // them, or makes or destroys another account meanwhile, may have that.
  mutable std::atomic<std::int64_t> held_told{0}, cached_told{0};
  const Account batch_account{"batches", [this] { return held_bytes(); }};
  const Account cache_account{"cache", [this] {
                                const std::unique_lock lock(mutex, std::try_to_lock);
                                if (lock) cached_told = cache.bytes();
                                return cached_told.load();
                              }};
  // The last: its threads use all of this until they are joined.
  detail::WorkerPool workers{{mutex, room, ready},
                             {[this] { return make_workspace(); },
                              [this](std::int64_t worker, Workspace& workspace) { work(worker, workspace); }}};
};

struct Epoch::Impl {
  Loader::Impl* loader;
  std::optional<std::int64_t> batches;  // None: how many shows at its end.
  // Batches still to be delivered. At 0 the epoch is over and the loader is not touched any more. Owners: the epoch,
  // and the loader as long as the pass runs.
  std::shared_ptr<std::atomic<std::int64_t>> left;
};

}  // namespace headrace
