// What watching costs: a record handed over by the loop, and the readings of the monitor's own threads.
#include <benchmark/benchmark.h>
#include <headrace/monitor.h>

#include <chrono>
#include <cstdint>

#include "core/hardware/system_figures.h"
#include "insight/monitor/metric_series.h"
#include "insight/monitor/step_memory.h"

namespace headrace {
namespace {

// Four metrics a step. Where the thread does not keep up records are dropped, which costs the loop less: the share is
// told.
void record_of_a_step(benchmark::State& state) {
  MonitorOptions options;
  options.system_interval = std::chrono::nanoseconds(0);
  options.queue_records = 1 << 20;
  Monitor monitor(options);
  std::int64_t step = 0;
  for (auto _ : state) {
    monitor.record(step++, {{"train.loss", 0.5}, {"train.lr", 1e-3}, {"samples_per_s", 1000}, {"step_time", 0.02}});
  }
  const MonitorStatus status = monitor.status();
  state.counters["dropped"] =
      static_cast<double>(status.dropped) / static_cast<double>(status.dropped + status.recorded);
}
BENCHMARK(record_of_a_step);

void figures_of_the_machine(benchmark::State& state) {
  SystemReader reader;
  for (auto _ : state) benchmark::DoNotOptimize(reader.read());
}
BENCHMARK(figures_of_the_machine);

void memory_of_a_step(benchmark::State& state) {
  StepMemoryReader reader;
  for (auto _ : state) benchmark::DoNotOptimize(reader.take());
}
BENCHMARK(memory_of_a_step);

void value_of_a_series(benchmark::State& state) {
  MetricSeries series;
  double value = 0.02;
  for (auto _ : state) {
    series.add(value);
    value = value < 0.021 ? value + 1e-6 : 0.02;
  }
}
BENCHMARK(value_of_a_series);

}  // namespace
}  // namespace headrace

BENCHMARK_MAIN();
