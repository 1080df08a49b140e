#include <headrace/error.h>
#include <headrace/loader.h>
#include <headrace/trace.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "data/detail/chunk.h"
#include "data/detail/entropy_shelf.h"
#include "data/detail/latency.h"
#include "data/detail/loader_state.h"
#include "data/detail/order.h"
#include "data/detail/slot.h"
#include "data/detail/workspace.h"
#include "hardware/machine.h"
#include "memory/accounts.h"
#include "store/ram_cache.h"

namespace headrace {
namespace {

using detail::ChunkReport;
using detail::Deal;
using detail::kChunkMax;
using detail::Pass;
using detail::Workspace;

constexpr SpanName kLoadChunk{"load_chunk", "work"};         // Value: the batch's index.
constexpr SpanName kWaitForRoom{"wait_for_room", "wait"};    // A worker; the consumer is slower.
constexpr SpanName kWaitForBatch{"wait_for_batch", "wait"};  // The consumer; the workers are slower.

// One batch held by the consumer while it asks for the next one, and that next one.
constexpr std::int64_t kConsumerBatches = 2;

// How long an epoch that is given up waits for the samples being read before it interrupts the source.
constexpr std::chrono::seconds kPatience{1};
constexpr std::chrono::milliseconds kWaitingStep{50};  // Between two calls of next()'s while_waiting.

DataOptions checked(DataOptions options) {
  for (auto& field : fields_of(options, "data.")) field.set(field.get());  // Throws for what lies out of range.
  const std::string transform = transform_contradiction(options.transform, "data.transform.");
  if (!transform.empty()) fail(ErrorCode::invalid_argument, "data: {}", transform);
  const std::string order = order_contradiction(options, "data.");
  if (!order.empty()) fail(ErrorCode::invalid_argument, "data: {}", order);
  return options;
}

const Source& checked(const std::shared_ptr<const Source>& source) {
  if (source == nullptr) fail(ErrorCode::invalid_argument, "data: a loader without a source");
  if (source->size() < 1) fail(ErrorCode::invalid_argument, "data: the source has no samples");
  return *source;
}

// An evaluation leaves nothing out.
LastBatch last_batch_of(const DataOptions& options, bool training) {
  return options.last_batch == LastBatch::drop && !training ? LastBatch::keep : options.last_batch;
}

std::int64_t count_batches(const Deal& deal, std::int64_t samples, const DataOptions& options) {
  if (deal.end_batch() == 0) {
    fail(ErrorCode::invalid_argument,
         "data: no batch is left: {} samples, batch_size {} on each of {} ranks, and last_batch drops what is smaller",
         samples, options.batch_size, options.ranks);
  }
  return deal.end_batch();
}

std::int64_t limit_or_machines(std::int64_t requested) {
  if (requested < 0) fail(ErrorCode::invalid_argument, "data: a memory limit of {} bytes", requested);
  if (requested > 0) return requested;
  return detect_machine().memory_limit.value_or(std::numeric_limits<std::int64_t>::max());
}

// The policy of a pass: another sample in place of one in evaluation would count twice in its metrics.
OnCorrupt policy_of(const DataOptions& options, bool training) {
  return options.on_corrupt == OnCorrupt::replace && !training ? OnCorrupt::zero : options.on_corrupt;
}

// What next()'s while_waiting threw, on its way past what ends an epoch.
struct BrokenWait {
  std::exception_ptr cause;
};

// Between two batches. At an epoch's end it is the begin of the next.
struct Place {
  std::int64_t epoch = 0;
  std::int64_t position = 0;  // Of the epoch's samples, all ranks'.
};

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
       std::int64_t limit);
  ~Impl() { set_threads(0); }

  void set_threads(std::int64_t count);
  void set_prefetch_batches(std::int64_t count);
  void set_cache(Cache wanted, bool keep);
  Applied applied_cache() const;
  Place place_of(std::int64_t index, std::int64_t first_batch) const;
  std::unique_ptr<Epoch::Impl> begin(std::optional<Place> from);
  Deal deal_from(std::int64_t position) const;
  LoaderState state() const;
  void restore(const LoaderState& state);
  void start_at(Place place);
  std::optional<Batch> next(const std::function<void()>& while_waiting);
  std::future<std::optional<Batch>> request();
  void give_up();
  LoaderStatistics statistics() const;
  std::vector<CorruptSample> corrupt_samples() const;

