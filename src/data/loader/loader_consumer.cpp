// The consumer's side of a loader: waiting for the next batch, taking it, asking for it ahead, and leaving an epoch.
#include <headrace/trace.h>

#include <chrono>
#include <utility>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "data/loader/detail/loader_impl.h"

namespace headrace {
namespace {

using detail::Claim;
using detail::Place;

constexpr SpanName kWaitForBatch{"wait_for_batch", "wait"};  // The consumer; the workers are slower.

constexpr SpanName kTakeBatch{"take_batch", "work"};        // Value: the batch's index, as load_chunk has it.
constexpr SpanName kReadyBatches{"ready_batches", "mark"};  // When one is asked for.

// How long an epoch that is given up waits for the samples being read before it interrupts the source.
constexpr std::chrono::seconds kPatience{1};
constexpr std::chrono::milliseconds kWaitingStep{50};  // Between two calls of next()'s while_waiting,
constexpr std::chrono::milliseconds kDeviceStep{1};    // and where each also looks whether a device has read a block.

// What next()'s while_waiting threw, on its way past what ends an epoch.
struct BrokenWait {
  std::exception_ptr cause;
};

}  // namespace

std::optional<Batch> Loader::Impl::next(const std::function<void()>& while_waiting) {
  const std::int64_t begin_ns = monotonic_ns();
  std::unique_lock lock(mutex, std::defer_lock);
  lock_traced(lock, detail::kLockLoader);
  if (consumer.has_request())
    fail(ErrorCode::invalid_argument, "data: a batch was asked for while another request is open");
  count_ready();
  if (!window.front_is_ready()) wait_for_front(lock, while_waiting);
  const Place place = window.place_after(consumer.next_batch());
  std::optional<Batch> batch = take_front(begin_ns);
  measure_consumer(begin_ns);
  consumer.step(place);
  const bool was_last = !window.has_pass(), due = tuning.is_due();
  lock.unlock();
  if (was_last) indices.finish_epoch();
  room.notify_one();
  if (due) retune();
  return batch;
}

BatchFuture Loader::Impl::request() {
  const std::int64_t begin_ns = monotonic_ns();
  std::promise<std::optional<Batch>> promise;
  BatchFuture future{promise.get_future(), consumer.blocked_ns()};
  std::unique_lock lock(mutex, std::defer_lock);
  lock_traced(lock, detail::kLockLoader);
  if (consumer.has_request())
    fail(ErrorCode::invalid_argument, "data: a batch was asked for while another request is open");
  count_ready();
  if (workers.count() == 0 && !window.front_is_ready()) wait_for_front(lock, nullptr);
  measure_consumer(begin_ns);
  if (!is_open) consumer.step(window.place_after(consumer.next_batch()));
  consumer.request(std::move(promise), begin_ns);
  if (window.front_is_decided()) fulfil_request(lock);
  const bool due = tuning.is_due();
  lock.unlock();
  if (due) retune();
  return future;
}

void Loader::Impl::count_ready() {
  const std::int64_t whole = window.whole_batches();
  counters.add_ready(whole);
  record_gauge(kReadyBatches, whole);
}

// Returns the time of it.
std::int64_t Loader::Impl::count_delivery(const Batch::Slot& slot, std::int64_t asked_ns) {
  const std::int64_t now_ns = monotonic_ns();
  counters.add_delivery(slot.size, slot.size * layout.counted_bytes + (slot.ragged ? slot.ragged->bytes() : 0),
                        now_ns - asked_ns);
  return now_ns;
}

// It asked at `asked_ns` and goes on now, with a batch or without.
void Loader::Impl::measure_consumer(std::int64_t asked_ns) {
  const std::int64_t now_ns = monotonic_ns();
  const detail::Consumer::Turn turn = consumer.go_on(asked_ns, now_ns);
  counters.add_consumer_busy(turn.busy_ns);
  if (tuning.is_automatic()) tuning.measure(turn.asked_ns, now_ns, counters.worker_totals());
}

// The front is decided; none: the data have ended. After an exception the pass is still there.
std::optional<Batch> Loader::Impl::take_front(std::int64_t begin_ns) {
  if (window.is_over()) {
    end_open_pass();
    return std::nullopt;
  }
  if (!window.front_is_ready()) std::rethrow_exception(window.failure());
  const bool is_last = window.front_is_last();
  if (is_last) check_soundness();
  std::unique_ptr<Batch::Slot> slot = window.take_front();
  Span span{kTakeBatch, slot->index};
  const std::int64_t delivered_at_ns = count_delivery(*slot, begin_ns);
  Batch batch{slots->hand_out(std::move(slot))};
  counters.add_collating(monotonic_ns() - delivered_at_ns);
  consumer.count_delivery();
  if (is_last) end_pass();
  return batch;
}

// One of the epoch's samples is sound at least.
void Loader::Impl::check_soundness() const {
  if (!window.no_sample_is_sound()) return;
  fail(ErrorCode::corrupt_data, "data: all {} samples of epoch {} are corrupt, the first: {}", window.zeroed(),
       window.pass().epoch, counters.corrupt().front().reason);
}

// The consumer has asked for a batch behind the last one.
void Loader::Impl::end_open_pass() {
  check_soundness();
  const std::int64_t epoch = window.pass().epoch;
  const BatchSampler& batch_sampler = window.pass().batch_sampler;
  if (batch_sampler.begin() == 0 && batch_sampler.end_batch() == 0) {
    fail(ErrorCode::invalid_argument,
         "data: no batch is left: {} samples in epoch {}, batch_size {}, and last_batch drops what is smaller",
         batch_sampler.positions(), epoch, options.batch_size);
  }
  end_pass();
}

void Loader::Impl::wait_for_front(std::unique_lock<std::mutex>& lock, const std::function<void()>& while_waiting) {
  while (!window.front_is_decided()) {
    if (workers.count() == 0) {
      if (const Claim mine = claim(1); mine.slot != nullptr) {
        load(lock, mine, own_workspace);
        continue;
      }
      if (window.front_is_decided()) return;
    }
    Span span{kWaitForBatch};
    const std::int64_t begin_ns = monotonic_ns();
    wait_until_ready(lock, while_waiting);
    counters.add_wait_for_batch(monotonic_ns() - begin_ns);
  }
}

// Until `ready` is notified, or for a while. A consumer that loads by itself may have to wait for a device instead.
void Loader::Impl::wait_until_ready(std::unique_lock<std::mutex>& lock, const std::function<void()>& while_waiting) {
  const bool lacks_block = workers.count() == 0 && window.lacks_block(1);
  if (!while_waiting) {
    lacks_block ? wait_for_block(lock, ready) : ready.wait(lock);
  } else if (ready.wait_for(lock, lacks_block ? kDeviceStep : kWaitingStep) == std::cv_status::timeout) {
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
  if (!window.has_pass()) return;
  window.give_up();  // First: where the request's end is told, no further sample is begun.
  if (consumer.has_request()) {
    consumer.take_request().set_exception(std::make_exception_ptr(Error(
        ErrorCode::cancelled, fmt::format("data: epoch {} was left before the batch was ready", window.pass().epoch))));
  }
  const auto nobody_works = [this] { return window.working() == 0; };
  if (!ready.wait_for(lock, kPatience, nobody_works)) {
    lock.unlock();
    if (reader.can().interruptible != nullptr) reader.can().interruptible->interrupt();
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
  window.end(*slots);
  training ? slots->trim() : slots->give_back();
  consumer.end();
}

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

BatchFuture Epoch::request() {
  if (impl_->left->load() > 0) return impl_->loader->request();
  std::promise<std::optional<Batch>> at_the_end;
  at_the_end.set_value(std::nullopt);
  return BatchFuture{at_the_end.get_future()};
}

void BatchFuture::wait() const {
  while (wait_for(std::chrono::hours(1)) != std::future_status::ready) {
  }
}

std::future_status BatchFuture::wait_for(std::chrono::nanoseconds limit) const {
  const std::future_status status = batch_.wait_for(std::chrono::nanoseconds(0));
  if (status == std::future_status::ready || limit.count() <= 0) return status;
  Span span{kWaitForBatch};
  const std::int64_t begin_ns = monotonic_ns();
  const std::future_status later = batch_.wait_for(limit);
  if (blocked_ns_ != nullptr) blocked_ns_->fetch_add(monotonic_ns() - begin_ns);
  return later;
}

std::optional<Batch> BatchFuture::get() {
  wait();
  return batch_.get();
}

std::int64_t Epoch::batches() const {
  if (impl_->batches) return *impl_->batches;
  Loader::Impl::fail_for_count();
}

}  // namespace headrace
