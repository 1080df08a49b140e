// What recording costs: medians over interleaved repeats with their spread, beside the floor of two clock reads. Exits
// 3 where a bar is missed: a value into a histogram, a stage, the loop's part of a dump, sampled recording against
// full.
#include <headrace/duration_histogram.h>
#include <headrace/flight_recorder.h>
#include <headrace/stages.h>
#include <headrace/trace.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/temporary_folder.h"
#include "quantile.h"

namespace headrace {
namespace {

constexpr SpanName kWork{"work", "work"};
Counter bench_count{"bench_count"};

constexpr int kRepeats = 201;
constexpr std::int64_t kCalls = 50'000;

// Keeps the optimiser from joining one call with the next.
void barrier() {
  asm volatile("" ::: "memory");
}

template <class Body>
double nanoseconds_per_call(Body body) {
  const std::int64_t begin = monotonic_ns();
  for (std::int64_t call = 0; call < kCalls; ++call) {
    body();
    barrier();
  }
  return static_cast<double>(monotonic_ns() - begin) / static_cast<double>(kCalls);
}

struct Measure {
  std::string name;
  std::function<double()> once;
  std::vector<double> ns;
};

void print(const std::string& name, const std::vector<double>& ns) {
  fmt::print("{:<40} {:6.2f} ns   (5 % {:.2f}, 95 % {:.2f})\n", name, quantile(ns, 0.5), quantile(ns, 0.05),
             quantile(ns, 0.95));
}

// Interleaved, so that a slow moment of the machine meets every measure.
void run(std::vector<Measure>& measures) {
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    for (Measure& measure : measures) measure.ns.push_back(measure.once());
  }
  for (const Measure& measure : measures) print(measure.name, measure.ns);
}

void run() {
  fmt::print("{} repeats of {} calls each\n", kRepeats, kCalls);
  std::vector<Measure> idle{
      {"empty loop", [] { return nanoseconds_per_call([] {}); }, {}},
      {"span, nothing records", [] { return nanoseconds_per_call([] { Span span{kWork}; }); }, {}},
      {"counter", [] { return nanoseconds_per_call([] { bench_count.add(1); }); }, {}},
  };
  run(idle);

  const auto two_reads = [] {
    static_cast<void>(detail::ticks());
    barrier();
    static_cast<void>(detail::ticks());
  };
  std::vector<Measure> recording{
      {"two clock reads (floor)", [&] { return nanoseconds_per_call(two_reads); }, {}},
      {"span, a trace records", [] { return nanoseconds_per_call([] { Span span{kWork}; }); }, {}},
      {"counter, a trace records", [] { return nanoseconds_per_call([] { bench_count.add(1); }); }, {}},
      {"gauge, a trace records", [] { return nanoseconds_per_call([] { record_gauge(kWork, 1); }); }, {}},
  };
  Trace trace;
  run(recording);
  static_cast<void>(trace.stop());

  std::vector<double> above_floor;
  for (std::size_t i = 0; i < kRepeats; ++i) above_floor.push_back(recording[1].ns[i] - recording[0].ns[i]);
  print("span above the floor, pair by pair", above_floor);
}

// A figure beside what it may be. True: within it.
bool meets(const char* name, double figure, double most, const char* unit) {
  const bool met = figure <= most;
  fmt::print("{:<40} {:6.2f} {} of at most {:.2f}: {}\n", name, figure, unit, most, met ? "met" : "missed");
  return met;
}

// A value of some spread, so that the branch predictor does not learn its octave.
std::int64_t next_duration(std::uint64_t& state) {
  state = state * 6364136223846793005U + 1442695040888963407U;
  return static_cast<std::int64_t>(state >> (24 + ((state >> 8) & 15)));
}

bool histogram_is_cheap() {
  DurationHistogram histogram;
  std::uint64_t state = 1;
  std::int64_t sum = 0;
  std::vector<Measure> measures{
      {"draw of a duration (floor)", [&] { return nanoseconds_per_call([&] { sum ^= next_duration(state); }); }, {}},
      {"draw, and a value into a histogram",
       [&] { return nanoseconds_per_call([&] { histogram.add(next_duration(state)); }); },
       {}},
  };
  run(measures);
  std::vector<double> added;
  for (std::size_t i = 0; i < kRepeats; ++i) added.push_back(measures[1].ns[i] - measures[0].ns[i]);
  if (histogram.count() == 0 || sum == 0) return false;
  return meets("a value into a histogram", quantile(added, 0.5), 5, "ns");
}

// In clock reads: what four stages take beyond four stores, divided by what a read takes. A Span is two reads and one
// store, so a store is what it takes beyond two reads. Its two reads follow each other and those of stages do not,
// which can differ by a nanosecond: so the same reads and stores without the class are told, too, and not judged.
bool stages_share_reads() {
  const auto four_stages = [] {
    Stages stages{kWork};
    stages.next(kWork);
    stages.next(kWork);
    stages.next(kWork);
  };
  const auto by_hand = [] {
    std::uint64_t begin = detail::ticks();
    for (int i = 0; i < 4; ++i) {
      const std::uint64_t end = detail::ticks();
      detail::record(kWork, begin, end, 0);
      begin = end;
    }
  };
  const auto read = [] {
    for (int i = 0; i < 4; ++i) {
      static_cast<void>(detail::ticks());
      barrier();
    }
  };
  std::vector<Measure> measures{
      {"four clock reads", [&] { return nanoseconds_per_call(read); }, {}},
      {"four spans",
       [] {
         return nanoseconds_per_call([] {
           for (int i = 0; i < 4; ++i) Span span{kWork};
         });
       },
       {}},
      {"four stages", [&] { return nanoseconds_per_call(four_stages); }, {}},
      {"five reads and four stores by hand", [&] { return nanoseconds_per_call(by_hand); }, {}},
  };
  Trace trace;
  run(measures);
  static_cast<void>(trace.stop());
  std::vector<double> reads, above_by_hand;
  for (std::size_t i = 0; i < kRepeats; ++i) {
    above_by_hand.push_back(measures[2].ns[i] - measures[3].ns[i]);
    const double one_read = measures[0].ns[i] / 4;
    const double stores = measures[1].ns[i] - 8 * one_read;
    reads.push_back((measures[2].ns[i] - stores) / one_read / 4);
  }
  print("four stages above that, pair by pair", above_by_hand);
  return meets("clock reads a stage", quantile(reads, 0.5), 1.25, "  ");
}

// T-13's shape at the level of spans: all of them against one step of ten.
bool sampling_is_cheap() {
  constexpr int kSpans = 8;  // A step.
  std::int64_t step = 0;
  const auto steps = [&] {
    return nanoseconds_per_call([&] {
      begin_traced_step(step++);
      for (int i = 0; i < kSpans; ++i) Span span{kWork};
    });
  };
  std::vector<double> full, sampled, share;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    {
      Trace trace;
      full.push_back(steps());
    }
    Trace trace{{.choice = {.every_steps = 10}}};
    sampled.push_back(steps());
    share.push_back(sampled.back() / full.back());
  }
  print("step of 8 spans, all recorded", full);
  print("step of 8 spans, every 10th recorded", sampled);
  // A tenth of the spans, and the switch of every step: "well under full" of PROF-12, as half.
  return meets("sampled / full", quantile(share, 0.95), 0.5, "  ");
}

