#include <headrace/operator_category.h>
#include <headrace/operator_table.h>
#include <headrace/profile_schedule.h>
#include <headrace/profile_summary.h>
#include <headrace/trace.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/trace/span_end.h"
#include "insight/diagnose/json.h"
#include "python/core/bindings.h"
#include "python/core/trace_scope.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

// The steps of a profile, each from one call to the next.
class StepMarks {
 public:
  void mark(std::int64_t number) {
    const TraceMoment now = span_end(begin_, trace_moment());
    record_span(operators::kStep, begin_, now, number);
    begin_ = now;
  }

 private:
  TraceMoment begin_ = trace_moment();
};

nb::list table_of(const TraceScope& trace, bool by_shapes) {
  nb::list rows;
  for (const OperatorStatistics& one : operator_table(trace.record(), by_shapes)) {
    nb::dict row;
    row["name"] = str_of(one.name);
    row["shapes"] = str_of(one.shapes);
    row["calls"] = one.calls;
    row["total_ns"] = one.total_ns;
    row["self_ns"] = one.self_ns;
    row["bytes"] = one.bytes;
    row["self_bytes"] = one.self_bytes;
    rows.append(row);
  }
  return rows;
}

// Name, thread, begin and end.
using MeasuredSpan = std::tuple<std::string, std::uint32_t, std::int64_t, std::int64_t>;

nb::object summary_of(const std::vector<MeasuredSpan>& spans) {
  TraceRecord record;
  std::unordered_map<std::string, std::uint32_t> names;
  std::uint32_t threads = 0;
  for (const auto& [name, thread, begin_ns, end_ns] : spans) {
    const auto [known, is_new] = names.try_emplace(name, static_cast<std::uint32_t>(record.names.size()));
    if (is_new) record.names.push_back({name, "work"});
    threads = std::max(threads, thread + 1);
    record.events.push_back({known->second, thread, begin_ns, std::max(end_ns, begin_ns + 1), 0});
  }
  record.threads.resize(threads);
  return object_of(to_json(get_profile_summary(record)));
}

}  // namespace

void register_operators(nb::module_& module) {
  nb::class_<StepMarks>(module, "StepMarks", "The steps of a profile, as spans of the Trace that records.")
      .def(nb::init<>())
      .def("mark", &StepMarks::mark, nb::arg("number"), "Ends the step of this number, and begins the next one.");
  module.def(
      "profile_action",
      [](std::int64_t wait, std::int64_t warmup, std::int64_t active, std::int64_t repeat, std::int64_t skip_first,
         std::int64_t step) {
        return to_string(profile_action({wait, warmup, active, repeat, skip_first}, step));
      },
      nb::arg("wait"), nb::arg("warmup"), nb::arg("active"), nb::arg("repeat"), nb::arg("skip_first"), nb::arg("step"),
      "What a profile of that schedule does in the step: the name of a torch.profiler.ProfilerAction.");
  module.def("operator_table", &table_of, nb::arg("trace"), nb::arg("by_shapes") = false,
             "The operators that `trace` recorded, one dict each of name, shapes, calls, total_ns, self_ns, bytes and "
             "self_bytes, these two None where memory was not recorded; the largest self_ns first.");
  module.def(
      "summarize_spans", &summary_of, nb::arg("spans"),
      "What Trace.summary() has, of spans that were measured elsewhere: tuples of name, number of the thread from "
      "0 without gaps, begin and end in nanoseconds.");
}

}  // namespace headrace::python
