// A record for the tests of reports: 40 steps with operators in them, and a thread that loads beside them.
#pragma once

#include <headrace/trace.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace headrace {

// Step k, from 0, takes 20 + k % 5 ms: 2 of them waiting, 5 forward (1 and 3 in operators, of which the second holds a
// third of 2), 8 backward, the rest of 4 + k % 5 optimizer; 1 lies in no part. Meanwhile "loader 0" reads for 6 ms and
// waits for 10.
inline TraceRecord sample_trace(std::int64_t steps = 40) {
  constexpr std::int64_t kMillisecond = 1'000'000;
  enum : std::uint32_t { kStep, kDataWait, kForward, kBackward, kOptimizer, kAdd, kLinear, kMatmul, kRead, kWait };
  TraceRecord record;
  record.names = {
      {"step", "step"},      {"data_wait", "step"},     {"forward", "step"},          {"backward", "step"},
      {"optimizer", "step"}, {"aten::add", "operator"}, {"aten::linear", "operator"}, {"aten::addmm", "operator"},
      {"read", "work"},      {"wait for room", "wait"}};
  record.threads = {"main", "loader 0"};
  std::int64_t now = 0;
  const auto add = [&](std::uint32_t name, std::int64_t from_ms, std::int64_t length_ms, std::uint32_t thread = 0) {
    const std::int64_t begin = now + from_ms * kMillisecond;
    record.events.push_back({name, thread, begin, begin + length_ms * kMillisecond, 0});
  };
  for (std::int64_t k = 0; k < steps; ++k) {
    const std::int64_t more = k % 5;
    add(kStep, 0, 20 + more);
    add(kDataWait, 0, 2);
    add(kRead, 1, 6, 1);
    add(kForward, 2, 5);
    add(kAdd, 2, 1);
    add(kLinear, 4, 3);
    add(kMatmul, 5, 2);
    add(kBackward, 7, 8);
    add(kWait, 8, 10, 1);
    add(kOptimizer, 15, 4 + more);
    now += (20 + more) * kMillisecond;
  }
  record.duration_ns = now;
  std::stable_sort(record.events.begin(), record.events.end(), [](const TraceEvent& a, const TraceEvent& b) {
    return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
  });
  return record;
}

// The same with `text` in the place of every name that is none of a step's parts.
inline TraceRecord sample_trace_of(const std::string& text) {
  TraceRecord record = sample_trace();
  for (TraceRecord::Name& name : record.names) {
    if (name.category != "step") name.text = text;
  }
  for (std::string& thread : record.threads) thread = text;
  return record;
}

}  // namespace headrace
