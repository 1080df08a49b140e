#include <headrace/trace.h>

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/trace/detail/choice.h"
#include "core/trace/detail/ring.h"
#include "core/trace/track.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace headrace {
namespace detail {

constinit std::atomic<TraceMode> trace_mode{TraceMode::off};
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
constexpr std::int64_t kMemoryMaxLeast = std::int64_t{1} << 20;      // Below 1 MiB there is nothing to be shared out.
constexpr std::uint64_t kSlotsLeast = 128;                           // A page.

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

// When the library was loaded: how long ago that is, on both clocks, tells the rate of ticks.
const ClockPair loaded = read_clocks();

double ticks_per_ns() {
  constexpr std::int64_t kEnough_ns = 5'000'000;
  const std::int64_t short_of = kEnough_ns - (monotonic_ns() - loaded.ns);
  if (short_of > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(short_of));
  const ClockPair now = read_clocks();
  return static_cast<double>(now.ticks - loaded.ticks) / static_cast<double>(now.ns - loaded.ns);
}

// Counts and ring of one running thread. A thread that ends leaves its counts here and its place to a later thread.
struct ThreadPlace : ThreadCells {
  std::string name;
  std::uint64_t serial = 0;  // Order of first use.
  // Replaced by its own thread alone, which may be writing to it at any time. Trace::recent() holds it while it copies.
  std::shared_ptr<ThreadRing> ring;
};

struct ThreadEvents {
  std::string name;
  std::uint64_t serial;
  std::vector<RawEvent> events;  // Oldest first.
};

struct Recording {
  std::uint64_t slots = 0;  // Of each ring, where memory_max leaves room for it.
  std::int64_t memory_max = 0;
  TraceChoice choice;
  ClockPair start{};
  std::array<std::int64_t, kCounters> totals{};  // At the start or the last take.
  // What threads that ended, or changed their ring, had recorded. Trace::recent() holds some of it while it copies.
  std::deque<std::shared_ptr<const ThreadEvents>> ended;
  std::int64_t dropped = 0;

