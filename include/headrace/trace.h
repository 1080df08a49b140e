// Spans, counters and gauges, recorded into per-thread rings; never interpreted here.
//
// A Span costs two clock reads and one store while a Trace records (floor: two rdtsc), and one relaxed load when none
// does. A Counter always counts and costs one thread-local add. Names are static objects, so an event stores a pointer.
// Any thread may record; one Trace exists at a time in a process (a second one throws Error{invalid_argument}).
#pragma once

#include <headrace/memory_timeline.h>
#include <headrace/trace_choice.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

// Must have static storage duration: events keep its address until the record is taken.
struct SpanName {
  const char* text;      // "forward"
  const char* category;  // "step", "wait", "work", "mark", "stack": a track or colour in a viewer.
};

namespace detail {

enum class TraceMode : std::uint8_t { off, all, chosen };
extern constinit std::atomic<TraceMode> trace_mode;
bool is_chosen(const SpanName& name) noexcept;  // By the TraceChoice in force.
inline bool records(const SpanName& name) noexcept {
  const TraceMode mode = trace_mode.load(std::memory_order_relaxed);
  if (mode == TraceMode::off) [[likely]]
    return false;
  return mode == TraceMode::all || is_chosen(name);
}

// Ticks of the fastest monotonic clock: rdtsc on x86-64 with an invariant TSC, else clock_gettime in nanoseconds.
std::uint64_t slow_ticks() noexcept;
extern const bool tsc_is_steady;
inline std::uint64_t ticks() noexcept {
#if defined(__x86_64__)
  if (tsc_is_steady) [[likely]]
    return __builtin_ia32_rdtsc();
#endif
  return slow_ticks();
}

inline constexpr int kCounters = 64;
class ThreadRing;
struct ThreadCells {
  std::array<std::atomic<std::int64_t>, kCounters> counts{};
  std::atomic<ThreadRing*> ring{nullptr};
};
ThreadCells& register_thread();  // First use on a thread; memory is kept until exit.
// The initial-exec model reads it without a call, also across shared libraries. It takes eight bytes of the static TLS
// that glibc keeps free for libraries opened at run time.
extern thread_local constinit ThreadCells* thread_cells __attribute__((tls_model("initial-exec")));
inline ThreadCells& cells() {
  if (thread_cells != nullptr) [[likely]]
    return *thread_cells;
  return register_thread();
}
void record(const SpanName& name, std::uint64_t begin, std::uint64_t end, std::int64_t value) noexcept;
int register_counter(const char* text);

}  // namespace detail

// Records the time from construction to destruction under `name`, if a Trace was recording at construction.
class [[nodiscard]] Span {
 public:
  explicit Span(const SpanName& name, std::int64_t value = 0) noexcept {
    if (detail::records(name)) {
      name_ = &name;
      value_ = value;
      begin_ = detail::ticks();
    }
  }
  ~Span() {
    if (name_ != nullptr) detail::record(*name_, begin_, detail::ticks(), value_);
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  const SpanName* name_ = nullptr;
  std::uint64_t begin_ = 0;
  std::int64_t value_ = 0;
};

// A total over all threads since process start: `constinit`-like static objects, at most 64 in a process.
class Counter {
 public:
  explicit Counter(const char* text) : index_(detail::register_counter(text)) {}
  void add(std::int64_t amount) noexcept {
    auto& cell = detail::cells().counts[static_cast<std::size_t>(index_)];
    cell.store(cell.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);  // One writer a cell.
  }
  std::int64_t total() const;  // Sum over threads, finished ones too. Takes a lock.