  std::int64_t cache_bytes_max() const;
  void work(std::int64_t worker, Workspace& workspace);
  void wait_for_work(std::unique_lock<std::mutex>& lock, Workspace& workspace);
  void give_back(Workspace& workspace);
  bool can_claim(std::int64_t window_max) const;
  Claim claim(std::int64_t window_max);
  bool open_batch();
  void load(std::unique_lock<std::mutex>& lock, const Claim& claim, Workspace& workspace);
  void add_report(ChunkReport& report, Workspace& workspace);
  void note_corrupt(std::vector<CorruptSample>& samples);
  void note_error(std::exception_ptr failure, std::int64_t position);
  bool no_sample_is_sound() const;
  bool stopping() const { return pass->stop_at.load(std::memory_order_relaxed) != Pass::kNever; }
  bool back_has_unclaimed() const { return !window.empty() && window.back()->claimed < window.back()->size; }
  bool front_is_ready() const {
    return !window.empty() && window.front()->finished == window.front()->size && !given_up();
  }
  bool given_up() const { return pass->stop_at.load(std::memory_order_relaxed) == 0; }
  // The front batch is whole, or an error lies in it that no other can precede, or there is no pass any more.
  bool front_is_decided() const { return pass == nullptr || front_is_ready() || (stopping() && working == 0); }
  void wait_for_front(std::unique_lock<std::mutex>& lock, const std::function<void()>& while_waiting);
  void wait_until_ready(std::unique_lock<std::mutex>& lock, const std::function<void()>& while_waiting);
  Batch take_front(std::int64_t begin_ns);
  void tell_consumer(std::unique_lock<std::mutex>& lock);
  void fulfil_request(std::unique_lock<std::mutex>& lock);
  void count_ready();
  void end_pass();
  Place place_after(std::int64_t batch) const;
  std::int64_t cache_bytes() const;
  std::int64_t held_bytes() const;

  const std::shared_ptr<const Source> source;  // Owners: the loader, and the caller, who may read samples too.
  const DataOptions options;                   // As built; the live knobs are below.
  const std::uint64_t seed;
  const bool training;
  const PictureShape shape;
  const image::NormalizeTable table;
  const detail::Order order;
  const std::int64_t batches;                     // Of a whole epoch.
  const std::int64_t memory_limit;                // Bytes.
  const std::shared_ptr<detail::SlotPool> slots;  // Owners: see SlotPool.
  detail::EntropyShelf indices;
  Workspace own_workspace;  // The consumer's, when it loads by itself.

  mutable std::mutex mutex;       // Guards everything down to `latency`.
  std::condition_variable room;   // For workers: a chunk may be there to claim, or their number has changed.
  std::condition_variable ready;  // For the consumer: a batch is whole, an error is final, or the last worker stopped.
  std::int64_t threads = 0;
  std::int64_t prefetch;
  std::unique_ptr<Pass> pass;                            // Of the running epoch, if any.
  std::shared_ptr<std::atomic<std::int64_t>> pass_left;  // Of the same; see Epoch::Impl.
  std::int64_t pass_end = 0;                             // One more than its last batch.
  std::int64_t pass_samples = 0;                         // Its samples so far,
  std::int64_t pass_zeroed = 0;                          // and of them those that only hold a place.
  std::int64_t next_open = 0;                            // The batch that will be opened next.
  std::int64_t next_asked = 0;                           // The batch that the consumer asks for next.
  Place at;                                              // Where that one stands.
  std::optional<Place> place_wanted;                     // Where next_epoch() begins, when somebody said so.
  std::int64_t next_index = 0;                           // The epoch that next_epoch() begins otherwise.
  std::optional<std::promise<std::optional<Batch>>> requested;
  std::int64_t requested_ns = 0;
  std::vector<std::unique_ptr<Batch::Slot>> window;
  std::int64_t working = 0;  // Claims whose report is out.
  std::exception_ptr error;  // The failure at pass->stop_at.
  LoaderStatistics totals;
  Cache cache_requested = Cache::none;
  std::string cache_refusal;             // Why there is no cache although one was asked for.
  std::shared_ptr<RamCache> cache;       // Owners: the loader, and each worker that fills a chunk with it.
  std::shared_ptr<RamCache> kept_cache;  // Switched off, to be switched on again.
  std::vector<CorruptSample> corrupt;
  detail::LatencyHistogram latency;