  // The mode while steps are not sampled, or this step is recorded.
  TraceMode mode() const { return choice.names.empty() && !has_window() ? TraceMode::all : TraceMode::chosen; }
  bool has_window() const { return choice.from_ns > 0 || choice.length_ns > 0; }
  bool in_window(std::int64_t begin_ns) const {
    return begin_ns >= choice.from_ns && (choice.length_ns == 0 || begin_ns - choice.from_ns < choice.length_ns);
  }
};

// Of the choice in force, for threads that record. Written under the registry's lock.
constinit NameVerdicts verdicts, kept_verdicts;
constinit std::atomic<bool> has_window{false}, has_kept{false};
constinit std::atomic<bool> is_paused{false};                         // Within a step that is left out.
constinit std::atomic<std::uint64_t> window_begin{0}, window_end{0};  // Ticks.
constinit std::atomic<std::int64_t> step_interval{1};

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

std::int64_t bytes_of(const ThreadEvents& events) {
  return static_cast<std::int64_t>(events.events.size() * sizeof(RawEvent));
}

// But for rings of an earlier recording, which their threads will replace: many idle ones would leave nothing.
std::int64_t bytes_in_use(const Registry& all) {
  std::int64_t bytes = 0;
  for (const auto& place : all.places) {
    const ThreadRing* ring = place->ThreadCells::ring.load(std::memory_order_relaxed);
    if (ring != nullptr) bytes += static_cast<std::int64_t>(ring->slots() * sizeof(RawEvent));
  }
  for (const auto& kept : all.recording->ended) bytes += bytes_of(*kept);
  return bytes;
}

// Half of what memory_max leaves, so that threads that come later have some, too. What ended threads left makes room
// for an eighth of it all. 0: there is none. The caller holds the lock.
std::uint64_t slots_left(Registry& all) {
  Recording& recording = *all.recording;
  if (recording.memory_max == 0) return recording.slots;
  std::int64_t used = bytes_in_use(all);
  const auto most = [&] {
    const std::int64_t left = recording.memory_max - used;
    return left <= 0 ? std::uint64_t{0} : static_cast<std::uint64_t>(left) / 2 / sizeof(RawEvent);
  };
  const std::uint64_t wanted =
      std::min(recording.slots, static_cast<std::uint64_t>(recording.memory_max) / 8 / sizeof(RawEvent));
  std::uint64_t room = most();
  for (; room < wanted && !recording.ended.empty(); room = most()) {
    used -= bytes_of(*recording.ended.front());
    recording.dropped += static_cast<std::int64_t>(recording.ended.front()->events.size());
    recording.ended.pop_front();
  }
  const std::uint64_t slots = std::min(recording.slots, std::bit_floor(room));
  return slots < std::min(kSlotsLeast, recording.slots) ? 0 : slots;
}

// What the ring holds, if that is being recorded. Only for its thread itself.
void keep_events(Registry& all, ThreadPlace& place) {
  if (place.ring == nullptr || all.recording == nullptr) return;
  ThreadEvents kept{place.name, place.serial, {}};
  all.recording->dropped += place.ring->drain(kept.events);
  if (!kept.events.empty()) all.recording->ended.push_back(std::make_shared<const ThreadEvents>(std::move(kept)));
}

// Takes the ring from its thread. Only for that thread itself.
void retire_ring(Registry& all, ThreadPlace& place) {
  place.ThreadCells::ring.store(nullptr, std::memory_order_relaxed);
  keep_events(all, place);
  place.ring.reset();
}

// Whether the ring of an earlier recording will do: of this size, with no bound to share, and no recent() copies it.
bool is_reusable(const Registry& all, const ThreadPlace& place) {
  return all.recording->memory_max == 0 && place.ring != nullptr && place.ring->slots() == all.recording->slots &&
         place.ring.use_count() == 1;
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
  if (is_reusable(all, place)) {
    keep_events(all, place);
    place.ring->restart();
  } else {
    retire_ring(all, place);
    const std::uint64_t slots = slots_left(all);
    if (slots > 0) place.ring = ThreadRing::make(slots);
    if (place.ring == nullptr) ++all.recording->dropped;
  }
  place.ThreadCells::ring.store(place.ring.get(), std::memory_order_relaxed);
  return place.ring.get();
}

// Only for whoever records there.
void push(ThreadPlace& place, const SpanName& name, std::uint64_t begin, std::uint64_t end, std::int64_t value) {
  ThreadRing* ring = place.ThreadCells::ring.load(std::memory_order_relaxed);
  if (ring == nullptr) ring = attach_ring(place);
  if (ring != nullptr) ring->push(name, begin, end, value);
}

__attribute__((noinline)) void record_first(const SpanName& name, std::uint64_t begin, std::uint64_t end,
                                            std::int64_t value) {
  push(own_place(), name, begin, end, value);
}

// The caller holds the lock.
std::array<std::int64_t, kCounters> counter_totals(const Registry& all) {
  std::array<std::int64_t, kCounters> totals{};
  for (const auto& place : all.places) {
    for (std::size_t i = 0; i < totals.size(); ++i) totals[i] += place->counts[i].load(std::memory_order_relaxed);
  }
  return totals;
}

// The caller holds the lock, and names the place.
ThreadPlace& take_place(Registry& all) {
  if (all.vacant.empty()) {
    all.places.push_back(std::make_unique<ThreadPlace>());
    all.vacant.reserve(all.places.size());  // So that a thread's end does not allocate.
    all.vacant.push_back(all.places.back().get());
  }
  ThreadPlace& place = *all.vacant.back();
  all.vacant.pop_back();
  place.serial = all.threads++;
  return place;
}

}  // namespace

ThreadCells& register_thread() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  ThreadPlace& place = take_place(all);
  place.name = ::gettid() == ::getpid() ? "main" : fmt::format("thread {}", ::gettid());
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
  std::vector<ThreadEvents> threads;
  for (const auto& kept : std::exchange(all.recording->ended, {})) threads.push_back(*kept);
  for (const auto& place : all.places) {
    if (place->ring == nullptr) continue;
    ThreadEvents thread{place->name, place->serial, {}};
    all.recording->dropped += place->ring->drain(thread.events);
    threads.push_back(std::move(thread));
  }
  return threads;
}

