#include <headrace/trace.h>

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/trace/detail/ring.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace headrace {
namespace detail {

constinit std::atomic<bool> trace_recording{false};
thread_local constinit ThreadCells* thread_cells __attribute__((tls_model("initial-exec"))) = nullptr;

namespace {

bool has_invariant_tsc() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & (1U << 8)) != 0;
#else
  return false;
#endif
}

}  // namespace

// Known before main: a Trace belongs into no static object, or it would meet two clocks.
const bool tsc_is_steady = has_invariant_tsc();

std::uint64_t slow_ticks() noexcept {
  return static_cast<std::uint64_t>(monotonic_ns());
}

namespace {

constexpr std::int64_t kEventsPerThreadMax = std::int64_t{1} << 26;  // 2 GiB a thread.

// One moment on both clocks.
struct ClockPair {
  std::uint64_t ticks;
  std::int64_t ns;
};

ClockPair read_clocks() {
  // The reading with the least time around it; an interrupt in between would shift the two against each other.
  ClockPair best{};
  std::uint64_t gap_least = ~std::uint64_t{0};
  for (int i = 0; i < 8; ++i) {
    const std::uint64_t before = ticks();
    const std::int64_t ns = monotonic_ns();
    const std::uint64_t gap = ticks() - before;
    if (gap < gap_least) {
      gap_least = gap;
      best = {before + gap / 2, ns};
    }
  }
  return best;
}

// Counts and ring of one running thread. A thread that ends leaves its counts here and its place to a later thread.
struct ThreadPlace : ThreadCells {
  std::string name;
  std::uint64_t serial = 0;          // Order of first use.
  std::unique_ptr<ThreadRing> ring;  // Replaced by its own thread alone, which may be writing to it at any time.
};

struct ThreadEvents {
  std::string name;
  std::uint64_t serial;
  std::vector<RawEvent> events;  // Oldest first.
};

struct Recording {
  std::uint64_t slots = 0;  // Of each ring.
  ClockPair start{};
  std::array<std::int64_t, kCounters> totals{};  // At the start or the last take.
  std::vector<ThreadEvents> ended;               // What threads that ended, or changed their ring, had recorded.
  std::int64_t dropped = 0;
};

struct Registry {
  Registry();

  std::mutex mutex;  // Guards everything below.
  std::vector<std::unique_ptr<ThreadPlace>> places;
  std::vector<ThreadPlace*> vacant;
  std::uint64_t threads = 0;  // Ever registered.
  std::vector<std::string> counters;
  std::unique_ptr<Recording> recording;  // Of the one Trace, if there is one.

  pthread_key_t thread_end{};  // Set once in the constructor.
};

// Never destroyed: threads and static objects use it until the very end of the process.
Registry& registry() {
  static Registry& registry = *new Registry;
  return registry;
}

// Takes the ring from its thread and keeps its events if they are being recorded. Only for that thread itself.
void retire_ring(Registry& all, ThreadPlace& place) {
  place.ThreadCells::ring.store(nullptr, std::memory_order_relaxed);
  if (place.ring != nullptr && all.recording != nullptr) {
    ThreadEvents kept{place.name, place.serial, {}};
    all.recording->dropped += place.ring->drain(kept.events);
    if (!kept.events.empty()) all.recording->ended.push_back(std::move(kept));
  }
  place.ring.reset();
}

void leave_place(void* cells) {
  auto& place = static_cast<ThreadPlace&>(*static_cast<ThreadCells*>(cells));
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  retire_ring(all, place);
  all.vacant.push_back(&place);
  thread_cells = nullptr;
}

// A pthread key and not a thread_local object: its destructor runs after all of those, which may still count, and runs
// again if something counts even later.
Registry::Registry() {
  const int error = pthread_key_create(&thread_end, leave_place);
  HEADRACE_CHECK(error == 0, "no thread key left: error {}", error);
}

ThreadPlace& own_place() {
  return static_cast<ThreadPlace&>(cells());
}

// A ring for this thread, or null when there is no memory or nothing records any more.
ThreadRing* attach_ring(ThreadPlace& place) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (all.recording == nullptr) return nullptr;
  retire_ring(all, place);
  place.ring = ThreadRing::make(all.recording->slots);
  if (place.ring == nullptr) ++all.recording->dropped;
  place.ThreadCells::ring.store(place.ring.get(), std::memory_order_relaxed);
  return place.ring.get();
}

__attribute__((noinline)) void record_first(const SpanName& name, std::uint64_t begin, std::uint64_t end,
                                            std::int64_t value) {
  if (ThreadRing* ring = attach_ring(own_place())) ring->push(name, begin, end, value);
}

