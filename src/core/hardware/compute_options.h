// How the machine's cores and memory serve the job.
#pragma once

#include <headrace/options.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>

namespace headrace {

enum class Allocator { arena, system };
constexpr auto choices(Allocator) {
  return std::array{Choice<Allocator>{Allocator::arena, "arena"}, Choice<Allocator>{Allocator::system, "system"}};
}

enum class WaitPolicy { system, active, passive };
constexpr auto choices(WaitPolicy) {
  return std::array{Choice<WaitPolicy>{WaitPolicy::system, "system"}, Choice<WaitPolicy>{WaitPolicy::active, "active"},
                    Choice<WaitPolicy>{WaitPolicy::passive, "passive"}};
}

struct ComputeOptions {
  std::int64_t intra_op_threads = 0;  // Of an operator (OpenMP); 0: every core this process may use. Live knob.
  WaitPolicy wait_policy = WaitPolicy::system;  // Read when libgomp loads: the executable runs itself again with it.
  Allocator allocator = Allocator::arena;       // Where tensors live. Live knob.
  bool flush_denormal = false;                  // Numbers below 1.2e-38 count as 0. Live knob.
  // Of the whole process for as long as a verb runs (engine/assembly/run_settings.h).
  std::int64_t niceness = AUTOTUNE;  // Of all threads; AUTOTUNE: as the process was started.
  std::string affinity;              // "0-3,6", "node0"; empty: as the process was started.
  std::int64_t child_threads = 0;    // OMP_NUM_THREADS and its kind for child processes; 0: as they are.
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, ComputeOptions>
void describe(Visitor& visit, Options& o) {
  visit("intra_op_threads", o.intra_op_threads, Range<std::int64_t>{0, 1024},
        "Threads of one operator; 0 uses every core the process may use.");
  visit("wait_policy", o.wait_policy,
        "What an idle compute thread does (OMP_WAIT_POLICY): active spins, passive sleeps, system leaves it as it is.");
  visit("allocator", o.allocator,
        "arena keeps the memory of tensors from step to step, system leaves it to malloc, as PyTorch does.");
  visit(
      "flush_denormal", o.flush_denormal,
      "Count numbers below 1.2e-38 as 0 while computing, as torch.set_flush_denormal: some processors take many times "
      "as long for them.");
  visit("niceness", o.niceness, Range<std::int64_t>{0, 19, kOrAuto},
        "Niceness of all threads of the process; 19 gives way to all others. auto leaves it as the process was "
        "started. It cannot be lowered without special rights.");
  visit("affinity", o.affinity,
        "Cores that all threads of the process may use: a list such as 0-3,6, or node0 for a NUMA node. It can only "
        "narrow what the process has. Empty leaves it as the process was started.");
  visit("child_threads", o.child_threads, Range<std::int64_t>{0, 1024},
        "OMP_NUM_THREADS, MKL_NUM_THREADS and OPENBLAS_NUM_THREADS for processes that this one starts; 0 leaves them. "
        "For this process there is compute.intra_op_threads.");
}

}  // namespace headrace
