// A profile of operators for tests: a plain loop over torch's own classes, as headrace.profile() records it.
#pragma once

#include <headrace/operator_category.h>
#include <headrace/trace.h>

#include <algorithm>
#include <cstdint>

namespace headrace {

// Step k, from 0, takes 100 ms: 20 for the DataLoader, which collates for 5 of them; 30 forward, of which `between_ms`
// lie between its two operators; 25 backward, one node of autograd with an operator in it; 2 of clipping and 10 of the
// optimizer; then 3 of an operator for a metric. 10 more lie between these.
inline TraceRecord sample_operators(std::int64_t between_ms = 10, std::int64_t steps = 3) {
  constexpr std::int64_t kMillisecond = 1'000'000;
  enum : std::uint32_t { kStep, kNext, kStack, kLinear, kAddmm, kNode, kNorm, kUpdate, kItem };
  TraceRecord record;
  record.names = {{operators::kStep.text, operators::kStep.category},
                  {"enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "operator"},
                  {"aten::stack", "operator"},
                  {"aten::linear", "operator"},
                  {"aten::addmm", "operator"},
                  {"autograd::engine::evaluate_function: AddmmBackward0", "operator"},
                  {"aten::linalg_vector_norm", "operator"},
                  {"Optimizer.step#AdamW.step", "operator"},
                  {"aten::item", "operator"}};
  record.threads = {"main"};
  const auto add = [&](std::int64_t step, std::uint32_t name, std::int64_t from_ms, std::int64_t to_ms) {
    const std::int64_t begin = 100 * step;
    record.events.push_back({name, 0, (begin + from_ms) * kMillisecond, (begin + to_ms) * kMillisecond, 0});
  };
  for (std::int64_t k = 0; k < steps; ++k) {
    add(k, kStep, 0, 100);
    add(k, kNext, 0, 20);
    add(k, kStack, 10, 15);
    add(k, kLinear, 22, 32);
    add(k, kAddmm, 23, 31);
    add(k, kLinear, 32 + between_ms, 52);
    add(k, kNode, 55, 80);
    add(k, kAddmm, 56, 79);
    add(k, kNorm, 80, 82);
    add(k, kUpdate, 82, 92);
    add(k, kItem, 95, 98);
  }
  record.duration_ns = 100 * steps * kMillisecond;
  std::stable_sort(record.events.begin(), record.events.end(), [](const TraceEvent& a, const TraceEvent& b) {
    return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
  });
  return record;
}

}  // namespace headrace