// What began before `first`, which an earlier recording saw begin or nobody asked for, goes, and threads without
// events.
void keep_from(std::vector<ThreadEvents>& threads, std::uint64_t first) {
  for (ThreadEvents& thread : threads) {
    std::erase_if(thread.events, [&](const RawEvent& event) { return event.begin < first; });
  }
  std::erase_if(threads, [](const ThreadEvents& thread) { return thread.events.empty(); });
  std::sort(threads.begin(), threads.end(), [](const auto& a, const auto& b) { return a.serial < b.serial; });
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

// Times, names and threads of a record from `from` to `to`. Takes no lock.
TraceRecord record_of(std::vector<ThreadEvents> threads, ClockPair from, ClockPair to) {
  keep_from(threads, from.ticks);
  TraceRecord record;
  record.start_ns = from.ns;
  record.duration_ns = to.ns - from.ns;
  for (const ThreadEvents& thread : threads) record.threads.push_back(thread.name);

  const double ns_per_tick = static_cast<double>(record.duration_ns) / static_cast<double>(to.ticks - from.ticks);
  const auto since_start = [&](std::uint64_t at) {
    const auto ns = std::llround(static_cast<double>(at - from.ticks) * ns_per_tick);
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
  return record;
}

// The caller holds the lock.
std::vector<TraceRecord::CounterTotal> increases(const Registry& all,
                                                 const std::array<std::int64_t, kCounters>& totals) {
  std::vector<TraceRecord::CounterTotal> counters;
  for (std::size_t i = 0; i < all.counters.size(); ++i) {
    counters.push_back({all.counters[i], totals[i] - all.recording->totals[i]});
  }
  return counters;
}

// What slipped in while a choice came into force, or was open when its time began.
void keep_chosen(TraceRecord& record, const Recording& recording) {
  if (recording.mode() == TraceMode::all) return;
  const TraceChoice& choice = recording.choice;
  std::vector<bool> chosen, kept;
  for (const TraceRecord::Name& name : record.names) {
    chosen.push_back(matches_any(choice.names, name.text));
    kept.push_back(!choice.kept.empty() && matches_any(choice.kept, name.text));
  }
  const std::int64_t from_ns = record.start_ns - recording.start.ns;  // A record may begin later.
  std::erase_if(record.events, [&](const TraceEvent& event) {
    return !kept[event.name] && (!chosen[event.name] || !recording.in_window(from_ns + event.begin_ns));
  });
}

TraceRecord take_record(Registry& all) {
  Recording& recording = *all.recording;
  std::vector<ThreadEvents> threads = drain_threads(all);
  TraceRecord record = record_of(std::move(threads), recording.start, read_clocks());
  keep_chosen(record, recording);
  record.dropped = std::exchange(recording.dropped, 0);
  const auto totals = counter_totals(all);
  record.counters = increases(all, totals);
  recording.totals = totals;
  return record;
}

// What Trace::recent() copies when it no longer holds the lock.
struct Sources {
  struct Running {
    std::string name;
    std::uint64_t serial;
    std::shared_ptr<const ThreadRing> ring;
  };
  std::vector<Running> running;
  std::vector<TraceRecord::CounterTotal> counters;
  Recording recording;
};

// nullopt: nothing records.
std::optional<Sources> sources() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (all.recording == nullptr) return std::nullopt;
  Sources found;
  for (const auto& place : all.places) {
    if (place->ring != nullptr) found.running.push_back({place->name, place->serial, place->ring});
  }
  found.counters = increases(all, counter_totals(all));
  found.recording = *all.recording;
  return found;
}

// Whether one of the patterns in force matches it: looked up, or compared once.
bool matches_choice(const SpanName& name, NameVerdicts& known,
                    std::vector<std::string> TraceChoice::*patterns) noexcept {
  if (const auto found = known.find(name)) return *found;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (all.recording == nullptr) return false;
  const bool matches = matches_any(all.recording->choice.*patterns, name.text);
  known.put(name, matches);
  return matches;
}

}  // namespace
}  // namespace detail