  const std::string bytes_options;  // LoaderState::options.

  std::mutex resizing;  // Guards `workers`; taken before `mutex`.
  std::vector<std::jthread> workers;

  const Account batch_account{"batches", [this] { return held_bytes(); }};
  const Account cache_account{"cache", [this] {
                                std::lock_guard lock(mutex);
                                return cache_bytes();
                              }};
};

Loader::Impl::Impl(std::shared_ptr<const Source> from, DataOptions how, std::uint64_t run_seed, bool for_training,
                   std::int64_t limit)
    : source((checked(from), std::move(from))),
      options(checked(std::move(how))),
      seed(run_seed),
      training(for_training),
      shape(batch_shape(*source, options.transform)),
      table(image::make_normalize_table(options.transform.mean, options.transform.deviation, shape.channels)),
      order(*source, options, seed, training),
      batches(count_batches(deal_from(0), source->size(), options)),
      memory_limit(limit_or_machines(limit)),
      slots(std::make_shared<detail::SlotPool>(
          detail::BatchShape{options.batch_size, shape.channels, shape.height, shape.width, options.transform.dtype,
                             options.transform.layout},
          options.prefetch_batches + kConsumerBatches, memory_limit)),
      indices(*source, options.index),
      prefetch(options.prefetch_batches),
      bytes_options(detail::state_options(options, training)) {
  window.reserve(static_cast<std::size_t>(prefetch));
  set_cache(options.cache, /*keep=*/false);
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
  if (count > 0) return;
  std::unique_lock lock(mutex);
  while (requested && !front_is_decided()) {  // Nobody else is left to load it.
    if (const Claim mine = claim(1); mine.slot != nullptr) load(lock, mine, own_workspace);
  }
  if (requested) fulfil_request(lock);
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

void Loader::Impl::set_cache(Cache wanted, bool keep) {
  std::shared_ptr<RamCache> other, unwanted;
  std::string refusal;
  if (wanted == Cache::decoded && source->in_memory()) {
    refusal = "the source's pictures are pixels in memory already";
  } else if (wanted == Cache::decoded) {
    {
      std::lock_guard lock(mutex);
      if (cache != nullptr) return;
      other = std::move(kept_cache);
    }
    const bool is_new = other == nullptr;
    if (is_new) other = std::make_shared<RamCache>(source->size(), cache_bytes_max());
    if (is_new && !other->has_room(1)) {
      refusal = fmt::format("nothing is left for it of the memory limit of {} bytes", memory_limit);
      other = nullptr;
    }
  }
  std::lock_guard lock(mutex);
  cache_requested = wanted;
  cache_refusal = std::move(refusal);
  cache.swap(other);
  if (keep && other != nullptr) kept_cache.swap(other);
  if (!keep) unwanted = std::move(kept_cache);
  // What is in no hand any more is freed after the lock, by the last worker that reads it or here.
}

// What the process holds now counts, and what other caches may still grow by.
std::int64_t Loader::Impl::cache_bytes_max() const {
  const std::int64_t left = memory_limit - resident_memory().value_or(0) - RamCache::promised_bytes();
  if (options.cache_mib == 0) return std::max<std::int64_t>(left, 0) / 2;
  const std::int64_t wanted = options.cache_mib << 20;
  if (wanted > left) {
    fail(ErrorCode::out_of_memory,
         "data: data.cache_mib asks for {} bytes; {} are left of the memory limit of {} bytes", wanted,
         std::max<std::int64_t>(left, 0), memory_limit);
  }
  return wanted;
}

Applied Loader::Impl::applied_cache() const {
  std::lock_guard lock(mutex);
  const auto name = [](bool decoded) { return decoded ? "decoded" : "none"; };
  return {"data.cache", name(cache_requested == Cache::decoded), name(cache != nullptr), cache_refusal};
}

Deal Loader::Impl::deal_from(std::int64_t position) const {
  return {order.positions(), options, last_batch_of(options, training), position};
}

Place Loader::Impl::place_of(std::int64_t index, std::int64_t first_batch) const {
  if (index < 0) fail(ErrorCode::invalid_argument, "data: epoch {}; wanted 0 or more", index);
  if (first_batch < 0 || first_batch > batches) {
    fail(ErrorCode::invalid_argument, "data: batch {} of an epoch of {}", first_batch, batches);
  }
  return {index, first_batch == batches ? order.positions() : first_batch * samples_a_step(options)};
}

Place Loader::Impl::place_after(std::int64_t batch) const {
  if (batch + 1 == pass_end) return {pass->epoch + 1, 0};
  return {pass->epoch, pass->deal.position_after(batch)};
}

void Loader::Impl::start_at(Place place) {
  const Deal deal = deal_from(place.position);
  if (deal.first_batch() == deal.end_batch()) place = {place.epoch + 1, 0};
  std::lock_guard lock(mutex);
  place_wanted = place;
}

LoaderState Loader::Impl::state() const {
  const std::uint64_t fingerprint = source->fingerprint();
  std::lock_guard lock(mutex);
  const Place place = place_wanted.value_or(at);
  return {place.epoch, place.position, seed, fingerprint, options.batch_size, options.ranks, bytes_options};
}

void Loader::Impl::restore(const LoaderState& state) {
  detail::check_state(state, this->state(), order.positions(), options.buckets > 0);
  start_at({state.epoch, state.position});
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
    } else if (requested && front_is_decided()) {  // By an error in opening the batch.
      fulfil_request(lock);
    } else {
      wait_for_work(lock, workspace);
    }
  }
  give_back(workspace);
}