// The caller holds the lock.
std::array<std::int64_t, kCounters> counter_totals(const Registry& all) {
  std::array<std::int64_t, kCounters> totals{};
  for (const auto& place : all.places) {
    for (std::size_t i = 0; i < totals.size(); ++i) totals[i] += place->counts[i].load(std::memory_order_relaxed);
  }
  return totals;
}

}  // namespace

ThreadCells& register_thread() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (all.vacant.empty()) {
    all.places.push_back(std::make_unique<ThreadPlace>());
    all.vacant.reserve(all.places.size());  // So that a thread's end does not allocate.
    all.vacant.push_back(all.places.back().get());
  }
  ThreadPlace& place = *all.vacant.back();
  all.vacant.pop_back();
  place.name = ::gettid() == ::getpid() ? "main" : fmt::format("thread {}", ::gettid());
  place.serial = all.threads++;
  thread_cells = &place;
  pthread_setspecific(all.thread_end, thread_cells);
  return place;
}

void record(const SpanName& name, std::uint64_t begin, std::uint64_t end, std::int64_t value) noexcept {
  // One rare case and not two (no cells, no ring), so that the usual one needs no stack frame.
  ThreadRing* ring = thread_cells != nullptr ? thread_cells->ring.load(std::memory_order_relaxed) : nullptr;
  if (ring == nullptr) [[unlikely]]
    return record_first(name, begin, end, value);
  ring->push(name, begin, end, value);
}

int register_counter(const char* text) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = std::find(all.counters.begin(), all.counters.end(), text);
  if (found != all.counters.end()) return static_cast<int>(found - all.counters.begin());
  HEADRACE_CHECK(all.counters.size() < kCounters, "counter {} is one too many", text);
  all.counters.emplace_back(text);
  return static_cast<int>(all.counters.size()) - 1;
}

namespace {

// The caller holds the lock. Rings keep running meanwhile.
std::vector<ThreadEvents> drain_threads(Registry& all) {
  std::vector<ThreadEvents> threads = std::exchange(all.recording->ended, {});
  for (const auto& place : all.places) {
    if (place->ring == nullptr) continue;
    ThreadEvents thread{place->name, place->serial, {}};
    all.recording->dropped += place->ring->drain(thread.events);
    threads.push_back(std::move(thread));
  }
  for (ThreadEvents& thread : threads) {
    // A span that an earlier recording saw begin has no place in this one.
    std::erase_if(thread.events, [&](const RawEvent& event) { return event.begin < all.recording->start.ticks; });
  }
  std::erase_if(threads, [](const ThreadEvents& thread) { return thread.events.empty(); });
  std::sort(threads.begin(), threads.end(), [](const auto& a, const auto& b) { return a.serial < b.serial; });
  return threads;
}

// Numbers each distinct name in the order of first use.
class NameTable {
 public:
  explicit NameTable(std::vector<TraceRecord::Name>& names) : names_(names) {}
  std::uint32_t index_of(const SpanName* name) {
    const auto [by_address, is_new_address] = addresses_.try_emplace(name, 0);
    if (is_new_address) {
      const auto next = static_cast<std::uint32_t>(names_.size());
      const auto [by_text, is_new_text] = texts_.try_emplace({name->text, name->category}, next);
      if (is_new_text) names_.push_back({name->text, name->category});
      by_address->second = by_text->second;
    }
    return by_address->second;
  }

