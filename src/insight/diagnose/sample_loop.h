// A loop as somebody watched it, and faults as they show in its figures, for tests.
#pragma once

#include <headrace/resource_verdict.h>

#include <cstdint>
#include <functional>
#include <ostream>
#include <vector>

#include "insight/diagnose/sample_report.h"

namespace headrace {

inline constexpr double kLoopSteps = 40;  // Of sample_split().

// A loop as somebody watched it: parts of a step in milliseconds, and what its thread did in them.
struct SampleLoop {
  double data_wait = 1, transfer = 0.5, forward = 33, backward = 60, optimizer = 4, other = 1.5;
  ResourceFigures figures;

  SampleLoop() {
    figures.peak_flops_per_s = 1e11;
    figures.peak_bytes_per_s = 1e10;
    figures.page_fault_s = 5e-7;
    figures.flops_per_step = 3.72e9;  // In 93 ms: 40 % of the peak.
    figures.update_bytes = 10'000'000;
    figures.update_tensors = 50;
    figures.loading = LoadingStages{};
    figures.loading->num_workers = 2;
    figures.loading->decode_s = 0.02;
    figures.loading->read_s = 0.02;
    figures.loading->augment_s = 0.02;
    figures.loading->collate_s = 0.01;
    figures.thread_delay_s = 0;
    figures.garbage_s = 0;
  }

  TimeSplit split() const {
    const double s = kLoopSteps * 1e-3;
    return sample_split(s * data_wait, s * transfer, s * forward, s * backward, s * optimizer, s * other);
  }
  double step_ms() const { return data_wait + transfer + forward + backward + optimizer + other; }

  // Of a part, what is not waiting; all of the data wait is.
  void use(double forward_cpu, double other_cpu, double delay = 0) {
    const double s = kLoopSteps * 1e-3;
    PartUses uses;
    uses.data_wait = {.wall_s = s * data_wait};
    uses.transfer = {.wall_s = s * transfer, .cpu_s = s * transfer};
    uses.forward = {.wall_s = s * forward, .cpu_s = s * forward_cpu, .run_delay_s = s * delay};
    uses.backward = {.wall_s = s * backward, .cpu_s = s * backward};
    uses.optimizer = {.wall_s = s * optimizer, .cpu_s = s * optimizer};
    uses.other = {.wall_s = s * other, .cpu_s = s * other_cpu};
    figures.use = uses;
  }
  ResourceVerdict verdict() const { return judge_resources(split(), figures); }
};

inline SampleLoop healthy_loop() {
  SampleLoop loop;
  loop.use(loop.forward, loop.other);
  return loop;
}

// A fault, as it shows in the figures, that costs `ms` of a step.
struct SampleFault {
  const char* name;
  Resource resource;
  std::function<void(SampleLoop&, double ms)> plant;
};
inline void PrintTo(const SampleFault& fault, std::ostream* out) {
  *out << fault.name;
}

// The stage takes so much more that both workers together are `ms` slower than compute.
inline void slow_down_loading(SampleLoop& loop, double LoadingStages::*stage, double ms) {
  LoadingStages& loading = *loop.figures.loading;
  const double busy_s = 1e-3 * (loop.step_ms() - loop.data_wait);
  loading.*stage += loading.num_workers * (busy_s + 1e-3 * (loop.data_wait + ms)) - loading.total_s();
  loop.data_wait += ms;
  loop.use(loop.forward, loop.other);
}

// Of the loop's own thread.
inline void slow_down(SampleLoop& loop, double SampleLoop::*part, double ms) {
  loop.*part += ms;
  loop.use(loop.forward, loop.other);
}

inline const std::vector<SampleFault>& sample_faults() {
  static const std::vector<SampleFault> all{
      {"SlowReads", Resource::storage,
       [](SampleLoop& loop, double ms) { slow_down_loading(loop, &LoadingStages::read_s, ms); }},
      {"SlowDecoding", Resource::decode,
       [](SampleLoop& loop, double ms) { slow_down_loading(loop, &LoadingStages::decode_s, ms); }},
      {"SlowTransforms", Resource::augment,
       [](SampleLoop& loop, double ms) { slow_down_loading(loop, &LoadingStages::augment_s, ms); }},
      {"SlowCollating", Resource::collate,
       [](SampleLoop& loop, double ms) { slow_down_loading(loop, &LoadingStages::collate_s, ms); }},
      {"SlowTransfer", Resource::transfer,
       [](SampleLoop& loop, double ms) { slow_down(loop, &SampleLoop::transfer, ms); }},
      {"SlowUpdate", Resource::optimizer,
       [](SampleLoop& loop, double ms) { slow_down(loop, &SampleLoop::optimizer, ms); }},
      {"BusyPython", Resource::python, [](SampleLoop& loop, double ms) { slow_down(loop, &SampleLoop::other, ms); }},
      {"ALockInForward", Resource::synchronisation,
       [](SampleLoop& loop, double ms) {
         loop.use(loop.forward, loop.other);
         loop.forward += ms;
         loop.figures.use->forward.wall_s += kLoopSteps * 1e-3 * ms;
       }},
      {"ASleepBesideTheParts", Resource::synchronisation,
       [](SampleLoop& loop, double ms) {
         loop.use(loop.forward, loop.other);
         loop.other += ms;
         loop.figures.use->other.wall_s += kLoopSteps * 1e-3 * ms;
       }},
      {"NewPagesEachStep", Resource::memory,
       [](SampleLoop& loop, double ms) {
         loop.other += ms;
         loop.use(loop.forward, loop.other);
         loop.figures.use->other.minor_faults = static_cast<std::int64_t>(kLoopSteps * 1e-3 * ms / 5e-7);
       }},
      {"GarbageEachStep", Resource::memory,
       [](SampleLoop& loop, double ms) {
         loop.other += ms;
         loop.use(loop.forward, loop.other);
         loop.figures.garbage_s = kLoopSteps * 1e-3 * ms;
       }},
      {"ANeighbour", Resource::cores,
       [](SampleLoop& loop, double ms) {
         const double before = loop.forward;
         loop.forward += ms;
         loop.use(before, loop.other, ms);
       }},
      {"WorkersOnTheCoresOfCompute", Resource::cores,
       [](SampleLoop& loop, double ms) {
         loop.figures.experiments.undisturbed_compute = 1e-3 * (loop.step_ms() - loop.data_wait);
         loop.forward += ms;
         loop.use(loop.forward, loop.other);
       }},
      {"OneSlowRank", Resource::imbalance,
       [](SampleLoop& loop, double ms) {
         const double mean_s = kLoopSteps * 1e-3 * loop.step_ms();
         const double more_s = kLoopSteps * 1e-3 * ms;
         loop.figures.rank_busy_s = {mean_s + more_s, mean_s - more_s / 2, mean_s - more_s / 2};
         loop.backward += ms;
         loop.use(loop.forward, loop.other);
       }},
  };
  return all;
}

}  // namespace headrace