void Loader::Impl::wait_for_work(std::unique_lock<std::mutex>& lock, Workspace& workspace) {
  const bool window_is_full = pass != nullptr && !stopping() && next_open < pass_end;
  if (!window_is_full) {
    // Between epochs, or all of this one is claimed: idle, not held up. An evaluation's buffers would lie unused
    // through the next epoch of training.
    if (!training) give_back(workspace);
    room.wait(lock);
    return;
  }
  Span span{kWaitForRoom};
  const std::int64_t begin_ns = monotonic_ns();
  room.wait(lock);
  totals.wait_for_slot_ns += monotonic_ns() - begin_ns;
}

void Loader::Impl::give_back(Workspace& workspace) {
  totals.workspace_bytes -= workspace.bytes();
  workspace.clear();
}

bool Loader::Impl::can_claim(std::int64_t window_max) const {
  if (pass == nullptr || stopping()) return false;
  if (back_has_unclaimed()) return true;
  return std::ssize(window) < window_max && next_open < pass_end;
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
    window.push_back(slots->take(pass->epoch, next_open, pass->deal.hand(next_open).size));
    ++next_open;
    return true;
  } catch (...) {
    note_error(std::current_exception(), position);
    if (working == 0) ready.notify_one();
    return false;
  }
}

void Loader::Impl::load(std::unique_lock<std::mutex>& lock, const Claim& claim, Workspace& workspace) {
  const std::int64_t position = claim.slot->index * options.batch_size + claim.first;
  std::shared_ptr<RamCache> pictures = cache;
  lock.unlock();
  const std::int64_t bytes_before = workspace.bytes();
  ChunkReport report;
  {
    Span span{kLoadChunk, claim.slot->index};
    report = load_chunk(*pass, {*claim.slot, position, claim.first, claim.count}, workspace, pictures.get());
  }
  const std::int64_t growth = workspace.bytes() - bytes_before;
  pictures = nullptr;  // Before the lock: it may be the last one, and freeing gigabytes takes a while.
  lock.lock();
  --working;
  claim.slot->finished += report.samples;
  totals.workspace_bytes += growth;
  add_report(report, workspace);
  const bool whole = claim.slot->finished == claim.slot->size;
  if (whole || (working == 0 && stopping())) tell_consumer(lock);
}

void Loader::Impl::tell_consumer(std::unique_lock<std::mutex>& lock) {
  if (!requested) return ready.notify_one();
  if (front_is_decided()) fulfil_request(lock);
}

