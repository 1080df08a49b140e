#include <headrace/error.h>
#include <headrace/loader.h>
#include <headrace/trace.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "data/detail/chunk.h"
#include "data/detail/latency.h"
#include "data/detail/slot.h"
#include "hardware/machine.h"

namespace headrace {
namespace {

using detail::ChunkReport;
using detail::kChunkMax;
using detail::Pass;
using detail::Workspace;

constexpr SpanName kLoadChunk{"load_chunk", "work"};         // Value: the batch's index.
constexpr SpanName kWaitForRoom{"wait_for_room", "wait"};    // A worker; the consumer is slower.
constexpr SpanName kWaitForBatch{"wait_for_batch", "wait"};  // The consumer; the workers are slower.

// One batch held by the consumer while it asks for the next one, and that next one.
constexpr std::int64_t kConsumerBatches = 2;

DataOptions checked(DataOptions options) {
  for (auto& field : fields_of(options, "data.")) field.set(field.get());  // Throws for what lies out of range.
  const std::string crop = crop_contradiction(options.transform, "data.transform.");
  if (!crop.empty()) fail(ErrorCode::invalid_argument, "data: {}", crop);
  if (options.transform.size > 0) {
    fail(ErrorCode::unsupported, "data: data.transform.size is {}; sources give pictures as they are stored, wanted 0",
         options.transform.size);
  }
  return options;
}

const Source& checked(const std::shared_ptr<const Source>& source) {
  if (source == nullptr) fail(ErrorCode::invalid_argument, "data: a loader without a source");
  if (source->size() < 1) fail(ErrorCode::invalid_argument, "data: the source has no samples");
  return *source;
}

std::int64_t count_batches(std::int64_t samples, const DataOptions& options, bool training) {
  const std::int64_t whole = samples / options.batch_size;
  const bool drop = training && options.last_batch == LastBatch::drop;
  if (drop && whole == 0) {
    fail(ErrorCode::invalid_argument,
         "data: no batch is left: {} samples, batch_size {}, and last_batch drops what is smaller", samples,
         options.batch_size);
  }
  return drop ? whole : (samples + options.batch_size - 1) / options.batch_size;
}

std::int64_t limit_or_machines(std::int64_t requested) {
  if (requested < 0) fail(ErrorCode::invalid_argument, "data: a memory limit of {} bytes", requested);
  if (requested > 0) return requested;
  return detect_machine().memory_limit.value_or(std::numeric_limits<std::int64_t>::max());
}

// Samples [first, first + count) of a slot, taken by one worker.
struct Claim {
  Batch::Slot* slot = nullptr;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

}  // namespace

// A pass has a window of batches that are opened but not delivered. Workers claim chunks of the newest one and open the
// next when it is used up; positions are therefore claimed in order, so that after a failure everything before it is
// already in somebody's hands, and the first failure in the order of the data is found whatever the thread count.
struct Loader::Impl {
  Impl(std::shared_ptr<const Source> from, DataOptions how, std::uint64_t run_seed, bool for_training,
       std::int64_t memory_limit);
  ~Impl() { set_threads(0); }

  void set_threads(std::int64_t count);
  void set_prefetch_batches(std::int64_t count);
  void begin(std::int64_t index, std::int64_t first_batch);
  std::optional<Batch> next();
  void give_up();
  LoaderStatistics statistics() const;

  void work(std::int64_t worker, Workspace& workspace);
  void wait_for_work(std::unique_lock<std::mutex>& lock);
  bool can_claim(std::int64_t window_max) const;
  Claim claim(std::int64_t window_max);
  bool open_batch();
  void load(std::unique_lock<std::mutex>& lock, const Claim& claim, Workspace& workspace);
  void note_error(std::exception_ptr failure, std::int64_t position);
  bool stopping() const { return pass->stop_at.load(std::memory_order_relaxed) != Pass::kNever; }
  bool back_has_unclaimed() const { return !window.empty() && window.back()->claimed < window.back()->size; }
  bool front_is_ready() const { return !window.empty() && window.front()->finished == window.front()->size; }
  void wait_for_front(std::unique_lock<std::mutex>& lock);
  void end_pass();