// What the loop itself does for a dump, and the longest gap between two of its spans while one is written. The gap is
// the operating system's, too, where fewer cores are free than threads: it is told, and the request judged.
bool dumps_do_not_pause() {
  const TemporaryFolder folder;
  Trace trace{{.events_per_thread = 1 << 18, .memory_max = kFlightMemory}};
  FlightRecorder recorder{trace, {.folder = folder.path(), .dumps_max = 1000}};
  for (int i = 0; i < 1 << 18; ++i) Span span{kWork};
  std::vector<double> request_us, gap_us;
  for (int dump = 0; dump < 20; ++dump) {
    const std::int64_t asked_ns = monotonic_ns();
    recorder.request("bench");
    request_us.push_back(static_cast<double>(monotonic_ns() - asked_ns) * 1e-3);
    std::int64_t last_ns = monotonic_ns(), longest_ns = 0;
    while (recorder.status().dumps.size() <= static_cast<std::size_t>(dump)) {
      for (int i = 0; i < 1000; ++i) {
        { Span span{kWork}; }
        const std::int64_t now_ns = monotonic_ns();
        longest_ns = std::max(longest_ns, now_ns - last_ns);
        last_ns = now_ns;
      }
    }
    gap_us.push_back(static_cast<double>(longest_ns) * 1e-3);
  }
  fmt::print("longest gap while a dump is written: median {:.1f} us, most {:.1f} us\n", quantile(gap_us, 0.5),
             quantile(gap_us, 1));
  return meets("pause of the loop for a dump, 95 %", quantile(request_us, 0.95), 50, "us");
}

}  // namespace
}  // namespace headrace

int main() {
  using namespace headrace;
  run();
  const bool met[] = {histogram_is_cheap(), stages_share_reads(), sampling_is_cheap(), dumps_do_not_pause()};
  return std::all_of(std::begin(met), std::end(met), [](bool one) { return one; }) ? 0 : 3;
}
