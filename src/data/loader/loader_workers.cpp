// The loader's threads: which samples a worker takes, and what becomes of a batch that is whole or has failed.
#include <headrace/trace.h>

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "data/loader/detail/batch_operations.h"
#include "data/loader/detail/loader_impl.h"

namespace headrace {
namespace {

using detail::ChunkReport;
using detail::Claim;
using detail::Workspace;

constexpr SpanName kLoadChunk{"load_chunk", "work"};       // Value: the batch's index.
constexpr SpanName kWaitForRoom{"wait_for_room", "wait"};  // A worker; the consumer is slower.

// The CPU clock is a system call, which a chunk of small images would feel.
constexpr std::int64_t kCpuLookNs = 5'000'000;

// Null: none are made behind the end of the data.
std::exception_ptr too_many_made(const detail::BatchWindow& window) noexcept try {
  const std::int64_t end = window.ended_after(), begin = window.pass().batch_sampler.begin();
  if (window.made() == end - begin) return nullptr;
  fail(ErrorCode::internal, "data: the source ended epoch {} after {} samples, and gave {} from sample {} on",
       window.pass().epoch, end, window.made(), begin);
} catch (...) {
  return std::current_exception();
}

}  // namespace

void Loader::Impl::prepare(Workspace& workspace) const {
  workspace.reads_into_samples = !reader.info().in_memory;
  if (!plan.is_one_pass()) workspace.make_room_for(plan.partner_step() ? kPartnersMax : 0);
}

std::unique_ptr<Workspace> Loader::Impl::make_workspace() const {
  auto workspace = std::make_unique<Workspace>(fields.schema.size(), announced_max());
  prepare(*workspace);
  return workspace;
}

// A batch that was asked for when there were workers; nobody else is left to load it.
void Loader::Impl::load_requested() {
  std::unique_lock lock(mutex);
  while (consumer.has_request() && !window.front_is_decided()) {
    if (const Claim mine = claim(1); mine.slot != nullptr) {
      load(lock, mine, own_workspace);
    } else if (window.lacks_block(1)) {
      wait_for_block(lock, ready);
    }
  }
  if (consumer.has_request()) fulfil_request(lock);
}

void Loader::Impl::work(std::int64_t worker, Workspace& workspace) {
  name_this_thread(fmt::format("loader {}", worker));
  std::int64_t cpu_ns = thread_cpu_ns(), busy_ns = 0;  // At the last look at the CPU clock, and since then.
  std::unique_lock lock(mutex);
  while (workers.wants(worker)) {
    if (const Claim mine = claim(window.depth()); mine.slot != nullptr) {
      // Each worker wakes one more while there is something for it. One that is awake always comes back for the rest,
      // so no chunk is forgotten, and a fast source does not wake threads that would find nothing.
      if (window.can_claim(window.depth())) room.notify_one();
      busy_ns += load(lock, mine, workspace);
      if (busy_ns < kCpuLookNs) continue;
      const std::int64_t now_ns = thread_cpu_ns();
      counters.add_cpu(now_ns - std::exchange(cpu_ns, now_ns), std::exchange(busy_ns, 0));
    } else if (consumer.has_request() && window.front_is_decided()) {  // By an error in opening the batch.
      fulfil_request(lock);
    } else {
      wait_for_work(lock, workspace);
    }
  }
  give_back(workspace);
  workers.note_end(worker);
}

void Loader::Impl::wait_for_work(std::unique_lock<std::mutex>& lock, Workspace& workspace) {
  if (!window.has_unopened()) {
    // Between epochs, or all of this one is claimed: idle, not held up. An evaluation's buffers would lie unused
    // through the next epoch of training.
    if (!training) give_back(workspace);
    room.wait(lock);
    return;
  }
  Span span{kWaitForRoom};
  const std::int64_t begin_ns = monotonic_ns();
  window.lacks_block(window.depth()) ? wait_for_block(lock, room) : room.wait(lock);
  counters.add_wait_for_slot(monotonic_ns() - begin_ns);
}

void Loader::Impl::give_back(Workspace& workspace) {
  counters.add_workspace(-std::exchange(workspace.counted, 0));
  workspace.clear();
}

// The next chunk in the order of the data, or one without slot when there is none now.
Claim Loader::Impl::claim(std::int64_t depth) {
  if (!window.can_claim(depth)) return {};
  if (!window.has_unclaimed() && !open_batch()) return {};
  return window.claim(depth, workers.count());
}

// Devices still read all blocks that are free. Until they have read one, or `changed` is notified.
void Loader::Impl::wait_for_block(std::unique_lock<std::mutex>& lock, std::condition_variable& changed) const {
  constexpr std::chrono::milliseconds kLook{1};
  while (!slots->can_take() && changed.wait_for(lock, kLook) == std::cv_status::timeout) {
  }
}

// Adds the next batch to the window. False: there is no memory for it, or none yet.
bool Loader::Impl::open_batch() {
  const std::int64_t begin_ns = monotonic_ns();
  if (window.open(*slots)) {
    counters.add_collating(monotonic_ns() - begin_ns);
    return true;
  }
  if (window.working() == 0 && window.is_stopping()) ready.notify_one();
  return false;
}

// Returns the nanoseconds that the chunk took.
std::int64_t Loader::Impl::load(std::unique_lock<std::mutex>& lock, const Claim& claim, Workspace& workspace) {
  const std::int64_t position = claim.slot->index * options.batch_size + claim.first;
  std::shared_ptr<detail::SampleCache> kept = cache.cache();
  lock.unlock();
  ChunkReport report;
  if (claim.first == 0 && reader.can().expecting != nullptr) announce(*claim.slot, workspace);
  {
    Span span{kLoadChunk, claim.slot->index};
    report = load_chunk(window.pass(), {*claim.slot, position, claim.first, claim.count}, workspace, kept.get());
    if (completes(*claim.slot, report.samples)) seal(*claim.slot, report);
  }
  const std::int64_t held = workspace.bytes(), growth = held - std::exchange(workspace.counted, held);
  kept = nullptr;  // Before the lock: it may be the last one, and freeing gigabytes takes a while.
  lock_traced(lock, detail::kLockLoader);
  window.finish(claim, report);
  counters.add_workspace(growth);
  counters.add_chunk(report);
  counters.add_corrupt(workspace.corrupt);
  if (report.error != nullptr) window.note_failure(std::move(report.error), report.error_position);
  if (report.ended_after) window.note_end(*report.ended_after);
  const bool whole = claim.slot->finished == claim.slot->size;
  if (whole && !options.in_order) window.bring_forward(*claim.slot);
  if (window.is_at_end()) {
    settle_end(lock);
  } else if (whole || (window.working() == 0 && window.is_stopping())) {
    tell_consumer(lock);
  }
  return report.busy_ns;
}

// A source of unknown size has ended, and all its samples are made.
void Loader::Impl::settle_end(std::unique_lock<std::mutex>& lock) {
  if (auto contradiction = too_many_made(window)) {
    window.give_up(std::move(contradiction));
  } else if (const Claim last = window.settle_end(*slots); last.slot != nullptr) {
    lock.unlock();
    ChunkReport report;
    report.samples = last.count;
    slots->shrink(*last.slot);
    seal(*last.slot, report);
    lock_traced(lock, detail::kLockLoader);
    window.finish(last, report);
    if (report.error != nullptr) window.note_failure(std::move(report.error), report.error_position);
  }
  room.notify_all();  // To fill the last batch up, or to wait for the next epoch.
  tell_consumer(lock);
}

// Tells the source which samples the batch will want.
void Loader::Impl::announce(const Batch::Slot& slot, Workspace& workspace) const {
  const Pass& pass = window.pass();
  const BatchSampler::Slice slice = pass.batch_sampler.slice(slot.index);
  workspace.announced.clear();
  for (std::int64_t place = 0; place < slice.size; ++place) {
    workspace.announced.push_back(pass.order.sample_at(pass.batch_sampler.position_of(slice, place)));
  }
  reader.can().expecting->expect(workspace.announced);
}

// Whether these samples are the last of a batch with which something is left to do then.
bool Loader::Impl::completes(Batch::Slot& slot, std::int64_t made) const noexcept {
  if (slot.ragged) return slot.ragged->completes(made);
  if (plan.over_batches().empty() || made == 0) return false;
  return slot.unsealed.fetch_sub(made, std::memory_order_acq_rel) == made;
}

// A batch that cannot be sealed is not whole: its error is that of its first sample.
void Loader::Impl::seal(Batch::Slot& slot, ChunkReport& report) const noexcept {
  try {
    if (slot.ragged) slot.ragged->seal(slot.fields);
    if (plan.over_batches().empty()) return;
    detail::apply_over_batch(plan, layout, slot,
                             {seed, slot.epoch, window.pass().batch_sampler.slice(slot.index).begin});
  } catch (...) {
    report.samples = 0;
    report.error = std::current_exception();
    report.error_position = slot.index * options.batch_size;
  }
}

void Loader::Impl::tell_consumer(std::unique_lock<std::mutex>& lock) {
  if (!consumer.has_request()) return ready.notify_one();
  if (window.front_is_decided()) fulfil_request(lock);
}

// The front is decided.
void Loader::Impl::fulfil_request(std::unique_lock<std::mutex>& lock) {
  std::optional<detail::Place> after;  // Of data of unknown size: whether it is a smaller last one, or none, shows now.
  if (is_open) after = window.place_after(consumer.next_batch());
  std::optional<Batch> batch;
  std::exception_ptr failure;
  try {
    batch = take_front(consumer.requested_ns());
  } catch (...) {
    failure = std::current_exception();
  }
  if (failure != nullptr && window.working() > 0) {  // No memory for the handle: the last of the others tells it.
    window.give_up(std::move(failure));
    return;
  }
  if (after) consumer.step(*after);
  std::promise<std::optional<Batch>> promise = consumer.take_request();
  const bool was_last = !window.has_pass();
  if (failure != nullptr) end_pass();
  lock.unlock();
  if (was_last) indices.finish_epoch();
  room.notify_one();
  if (failure != nullptr) {
    promise.set_exception(std::move(failure));
  } else {
    promise.set_value(std::move(batch));
  }
  lock_traced(lock, detail::kLockLoader);
}

}  // namespace headrace
