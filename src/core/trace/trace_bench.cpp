// What recording costs: medians over interleaved repeats with their spread, beside the floor of two clock reads.
#include <headrace/trace.h>

#include <fmt/format.h>

#include <functional>
#include <string>
#include <vector>

#include "core/base/clock.h"
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

}  // namespace
}  // namespace headrace

int main() {
  headrace::run();
}