bool detail::is_chosen(const SpanName& name) noexcept {
  if (has_kept.load(std::memory_order_relaxed) && matches_choice(name, kept_verdicts, &TraceChoice::kept)) return true;
  if (is_paused.load(std::memory_order_relaxed)) return false;
  if (has_window.load(std::memory_order_relaxed)) {
    const std::uint64_t now = ticks();
    if (now < window_begin.load(std::memory_order_relaxed) || now >= window_end.load(std::memory_order_relaxed)) {
      return false;
    }
  }
  return matches_choice(name, verdicts, &TraceChoice::names);
}

namespace {

// For a step that is left out, or for one that is recorded. The caller holds the lock.
void set_paused(const detail::Recording& recording, bool is_paused) {
  using enum detail::TraceMode;
  detail::is_paused.store(is_paused, std::memory_order_relaxed);
  const detail::TraceMode paused = recording.choice.kept.empty() ? off : chosen;
  detail::trace_mode.store(is_paused ? paused : recording.mode(), std::memory_order_relaxed);
}

}  // namespace

void begin_traced_step(std::int64_t step) noexcept {
  const std::int64_t interval = detail::step_interval.load(std::memory_order_relaxed);
  if (interval == 1) return;
  if ((step % interval != 0) == detail::is_paused.load(std::memory_order_relaxed)) return;  // As the step before.
  detail::Registry& all = detail::registry();
  const std::lock_guard lock(all.mutex);
  if (all.recording != nullptr) set_paused(*all.recording, step % all.recording->choice.every_steps != 0);
}

std::int64_t Counter::total() const {
  detail::Registry& all = detail::registry();
  const std::lock_guard lock(all.mutex);
  return detail::counter_totals(all)[static_cast<std::size_t>(index_)];
}

void record_gauge(const SpanName& name, std::int64_t value) noexcept {
  if (!detail::records(name)) return;
  const std::uint64_t now = detail::ticks();
  detail::record(name, now, now, value);
}

void name_this_thread(const std::string& name) {
  detail::ThreadPlace& place = detail::own_place();
  const std::lock_guard lock(detail::registry().mutex);
  if (place.name != name) place.name = name;
}

namespace {

// The caller holds the lock, and nothing records: trace_mode is off.
void put_in_force(const detail::Recording& recording, double ticks_per_ns) {
  constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
  const auto later = [&](std::uint64_t from, std::int64_t ns) {
    const double ticks = static_cast<double>(ns) * ticks_per_ns;
    return ticks < static_cast<double>(kNever - from) / 2 ? from + static_cast<std::uint64_t>(ticks) : kNever;
  };
  const TraceChoice& choice = recording.choice;
  detail::verdicts.clear();
  detail::kept_verdicts.clear();
  detail::has_kept.store(!choice.kept.empty(), std::memory_order_relaxed);
  detail::has_window.store(recording.has_window(), std::memory_order_relaxed);
  const std::uint64_t window_begin = later(recording.start.ticks, choice.from_ns);
  detail::window_begin.store(window_begin, std::memory_order_relaxed);
  detail::window_end.store(choice.length_ns == 0 ? kNever : later(window_begin, choice.length_ns),
                           std::memory_order_relaxed);
  detail::step_interval.store(choice.every_steps, std::memory_order_relaxed);
  set_paused(recording, choice.every_steps != 1);
}

// The caller holds the lock.
void end_recording(detail::Registry& all) {
  detail::trace_mode.store(detail::TraceMode::off, std::memory_order_relaxed);
  detail::step_interval.store(1, std::memory_order_relaxed);
  all.recording.reset();
}

}  // namespace