 private:
  int index_;
};

// A value at a moment, e.g. the fill of a queue. Recorded only while a Trace records.
void record_gauge(const SpanName& name, std::int64_t value) noexcept;

// Whoever records step::kStep tells before it that this step begins. A relaxed load; where a TraceChoice has
// every_steps another one and a division, and a lock at the steps with which recording begins or ends.
void begin_traced_step(std::int64_t step) noexcept;

// A moment on the trace's clock.
struct TraceMoment {
  std::uint64_t ticks = 0;
};
inline TraceMoment trace_moment() noexcept {
  return {detail::ticks()};
}

// A span between two moments of this thread that nobody could enclose in a scope: hooks called at either end. Recorded
// only while a Trace records.
inline void record_span(const SpanName& name, TraceMoment begin, TraceMoment end, std::int64_t value = 0) noexcept {
  if (detail::records(name)) detail::record(name, begin.ticks, end.ticks, value);
}

// Gives this thread a name in traces: "loader 0". Cheap to call twice.
void name_this_thread(const std::string& name);

struct TraceEvent {
  std::uint32_t name;     // Index into TraceRecord::names.
  std::uint32_t thread;   // Index into TraceRecord::threads.
  std::int64_t begin_ns;  // Since TraceRecord's start.
  std::int64_t end_ns;    // Equal to begin_ns for a gauge, and for a gauge alone.
  std::int64_t value;     // The span's or gauge's value (a step number, bytes, a count).
};

// What was recorded: plain data, copied out of the rings.
struct TraceRecord {
  struct Name {
    std::string text;
    std::string category;
  };
  struct CounterTotal {
    std::string text;
    std::int64_t total;  // Increase since the start or the last take.
  };
  std::vector<Name> names;
  std::vector<std::string> threads;
  // Sorted by begin_ns; an outer span before an inner one that begins with it, gauges of one moment as they were given.
  std::vector<TraceEvent> events;
  std::vector<CounterTotal> counters;
  std::int64_t dropped = 0;      // Events that full rings overwrote (the oldest go first).
  std::int64_t duration_ns = 0;  // From start to stop or take.
  std::int64_t start_ns = 0;     // CLOCK_MONOTONIC at the start; 0: not known (read from a file).
};

struct TraceOptions {
  // The newest events that a thread keeps between two takes: rounded up to a power of two, less one. 32 bytes each,
  // mapped at a thread's first event. More keeps longer runs.
  std::int64_t events_per_thread = 1 << 16;
  // Bytes that all threads' events may take together, at least 1 MiB; 0: no bound. A new thread gets at most half of
  // what is left. Where that is little, what ended threads recorded goes, the oldest first: it counts as dropped.
  std::int64_t memory_max = 0;
  TraceChoice choice{};
};

// Recording: from construction to stop() or destruction.
class Trace {
 public:
  explicit Trace(TraceOptions options = {});
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  // Ends recording and takes what the rings hold. Spans still open are not in it. Call once.
  TraceRecord stop();
  // Takes what is recorded so far and empties the rings, without ending the recording.
  TraceRecord take();
  // A copy of what began in the last `last_ns` (above 0), which empties nothing, for any thread. It holds what running
  // threads recorded, taken or not, and of ended ones what came after the last take(). Threads that record go on and
  // wait for nothing; one that begins or ends waits some microseconds. `dropped`: all that was lost by rings that do
  // not reach back so far. Without a recording: empty.
  TraceRecord recent(std::int64_t last_ns) const;

 private:
  bool stopped_ = false;
};

// Chrome JSON trace (the "Trace Event Format"), which Perfetto and chrome://tracing open. Times in microseconds with
// three decimals. A span is a complete event (X), a gauge a counter event (C) with one value. Gauges of one moment
// named "track.series" of category "stack" are shares of one whole: one counter event "track" with one value a series,
// which a viewer shows stacked. Spans of a thread that overlap without nesting lie on a
// further track of it, "NAME (2)". `otherData` carries {"format": "headrace-trace", "version": 1, "recorder":
// "headrace", "dropped": N}. Written aside, renamed.
void write_chrome_trace(const TraceRecord& record, const std::string& path);
// Reads what write_chrome_trace wrote; an unknown version or a foreign file is Error{corrupt_data} naming the file.
TraceRecord read_chrome_trace(const std::string& path);

// The parts of a training step. The trainer records them; insight divides a step's time by them. Parts never nest.
namespace step {
inline constexpr SpanName kStep{"step", "step"};            // From asking for the batch to the end of the update.
inline constexpr SpanName kDataWait{"data_wait", "step"};   // The consumer waits for the next host batch.
inline constexpr SpanName kTransfer{"transfer", "step"};    // Host batch to device, layout and dtype of the model.
inline constexpr SpanName kForward{"forward", "step"};      // Forward and loss.
inline constexpr SpanName kBackward{"backward", "step"};    // Backward.
inline constexpr SpanName kOptimizer{"optimizer", "step"};  // Unscale, clip, update, zero the gradients, schedule.
}  // namespace step

// Memory of the process over time, in bytes.
namespace memory {
// Of the stack "memory": "memory.<class>" for every class of memory, and this for what is resident beyond them all.
inline constexpr SpanName kOther{"memory.other", "stack"};
inline constexpr SpanName kResident{"memory.resident", "mark"};  // At the moment of the stack, and after each step.
inline constexpr SpanName kPeak{"memory.peak", "mark"};          // After each step: the most since the last one.
}  // namespace memory

// Adds the moments that lie within the record's time as gauges of a thread "memory": per moment the stack
// memory.<class>, memory::kOther, and memory::kResident.
void add_memory(TraceRecord& record, const MemoryTimeline& timeline);

}  // namespace headrace