 private:
  std::vector<TraceRecord::Name>& names_;
  std::unordered_map<const SpanName*, std::uint32_t> addresses_;
  std::map<std::pair<std::string, std::string>, std::uint32_t> texts_;
};

struct PlacedEvent {
  RawEvent raw;
  std::uint32_t thread;
};

// Sorted by begin, an outer span before an inner one.
std::vector<PlacedEvent> merge(const std::vector<ThreadEvents>& threads) {
  std::vector<PlacedEvent> merged;
  std::size_t size = 0;
  for (const ThreadEvents& thread : threads) size += thread.events.size();
  merged.reserve(size);
  for (std::uint32_t thread = 0; thread < threads.size(); ++thread) {
    // Newest first: of two spans with the same ticks the outer one was recorded last, and the sort is stable.
    const auto& events = threads[thread].events;
    for (auto event = events.rbegin(); event != events.rend(); ++event) merged.push_back({*event, thread});
  }
  std::stable_sort(merged.begin(), merged.end(), [](const PlacedEvent& a, const PlacedEvent& b) {
    return a.raw.begin != b.raw.begin ? a.raw.begin < b.raw.begin : a.raw.end > b.raw.end;
  });
  return merged;
}

TraceRecord take_record(Registry& all) {
  Recording& recording = *all.recording;
  const std::vector<ThreadEvents> threads = drain_threads(all);
  const ClockPair now = read_clocks();

  TraceRecord record;
  record.start_ns = recording.start.ns;
  record.duration_ns = now.ns - recording.start.ns;
  record.dropped = std::exchange(recording.dropped, 0);
  for (const ThreadEvents& thread : threads) record.threads.push_back(thread.name);

  const double ns_per_tick =
      static_cast<double>(record.duration_ns) / static_cast<double>(now.ticks - recording.start.ticks);
  const auto since_start = [&](std::uint64_t at) {
    const auto ns = std::llround(static_cast<double>(at - recording.start.ticks) * ns_per_tick);
    return std::min<std::int64_t>(ns, record.duration_ns);
  };
  const std::vector<PlacedEvent> merged = merge(threads);
  record.events.reserve(merged.size());
  NameTable names{record.names};
  for (const auto& [raw, thread] : merged) {
    const std::int64_t begin_ns = since_start(raw.begin);
    std::int64_t end_ns = begin_ns;
    // Cores may differ by some ticks: a thread that moved could end a span before its begin. Not even such a span lasts
    // no time, or it would pass for a gauge.
    if (raw.end != raw.begin) end_ns = std::max(begin_ns + 1, since_start(std::max(raw.begin, raw.end)));
    record.events.push_back({names.index_of(raw.name), thread, begin_ns, end_ns, raw.value});
  }

  const auto totals = counter_totals(all);
  for (std::size_t i = 0; i < all.counters.size(); ++i) {
    record.counters.push_back({all.counters[i], totals[i] - recording.totals[i]});
  }
  recording.totals = totals;
  return record;
}

}  // namespace
}  // namespace detail

std::int64_t Counter::total() const {
  detail::Registry& all = detail::registry();
  const std::lock_guard lock(all.mutex);
  return detail::counter_totals(all)[static_cast<std::size_t>(index_)];
}

void record_gauge(const SpanName& name, std::int64_t value) noexcept {
  if (!detail::trace_recording.load(std::memory_order_relaxed)) return;
  const std::uint64_t now = detail::ticks();
  detail::record(name, now, now, value);
}

void name_this_thread(const std::string& name) {
  detail::ThreadPlace& place = detail::own_place();
  const std::lock_guard lock(detail::registry().mutex);
  if (place.name != name) place.name = name;
}

Trace::Trace(TraceOptions options) {
  if (options.events_per_thread < 1 || options.events_per_thread > detail::kEventsPerThreadMax) {
    fail(ErrorCode::invalid_argument, "trace: events_per_thread is {}, wanted 1 to {}", options.events_per_thread,
         detail::kEventsPerThreadMax);
  }
  detail::Registry& all = detail::registry();
  const std::lock_guard lock(all.mutex);
  if (all.recording != nullptr) {
    fail(ErrorCode::invalid_argument, "trace: a recording is running already; one at a time in a process");
  }
  auto recording = std::make_unique<detail::Recording>();
  recording->slots = std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(options.events_per_thread, 2)));
  for (const auto& place : all.places) {
    if (place->ring == nullptr) continue;
    place->ring->discard();
    // A ring of another size is replaced by its thread at that thread's next event.
    if (place->ring->slots() != recording->slots) place->ThreadCells::ring.store(nullptr, std::memory_order_relaxed);
  }
  recording->totals = detail::counter_totals(all);
  recording->start = detail::read_clocks();
  all.recording = std::move(recording);
  detail::trace_recording.store(true, std::memory_order_relaxed);
}

Trace::~Trace() {
  if (stopped_) return;
  detail::trace_recording.store(false, std::memory_order_relaxed);
  const std::lock_guard lock(detail::registry().mutex);
  detail::registry().recording.reset();
}

TraceRecord Trace::stop() {
  HEADRACE_CHECK(!stopped_, "a Trace is stopped once");
  detail::trace_recording.store(false, std::memory_order_relaxed);
  detail::Registry& all = detail::registry();
  const std::lock_guard lock(all.mutex);
  TraceRecord record = detail::take_record(all);
  all.recording.reset();
  stopped_ = true;
  return record;
}

TraceRecord Trace::take() {
  HEADRACE_CHECK(!stopped_, "a stopped Trace has nothing to take");
  detail::Registry& all = detail::registry();
  const std::lock_guard lock(all.mutex);
  return detail::take_record(all);
}

}  // namespace headrace