// The front is decided.
void Loader::Impl::fulfil_request(std::unique_lock<std::mutex>& lock) {
  std::optional<Batch> batch;
  std::exception_ptr failure;
  try {
    batch = take_front(requested_ns);
  } catch (...) {
    failure = std::current_exception();
  }
  if (failure != nullptr && working > 0) {  // No memory for the handle: the last of the others tells it.
    error = std::move(failure);
    pass->stop_at.store(0, std::memory_order_relaxed);
    return;
  }
  std::promise<std::optional<Batch>> promise = std::move(*requested);
  requested.reset();
  const bool was_last = pass == nullptr;
  if (failure != nullptr) end_pass();
  lock.unlock();
  if (was_last) indices.finish_epoch();
  room.notify_one();
  if (failure != nullptr) {
    promise.set_exception(std::move(failure));
  } else {
    promise.set_value(std::move(batch));
  }
  lock.lock();
}

void Loader::Impl::add_report(ChunkReport& report, Workspace& workspace) {
  totals.samples += report.samples;
  totals.busy_ns += report.busy_ns;
  totals.read_ns += report.read_ns;
  totals.decode_ns += report.decode_ns;
  totals.cache_hits += report.cache_hits;
  totals.cache_misses += report.cache_misses;
  pass_samples += report.samples;
  pass_zeroed += report.zeroed;
  if (!workspace.corrupt.empty()) note_corrupt(workspace.corrupt);
  if (report.error != nullptr) note_error(std::move(report.error), report.error_position);
}

void Loader::Impl::note_corrupt(std::vector<CorruptSample>& samples) {
  constexpr std::size_t kListedMax = 1000;
  totals.corrupt += std::ssize(samples);
  for (CorruptSample& sample : samples) {
    const auto place = std::lower_bound(corrupt.begin(), corrupt.end(), sample.index,
                                        [](const auto& known, std::int64_t index) { return known.index < index; });
    const bool known = place != corrupt.end() && place->index == sample.index;
    if (!known && corrupt.size() < kListedMax) corrupt.insert(place, std::move(sample));
  }
}

// Keeps the first failure in the order of the data; what comes after it is not wanted any more.
void Loader::Impl::note_error(std::exception_ptr failure, std::int64_t position) {
  if (position >= pass->stop_at.load(std::memory_order_relaxed)) return;
  error = std::move(failure);
  pass->stop_at.store(position, std::memory_order_relaxed);
}

// ---- Consumer ----

std::optional<Batch> Loader::Impl::next(const std::function<void()>& while_waiting) {
  const std::int64_t begin_ns = monotonic_ns();
  std::unique_lock lock(mutex);
  if (requested) fail(ErrorCode::invalid_argument, "data: a batch was asked for while another request is open");
  count_ready();
  if (!front_is_ready()) wait_for_front(lock, while_waiting);
  const Place place = place_after(next_asked);
  Batch batch = take_front(begin_ns);
  at = place;
  ++next_asked;
  const bool was_last = pass == nullptr;
  lock.unlock();
  if (was_last) indices.finish_epoch();
  room.notify_one();
  return batch;
}

std::future<std::optional<Batch>> Loader::Impl::request() {
  const std::int64_t begin_ns = monotonic_ns();
  std::promise<std::optional<Batch>> promise;
  auto future = promise.get_future();
  std::unique_lock lock(mutex);
  if (requested) fail(ErrorCode::invalid_argument, "data: a batch was asked for while another request is open");
  count_ready();
  if (threads == 0 && !front_is_ready()) wait_for_front(lock, nullptr);
  at = place_after(next_asked++);
  requested = std::move(promise);
  requested_ns = begin_ns;
  if (front_is_decided()) fulfil_request(lock);
  return future;
}

void Loader::Impl::count_ready() {
  totals.ready_batches +=
      std::count_if(window.begin(), window.end(), [](const auto& slot) { return slot->finished == slot->size; });
}

// The front is decided. After an exception the pass is still there.
Batch Loader::Impl::take_front(std::int64_t begin_ns) {
  if (!front_is_ready()) std::rethrow_exception(error);
  const bool is_last = window.front()->index + 1 == pass_end;
  if (is_last && no_sample_is_sound()) {
    fail(ErrorCode::corrupt_data, "data: all {} samples of epoch {} are corrupt, the first: {}", pass_zeroed,
         pass->epoch, corrupt.front().reason);
  }
  std::unique_ptr<Batch::Slot> slot = std::move(window.front());
  window.erase(window.begin());
  Batch batch{slots->hand_out(std::move(slot))};
  ++totals.batches;
  latency.add(monotonic_ns() - begin_ns);
  pass_left->fetch_sub(1);
  if (is_last) end_pass();
  return batch;
}

