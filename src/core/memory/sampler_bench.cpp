// What watching memory costs: one reading, and the readings of 5 ms beside work that uses every core.
#include <benchmark/benchmark.h>
#include <headrace/trace.h>

#include <chrono>

#include "core/hardware/machine.h"
#include "core/memory/accounts.h"
#include "core/memory/sampler.h"

namespace headrace {
namespace {

void reading(benchmark::State& state) {
  const Account a{"parameters", [] { return 1; }}, b{"gradients", [] { return 1; }}, c{"batches", [] { return 1; }};
  MemorySampler sampler{std::chrono::hours(1)};
  for (auto _ : state) sampler.sample();
}
BENCHMARK(reading);

void resident(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(resident_memory());
}
BENCHMARK(resident);

}  // namespace
}  // namespace headrace

BENCHMARK_MAIN();
