// The operators of a trace by name: calls, time and memory. A pure function, safe to call from any thread.
#pragma once

#include <headrace/trace.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace {

// All calls of one operator, or of one operator with arguments of the same shapes. Times are added up over threads; a
// call within a call of the same name counts in both totals, as in torch.profiler's key averages.
struct OperatorStatistics {
  std::string name;
  std::string shapes;  // "[[32, 64], [64, 10], []]"; empty: not grouped by them, or not recorded.
  std::int64_t calls = 0;
  std::int64_t total_ns = 0;  // Operators that it calls included.
  std::int64_t self_ns = 0;   // These left out.
  // Allocated less freed during the calls, for tensors on the CPU; nullopt: not recorded.
  std::optional<std::int64_t> bytes;
  std::optional<std::int64_t> self_bytes;
};

// Of the spans that are operators (headrace/operator_category.h), by largest self_ns. An operator is the child of the
// one on its thread whose time encloses its own. One that is the only child of an operator of the same name is that
// operator, called by way of the dispatcher, and no second call (torch.autograd.profiler_util._remove_dup_nodes).
// Error{corrupt_data} as get_profile_summary(). n log n in the spans.
std::vector<OperatorStatistics> operator_table(const TraceRecord& record, bool by_shapes = false);

}  // namespace headrace