// Known once the last batch is whole. A pass that begins late may end in a few corrupt samples.
bool Loader::Impl::no_sample_is_sound() const {
  return pass->deal.begin() == 0 && pass_zeroed == pass_samples;
}

void Loader::Impl::wait_for_front(std::unique_lock<std::mutex>& lock, const std::function<void()>& while_waiting) {
  while (!front_is_decided()) {
    if (threads == 0) {
      if (const Claim mine = claim(1); mine.slot != nullptr) {
        load(lock, mine, own_workspace);
        continue;
      }
      if (front_is_decided()) return;
    }
    Span span{kWaitForBatch};
    const std::int64_t begin_ns = monotonic_ns();
    wait_until_ready(lock, while_waiting);
    totals.wait_for_batch_ns += monotonic_ns() - begin_ns;
  }
}

// Until `ready` is notified, or for a while.
void Loader::Impl::wait_until_ready(std::unique_lock<std::mutex>& lock, const std::function<void()>& while_waiting) {
  if (!while_waiting) {
    ready.wait(lock);
  } else if (ready.wait_for(lock, kWaitingStep) == std::cv_status::timeout) {
    lock.unlock();
    try {
      while_waiting();
    } catch (...) {
      throw BrokenWait{std::current_exception()};
    }
    lock.lock();
  }
}

// Ends the running epoch, if there is one, when the samples now being read are done.
void Loader::Impl::give_up() {
  std::unique_lock lock(mutex);
  if (pass == nullptr) return;
  if (auto open = std::exchange(requested, std::nullopt)) {
    open->set_exception(std::make_exception_ptr(
        Error(ErrorCode::cancelled, fmt::format("data: epoch {} was left before the batch was ready", pass->epoch))));
  }
  pass->stop_at.store(0, std::memory_order_relaxed);
  const auto nobody_works = [this] { return working == 0; };
  if (!ready.wait_for(lock, kPatience, nobody_works)) {
    lock.unlock();
    source->interrupt();
    lock.lock();
    ready.wait(lock, nobody_works);
  }
  end_pass();
}

void Loader::Impl::end_pass() {
  if (!training) {
    give_back(own_workspace);
    room.notify_all();  // One that waited for room until now gives its buffers back, too.
  }
  for (auto& slot : window) slots->put_back(std::move(slot));
  window.clear();
  slots->trim();
  pass.reset();
  error = nullptr;
  pass_left->store(0);
  pass_left = nullptr;
}

LoaderStatistics Loader::Impl::statistics() const {
  std::lock_guard lock(mutex);
  LoaderStatistics now = totals;
  now.cache_bytes = cache_bytes();
  const detail::EntropyShelf::Counts found = indices.counts();
  now.index_hits = found.hits;
  now.index_misses = found.misses;
  now.index_refused = found.refused;
  now.batch_bytes = slots->batch_bytes();
  now.pool_bytes = slots->allocated_bytes();
  now.latency_ns_p50 = latency.reached_by(0.50);
  now.latency_ns_p95 = latency.reached_by(0.05);
  now.latency_ns_p99 = latency.reached_by(0.01);
  return now;
}

std::vector<CorruptSample> Loader::Impl::corrupt_samples() const {
  std::lock_guard lock(mutex);
  return corrupt;
}

// The lock is held.
std::int64_t Loader::Impl::cache_bytes() const {
  const auto bytes = [](const std::shared_ptr<RamCache>& held) { return held == nullptr ? 0 : held->bytes(); };
  return bytes(cache) + bytes(kept_cache);
}

std::int64_t Loader::Impl::held_bytes() const {
  std::lock_guard lock(mutex);
  return slots->allocated_bytes() + totals.workspace_bytes;
}

// ---- Public face ----