Trace::Trace(TraceOptions options) {
  if (options.events_per_thread < 1 || options.events_per_thread > detail::kEventsPerThreadMax) {
    fail(ErrorCode::invalid_argument, "trace: events_per_thread is {}, wanted 1 to {}", options.events_per_thread,
         detail::kEventsPerThreadMax);
  }
  if (options.memory_max != 0 && options.memory_max < detail::kMemoryMaxLeast) {
    fail(ErrorCode::invalid_argument, "trace: memory_max is {}, wanted 0 or at least {}", options.memory_max,
         detail::kMemoryMaxLeast);
  }
  detail::check_choice(options.choice);
  auto recording = std::make_unique<detail::Recording>();
  recording->slots = std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(options.events_per_thread, 2)));
  recording->memory_max = options.memory_max;
  recording->choice = std::move(options.choice);
  const double rate = recording->has_window() ? detail::ticks_per_ns() : 0;
  detail::Registry& all = detail::registry();
  const std::lock_guard lock(all.mutex);
  if (all.recording != nullptr) {
    fail(ErrorCode::invalid_argument, "trace: a recording is running already; one at a time in a process");
  }
  for (const auto& place : all.places) {
    if (place->ring == nullptr) continue;
    place->ring->discard();
    // Its thread starts the ring anew at its next event, or replaces it.
    place->ThreadCells::ring.store(nullptr, std::memory_order_relaxed);
  }
  recording->totals = detail::counter_totals(all);
  recording->start = detail::read_clocks();
  all.recording = std::move(recording);
  put_in_force(*all.recording, rate);
}

Trace::~Trace() {
  if (stopped_) return;
  detail::Registry& all = detail::registry();
  const std::lock_guard lock(all.mutex);
  end_recording(all);
}

TraceRecord Trace::stop() {
  HEADRACE_CHECK(!stopped_, "a Trace is stopped once");
  detail::Registry& all = detail::registry();
  const std::lock_guard lock(all.mutex);
  detail::trace_mode.store(detail::TraceMode::off, std::memory_order_relaxed);
  TraceRecord record = detail::take_record(all);
  end_recording(all);
  stopped_ = true;
  return record;
}

TraceRecord Trace::take() {
  HEADRACE_CHECK(!stopped_, "a stopped Trace has nothing to take");
  detail::Registry& all = detail::registry();
  const std::lock_guard lock(all.mutex);
  return detail::take_record(all);
}

TraceRecord Trace::recent(std::int64_t last_ns) const {
  HEADRACE_CHECK(last_ns > 0, "the last {} ns of a trace", last_ns);
  std::optional<detail::Sources> found = detail::sources();
  if (!found) return {};
  const detail::ClockPair now = detail::read_clocks();
  const detail::Recording& recording = found->recording;
  detail::ClockPair from = recording.start;
  if (now.ns - from.ns > last_ns) {
    const double ticks_per_ns = static_cast<double>(now.ticks - from.ticks) / static_cast<double>(now.ns - from.ns);
    from = {now.ticks - static_cast<std::uint64_t>(static_cast<double>(last_ns) * ticks_per_ns), now.ns - last_ns};
  }
  std::vector<detail::ThreadEvents> threads;
  for (const auto& kept : recording.ended) threads.push_back(*kept);
  std::int64_t dropped = recording.dropped;
  for (const auto& running : found->running) {
    detail::ThreadEvents thread{running.name, running.serial, {}};
    const std::int64_t lost = running.ring->copy(thread.events);
    // Events come in the order of their ends: what a ring has lost ended before the first that it holds.
    if (thread.events.empty() || thread.events.front().end > from.ticks) dropped += lost;
    threads.push_back(std::move(thread));
  }
  TraceRecord record = detail::record_of(std::move(threads), from, now);
  detail::keep_chosen(record, recording);
  record.dropped = dropped;
  record.counters = std::move(found->counters);
  return record;
}

// A place that no thread has; its counts stay as the thread before left them.
TraceTrack::TraceTrack(const std::string& name)
    : cells_([&name]() -> detail::ThreadCells* {
        detail::Registry& all = detail::registry();
        const std::lock_guard lock(all.mutex);
        detail::ThreadPlace& place = detail::take_place(all);
        place.name = name;
        return &place;
      }()) {}

TraceTrack::~TraceTrack() {
  detail::Registry& all = detail::registry();
  const std::lock_guard lock(all.mutex);
  auto& place = static_cast<detail::ThreadPlace&>(*cells_);
  detail::retire_ring(all, place);
  all.vacant.push_back(&place);
}

void TraceTrack::record(const SpanName& name, TraceMoment begin, TraceMoment end, std::int64_t value) noexcept {
  if (!detail::records(name)) return;
  detail::push(static_cast<detail::ThreadPlace&>(*cells_), name, begin.ticks, end.ticks, value);
}

}  // namespace headrace