  const std::shared_ptr<const Source> source;  // Owners: the loader, and the caller, who may read samples too.
  const DataOptions options;                   // As built; the live knobs are below.
  const std::uint64_t seed;
  const bool training;
  const PictureShape shape;
  const image::NormalizeTable table;
  const std::int64_t batches;
  const std::shared_ptr<detail::SlotPool> slots;  // Owners: see SlotPool.
  Workspace own_workspace;                        // The consumer's, when it loads by itself.

  mutable std::mutex mutex;       // Guards everything down to `latency`.
  std::condition_variable room;   // For workers: a chunk may be there to claim, or their number has changed.
  std::condition_variable ready;  // For the consumer: a batch is whole, an error is final, or the last worker stopped.
  std::int64_t threads = 0;
  std::int64_t prefetch;
  std::unique_ptr<Pass> pass;  // Of the running epoch, if any.
  std::int64_t next_open = 0;  // The batch that will be opened next.
  std::vector<std::unique_ptr<Batch::Slot>> window;
  std::int64_t working = 0;  // Claims whose report is out.
  std::exception_ptr error;  // The failure at pass->stop_at.
  LoaderStatistics totals;
  detail::LatencyHistogram latency;

  std::mutex resizing;  // Guards `workers`; taken before `mutex`.
  std::vector<std::jthread> workers;
};

Loader::Impl::Impl(std::shared_ptr<const Source> from, DataOptions how, std::uint64_t run_seed, bool for_training,
                   std::int64_t memory_limit)
    : source((checked(from), std::move(from))),
      options(checked(std::move(how))),
      seed(run_seed),
      training(for_training),
      shape(batch_shape(*source, options.transform)),
      table(image::make_normalize_table(options.transform.mean, options.transform.deviation, shape.channels)),
      batches(count_batches(source->size(), options, training)),
      slots(std::make_shared<detail::SlotPool>(
          detail::BatchShape{options.batch_size, shape.channels, shape.height, shape.width},
          options.prefetch_batches + kConsumerBatches, limit_or_machines(memory_limit))),
      prefetch(options.prefetch_batches) {
  window.reserve(static_cast<std::size_t>(prefetch));
  try {
    set_threads(options.threads);
  } catch (...) {
    set_threads(0);  // Those that did start wait for work, and nobody else would end them.
    throw;
  }
}

void Loader::Impl::set_threads(std::int64_t count) {
  std::lock_guard resize_lock(resizing);
  {
    std::lock_guard lock(mutex);
    threads = count;
  }
  room.notify_all();
  ready.notify_one();                                      // Without workers a waiting consumer loads by itself.
  while (std::ssize(workers) > count) workers.pop_back();  // Joins; the worker ends after its chunk.
  try {
    while (std::ssize(workers) < count) {
      const std::int64_t worker = std::ssize(workers);
      workers.emplace_back([this, worker, workspace = std::make_unique<Workspace>()] { work(worker, *workspace); });
    }
  } catch (const std::system_error& refused) {
    {
      std::lock_guard lock(mutex);
      threads = std::ssize(workers);
    }
    ready.notify_one();
    fail(ErrorCode::io, "data: cannot start loader thread {} of {}: {}", workers.size() + 1, count, refused.what());
  }
}

void Loader::Impl::set_prefetch_batches(std::int64_t count) {
  slots->set_kept(count + kConsumerBatches);
  {
    std::lock_guard lock(mutex);
    window.reserve(static_cast<std::size_t>(count));
    prefetch = count;
  }
  room.notify_all();
}

void Loader::Impl::begin(std::int64_t index, std::int64_t first_batch) {
  if (index < 0) fail(ErrorCode::invalid_argument, "data: epoch {}; wanted 0 or more", index);
  if (first_batch < 0 || first_batch > batches) {
    fail(ErrorCode::invalid_argument, "data: batch {} of an epoch of {}", first_batch, batches);
  }
  auto fresh =
      std::make_unique<Pass>(*source, table, options.transform, seed, index, training && options.shuffle, training);
  {
    std::lock_guard lock(mutex);
    if (pass != nullptr) fail(ErrorCode::invalid_argument, "data: epoch {} is still running", pass->epoch);
    if (first_batch == batches) return;  // Nothing is left of it.
    pass = std::move(fresh);
    next_open = first_batch;
  }
  room.notify_all();
}

// ---- Workers ----

void Loader::Impl::work(std::int64_t worker, Workspace& workspace) {
  name_this_thread(fmt::format("loader {}", worker));
  std::unique_lock lock(mutex);
  while (worker < threads) {
    if (const Claim mine = claim(prefetch); mine.slot != nullptr) {
      // Each worker wakes one more while there is something for it. One that is awake always comes back for the rest,
      // so no chunk is forgotten, and a fast source does not wake threads that would find nothing.
      if (can_claim(prefetch)) room.notify_one();
      load(lock, mine, workspace);
    } else {
      wait_for_work(lock);
    }
  }
}

void Loader::Impl::wait_for_work(std::unique_lock<std::mutex>& lock) {
  const bool window_is_full = pass != nullptr && !stopping() && next_open < batches;
  if (!window_is_full) {
    room.wait(lock);  // Between epochs, or all of this one is claimed: idle, not held up.
    return;
  }
  Span span{kWaitForRoom};
  const std::int64_t begin_ns = monotonic_ns();
  room.wait(lock);
  totals.wait_for_slot_ns += monotonic_ns() - begin_ns;
}

bool Loader::Impl::can_claim(std::int64_t window_max) const {
  if (pass == nullptr || stopping()) return false;
  if (back_has_unclaimed()) return true;
  return std::ssize(window) < window_max && next_open < batches;
}

// The next chunk in the order of the data, or one without slot when there is none now.
Claim Loader::Impl::claim(std::int64_t window_max) {
  if (!can_claim(window_max)) return {};
  if (!back_has_unclaimed() && !open_batch()) return {};
  Batch::Slot& slot = *window.back();
  // Two chunks a worker lie in a full window, so that few samples still occupy all.
  const std::int64_t fair = window_max * options.batch_size / (2 * std::max<std::int64_t>(threads, 1));
  const std::int64_t count = std::min(std::clamp<std::int64_t>(fair, 1, kChunkMax), slot.size - slot.claimed);
  const Claim mine{&slot, slot.claimed, count};
  slot.claimed += count;
  ++working;
  return mine;
}

// Adds the next batch to the window. False: there is no memory for it, which is noted as the error of its position.
bool Loader::Impl::open_batch() {
  const std::int64_t position = next_open * options.batch_size;
  try {
    const std::int64_t size = std::min(options.batch_size, source->size() - position);
    window.push_back(slots->take(pass->epoch, next_open, size));
    ++next_open;
    return true;
  } catch (...) {
    note_error(std::current_exception(), position);
    if (working == 0) ready.notify_one();
    return false;
  }
}

void Loader::Impl::load(std::unique_lock<std::mutex>& lock, const Claim& claim, Workspace& workspace) {
  const std::int64_t position = claim.slot->index * options.batch_size;
  lock.unlock();
  ChunkReport report;
  {
    Span span{kLoadChunk, claim.slot->index};
    report = load_chunk(*pass, *claim.slot, position, claim.first, claim.count, workspace);
  }
  lock.lock();
  --working;
  claim.slot->finished += report.samples;
  totals.samples += report.samples;
  totals.busy_ns += report.busy_ns;
  totals.read_ns += report.read_ns;
  if (report.error != nullptr) note_error(std::move(report.error), report.error_position);
  const bool whole = claim.slot->finished == claim.slot->size;
  if (whole || (working == 0 && stopping())) ready.notify_one();
}

// Keeps the first failure in the order of the data; what comes after it is not wanted any more.
void Loader::Impl::note_error(std::exception_ptr failure, std::int64_t position) {
  if (position >= pass->stop_at.load(std::memory_order_relaxed)) return;
  error = std::move(failure);
  pass->stop_at.store(position, std::memory_order_relaxed);
}

// ---- Consumer ----

std::optional<Batch> Loader::Impl::next() {
  const std::int64_t begin_ns = monotonic_ns();
  std::unique_lock lock(mutex);
  totals.ready_batches +=
      std::count_if(window.begin(), window.end(), [](const auto& slot) { return slot->finished == slot->size; });
  if (!front_is_ready()) wait_for_front(lock);
  if (!front_is_ready()) std::rethrow_exception(error);
  std::unique_ptr<Batch::Slot> slot = std::move(window.front());
  window.erase(window.begin());
  ++totals.batches;
  latency.add(monotonic_ns() - begin_ns);
  if (slot->index + 1 == batches) end_pass();
  lock.unlock();
  room.notify_one();
  return Batch{slots->hand_out(std::move(slot))};
}

// Returns when the front batch is whole, or when an error lies in it that no other can precede.
void Loader::Impl::wait_for_front(std::unique_lock<std::mutex>& lock) {
  const auto decided = [this] { return front_is_ready() || (stopping() && working == 0); };
  while (!decided()) {
    if (threads == 0) {
      if (const Claim mine = claim(1); mine.slot != nullptr) {
        load(lock, mine, own_workspace);
        continue;
      }
      if (decided()) return;
    }
    Span span{kWaitForBatch};
    const std::int64_t begin_ns = monotonic_ns();
    ready.wait(lock);
    totals.wait_for_batch_ns += monotonic_ns() - begin_ns;
  }
}

// Ends the running epoch, if there is one, when the samples now being read are done.
void Loader::Impl::give_up() {
  std::unique_lock lock(mutex);
  if (pass == nullptr) return;
  pass->stop_at.store(0, std::memory_order_relaxed);
  ready.wait(lock, [this] { return working == 0; });
  end_pass();
}

void Loader::Impl::end_pass() {
  for (auto& slot : window) slots->put_back(std::move(slot));
  window.clear();
  slots->trim();
  pass.reset();
  error = nullptr;
}

LoaderStatistics Loader::Impl::statistics() const {
  std::lock_guard lock(mutex);
  LoaderStatistics now = totals;
  now.batch_bytes = slots->batch_bytes();
  now.pool_bytes = slots->allocated_bytes();
  now.latency_ns_p50 = latency.reached_by(0.50);
  now.latency_ns_p95 = latency.reached_by(0.05);
  now.latency_ns_p99 = latency.reached_by(0.01);
  return now;
}

// ---- Public face ----

PictureShape batch_shape(const Source& source, const TransformOptions& /*transform*/) {
  if (source.height() < 1 || source.width() < 1) {
    fail(ErrorCode::invalid_argument, "data: pictures of {} x {} pixels", source.height(), source.width());
  }
  return {source.channels(), source.height(), source.width()};
}

struct Epoch::Impl {
  Loader::Impl* loader;
  std::int64_t batches;
  std::int64_t left;  // Batches still to be delivered. At 0 the epoch is over and the loader is not touched any more.
};

Epoch::Epoch(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Epoch::Epoch(Epoch&&) noexcept = default;

Epoch::~Epoch() {
  if (impl_ != nullptr && impl_->left > 0) impl_->loader->give_up();
}

std::optional<Batch> Epoch::next() {
  if (impl_->left == 0) return std::nullopt;
  try {
    auto batch = impl_->loader->next();
    --impl_->left;
    return batch;
  } catch (...) {
    impl_->loader->give_up();
    impl_->left = 0;
    throw;
  }
}

std::int64_t Epoch::batches() const {
  return impl_->batches;
}

Loader::Loader(std::shared_ptr<const Source> source, DataOptions options, std::uint64_t seed, bool training,
               std::int64_t memory_limit)
    : impl_(std::make_unique<Impl>(std::move(source), std::move(options), seed, training, memory_limit)) {}

Loader::~Loader() {
  HEADRACE_CHECK(impl_->pass == nullptr, "data: a loader was destroyed before its running epoch {}",
                 impl_->pass->epoch);
  impl_->slots->close();
}

Epoch Loader::epoch(std::int64_t index, std::int64_t first_batch) & {
  auto state = std::make_unique<Epoch::Impl>(Epoch::Impl{impl_.get(), impl_->batches, impl_->batches - first_batch});
  impl_->begin(index, first_batch);
  return Epoch{std::move(state)};
}

std::int64_t Loader::batches_per_epoch() const {
  return impl_->batches;
}

int Loader::channels() const {
  return impl_->shape.channels;
}
int Loader::height() const {
  return impl_->shape.height;
}
int Loader::width() const {
  return impl_->shape.width;
}

void Loader::set_threads(std::int64_t threads) {
  DataOptions asked = impl_->options;
  asked.threads = threads;
  impl_->set_threads(checked(std::move(asked)).threads);
}

void Loader::set_prefetch_batches(std::int64_t batches) {
  DataOptions asked = impl_->options;
  asked.prefetch_batches = batches;
  impl_->set_prefetch_batches(checked(std::move(asked)).prefetch_batches);
}

LoaderStatistics Loader::statistics() const {
  return impl_->statistics();
}

}  // namespace headrace