PictureShape batch_shape(const Source& source, const TransformOptions& transform) {
  const bool encoded = source.height() == 0 && source.width() == 0;
  if (encoded && transform.size == 0) {
    fail(ErrorCode::invalid_argument,
         "data: each picture of this source has a size of its own; data.transform.size must be set");
  }
  if (encoded && source.channels() != 1 && source.channels() != 3) {
    fail(ErrorCode::invalid_argument, "data: encoded pictures of {} channels; wanted 1 or 3", source.channels());
  }
  const bool too_large = transform.size > 0 && std::max(source.height(), source.width()) > image::kSideMax;
  if (!encoded && (source.height() < 1 || source.width() < 1 || too_large)) {
    fail(ErrorCode::invalid_argument, "data: pictures of {} x {} pixels; wanted 1 to {}", source.height(),
         source.width(), image::kSideMax);
  }
  const auto side = static_cast<int>(transform.size);
  if (side > 0) return {source.channels(), side, side};
  return {source.channels(), source.height(), source.width()};
}

struct Epoch::Impl {
  Loader::Impl* loader;
  std::int64_t batches;
  // Batches still to be delivered. At 0 the epoch is over and the loader is not touched any more. Owners: the epoch,
  // and the loader as long as the pass runs.
  std::shared_ptr<std::atomic<std::int64_t>> left;
};

Epoch::Epoch(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Epoch::Epoch(Epoch&&) noexcept = default;

Epoch::~Epoch() {
  if (impl_ != nullptr && impl_->left->load() > 0) impl_->loader->give_up();
}

std::optional<Batch> Epoch::next(const std::function<void()>& while_waiting) {
  if (impl_->left->load() == 0) return std::nullopt;
  try {
    return impl_->loader->next(while_waiting);
  } catch (const BrokenWait& broken) {
    std::rethrow_exception(broken.cause);
  } catch (...) {
    impl_->loader->give_up();
    throw;
  }
}

std::future<std::optional<Batch>> Epoch::request() {
  if (impl_->left->load() > 0) return impl_->loader->request();
  std::promise<std::optional<Batch>> at_the_end;
  at_the_end.set_value(std::nullopt);
  return at_the_end.get_future();
}

std::int64_t Epoch::batches() const {
  return impl_->batches;
}

// Where next_epoch() goes on, without `from`.
std::unique_ptr<Epoch::Impl> Loader::Impl::begin(std::optional<Place> from) {
  std::unique_lock lock(mutex);
  if (pass != nullptr) fail(ErrorCode::invalid_argument, "data: epoch {} is still running", pass->epoch);
  const Place place = from ? *from : place_wanted.value_or(Place{next_index, 0});
  const Deal deal = deal_from(place.position);
  const std::int64_t first = deal.first_batch(), end = deal.end_batch();
  auto state = std::make_unique<Epoch::Impl>(
      Epoch::Impl{this, first == end ? batches : end, std::make_shared<std::atomic<std::int64_t>>(end - first)});
  if (first < end) {
    pass.reset(new Pass{*source,
                        {options.transform.dtype, options.transform.layout, &table},
                        options.transform,
                        shape,
                        policy_of(options, training),
                        seed,
                        place.epoch,
                        training,
                        detail::EpochOrder{order, place.epoch},
                        order.repeats(),
                        deal,
                        indices});
    pass_left = state->left;
  }
  place_wanted.reset();
  next_index = place.epoch + 1;
  at = first < end ? place : Place{place.epoch + 1, 0};
  pass_end = end;
  next_open = next_asked = first;
  pass_samples = pass_zeroed = 0;
  lock.unlock();
  room.notify_all();
  return state;
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
  return Epoch{impl_->begin(impl_->place_of(index, first_batch))};
}

Epoch Loader::next_epoch() & {
  return Epoch{impl_->begin(std::nullopt)};
}

LoaderState Loader::state() const {
  return impl_->state();
}

void Loader::restore(const LoaderState& state) {
  impl_->restore(state);
}

void Loader::start_at(std::int64_t index, std::int64_t first_batch) {
  impl_->start_at(impl_->place_of(index, first_batch));
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

std::int64_t Loader::cache_bytes_max() const {
  return impl_->cache_bytes_max();
}

void Loader::set_cache(Cache cache, bool keep) {
  impl_->set_cache(cache, keep);
}

Applied Loader::applied_cache() const {
  return impl_->applied_cache();
}

Applied Loader::applied_index() const {
  return impl_->indices.applied();
}

std::vector<CorruptSample> Loader::corrupt_samples() const {
  return impl_->corrupt_samples();
}

LoaderStatistics Loader::statistics() const {
  return impl_->statistics();
}

}  // namespace headrace
