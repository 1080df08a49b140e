#include <headrace/diagnosis.h>
#include <headrace/operator_steps.h>
#include <headrace/profile_summary.h>
#include <headrace/time_split.h>
#include <headrace/trace_export.h>
#include <headrace/trace_flow.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/cli/doctor.h"
#include "core/base/files.h"
#include "core/hardware/machine.h"
#include "insight/diagnose/json.h"
#include "python/core/bindings.h"
#include "python/core/insight_report.h"
#include "python/core/trace_scope.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

// `with` calls it, and hands over the object itself.
template <class Scope>
void add_enter(nb::class_<Scope>& bound) {
  bound.def("__enter__", [](nb::object self) {
    nb::cast<Scope&>(self).enter();
    return self;
  });
}

void register_traces(nb::module_& module) {
  nb::class_<TraceScope> bound(module, "Trace", nb::is_weak_referenceable(),
                               R"(Records spans of all threads while its with block runs; one at a time in a process.

events_per_thread: the newest events that a thread keeps.
names: patterns, * for any text and ? for one character; only spans and gauges that match one of them are recorded.
every_steps: only every so many steps are, as step() or a Trainer's loop tells them, and nothing before the first one.
from_s, length_s: only what begins within this time of the block is recorded; length_s 0: to its end.
What is left out costs no clock read, but one where there is a time.)");
  add_enter(bound);
  bound
      .def(
          "__init__",
          [](TraceScope* place, std::int64_t events_per_thread, std::vector<std::string> names,
             std::int64_t every_steps, double from_s, double length_s) {
            new (place) TraceScope(TraceOptions{.events_per_thread = events_per_thread,
                                                .choice = choice_of(std::move(names), every_steps, from_s, length_s)});
          },
          nb::arg("events_per_thread") = TraceOptions{}.events_per_thread, nb::kw_only(),
          nb::arg("names") = std::vector<std::string>{}, nb::arg("every_steps") = 1, nb::arg("from_s") = 0.0,
          nb::arg("length_s") = 0.0)
      .def_static("step", &begin_traced_step, nb::arg("number"),
                  "This step begins: for loops of one's own under every_steps.")
      .def("__exit__", [](TraceScope& trace, const nb::args& /*raised*/) { trace.exit(); })
      .def(
          "summary", [](const TraceScope& trace) { return object_of(to_json(get_profile_summary(trace.record()))); },
          "total_operations, total_duration (seconds with any span open, nested time once), and for each name count, "
          "total, mean, standard deviation, extremes and percentiles.")
      .def(
          "histogram",
          [](const TraceScope& trace, const std::string& name) {
            return object_of(to_json(span_durations(trace.record(), name)));
          },
          nb::arg("name"),
          "How often the spans of this name took how long: count, mean_s, min_s, max_s, p50_s, p95_s, p99_s, and "
          "ranges of from_s, to_s and count, four a power of two.")
      .def(
          "time_split",
          [](const TraceScope& trace, std::int64_t skip) {
            return object_of(to_json(split_time(with_operator_steps(trace.record()), skip)));
          },
          nb::arg("skip") = 0,
          "Seconds of each part of the steps, also of those of hr.profile(); the first `skip` steps are left out.")
      .def(
          "memory", [](const TraceScope& trace) { return object_of(to_json(trace.memory())); },
          "Bytes over time while it recorded: resident, and by class what headrace's Loaders and Trainers held; None "
          "for a class that nobody counted.")
      .def(
          "write",
          [](const TraceScope& trace, const std::filesystem::path& path, const std::string& form,
             const std::vector<std::pair<std::string, std::string>>& flows) {
            const TraceRecord& record = trace.record();
            const nb::gil_scoped_release release;
            std::vector<TraceFlow> arrows;
            for (const auto& [source, target] : flows) {
              const std::vector<TraceFlow> found = flows_by_value(record, source, target);
              arrows.insert(arrows.end(), found.begin(), found.end());
            }
            return export_trace(record, path, trace_form_of(form), arrows);
          },
          nb::arg("path"), nb::arg("form") = to_string(TraceForm::chrome), nb::kw_only(),
          nb::arg("flows") = std::vector<std::pair<std::string, std::string>>{},
          R"(Writes the trace and returns the files: one, or of the form "chrome" as many as keep each below 200 MB.

form: "chrome", JSON that Perfetto and chrome://tracing open; "perfetto", protobuf, the smallest; "folded", stacks for flame
graphs; "csv" and "jsonl", one row an event.
flows: pairs of names of spans; an arrow goes from each of the first name to the next of the second that has its value. From
each chunk that a headrace.Loader's thread loaded one goes to the taking of its batch, whatever is given.)")
      .def_prop_ro(
          "dropped", [](const TraceScope& trace) { return trace.record().dropped; }, "Events that full buffers lost.")
      .def("__repr__", [](const TraceScope& trace) { return "<headrace.Trace " + trace.state() + ">"; });
  refuse_pickling(
      bound,
      "a headrace.Trace cannot be pickled or copied: it is what this process recorded. Write it to a file by "
      "write(), or take its summary()");
}

void register_spans(nb::module_& module) {
  nb::class_<SpanScope> span(module, "span", nb::is_weak_referenceable(),
                             "A context manager: its block is recorded under this name while a Trace records. An "
                             "exception closes it and is marked by a gauge \"NAME: exception\".");
  add_enter(span);
  span.def(nb::init<const std::string&>(), nb::arg("name"))
      .def(
          "__exit__",
          [](SpanScope& scope, nb::handle type, nb::handle /*value*/, nb::handle /*traceback*/) {
            scope.exit(!type.is_none());
          },
          nb::arg("type").none(), nb::arg("value").none(), nb::arg("traceback").none());

  nb::class_<StepPartScope> part(module, "StepPart",
                                 "A context manager: its block is recorded as this part of a training step.");
  add_enter(part);
  part.def(nb::init<const std::string&>(), nb::arg("name"))
      .def("__exit__", [](StepPartScope& scope, const nb::args& /*raised*/) { scope.exit(); });
}

DiagnosisInput input_of(std::int64_t samples_per_step, std::optional<double> loader_busy_s, int num_workers) {
  DiagnosisInput input;
  input.samples_per_step = samples_per_step;
  input.loader_busy_s = loader_busy_s;
  input.num_workers = num_workers;
  return input;
}

nb::dict dict_of(const DiagnosedRecord& found) {
  nb::dict told;
  told["diagnosis"] = object_of(to_json(found.diagnosis));
  told["time_split"] = object_of(to_json(found.split));
  return told;
}

}  // namespace

void register_insight(nb::module_& module) {
  register_traces(module);
  register_spans(module);
  module.def(
      "diagnose",
      [](const TraceScope& trace, std::int64_t samples_per_step, std::int64_t skip, std::optional<double> loader_busy_s,
         int num_workers) {
        return dict_of(diagnose_record(trace.record(), input_of(samples_per_step, loader_busy_s, num_workers), skip));
      },
      nb::arg("trace"), nb::arg("samples_per_step"), nb::kw_only(), nb::arg("skip") = 0,
      nb::arg("loader_busy_s") = nb::none(), nb::arg("num_workers") = 1,
      "What limits the steps that `trace` recorded: {\"diagnosis\": bound, predicted_free_data_gain, sentence, "
      "findings, resources; \"time_split\"}.");
  module.def(
      "diagnose_file",
      [](const std::filesystem::path& path, std::int64_t samples_per_step, std::int64_t skip,
         std::optional<double> loader_busy_s, int num_workers) {
        DiagnosedRecord found;
        {
          const nb::gil_scoped_release release;
          found = diagnose_file(path, input_of(samples_per_step, loader_busy_s, num_workers), skip);
        }
        return dict_of(found);
      },
      nb::arg("path"), nb::arg("samples_per_step"), nb::kw_only(), nb::arg("skip") = 0,
      nb::arg("loader_busy_s") = nb::none(), nb::arg("num_workers") = 1,
      "As diagnose(), of a Chrome trace that Trace.write() made.");
  module.def(
      "write_report",
      [](const std::filesystem::path& path, const TraceScope& trace, std::int64_t samples_per_step,
         const std::string& title, std::int64_t skip, const std::string& command) {
        write_trace_report(path, trace.record(), trace.memory(), samples_per_step, {title, skip, command});
      },
      nb::arg("path"), nb::arg("trace"), nb::arg("samples_per_step"), nb::kw_only(), nb::arg("title") = "training",
      nb::arg("skip") = 0, nb::arg("command") = "",
      R"(Writes one HTML file: time split, percentiles of the steps, one of them over time, flame graph, diagnosis, memory by
class of what Loaders and Trainers hold, and the machine.

title: what was recorded. skip: steps of warm-up, left out. command: what runs it again, told as it is; empty: unavailable.)");
  module.def(
      "write_step_events",
      [](const std::filesystem::path& folder, const TraceScope& trace) {
        const TraceRecord& record = trace.record();
        const nb::gil_scoped_release release;
        return write_step_events(folder, record);
      },
      nb::arg("folder"), nb::arg("trace"),
      "A new event file for TensorBoard in the folder: each step's seconds and those of its parts. Its path.");
  module.def(
      "trace_suffix", [](const std::string& form) { return suffix_of(trace_form_of(form)); }, nb::arg("form"),
      "How the name of a trace in this form ends, as \".json\".");
  module.def(
      "write_file", [](const std::string& path, const std::string& content) { write_file(path, content); },
      nb::arg("path"), nb::arg("content"), nb::call_guard<nb::gil_scoped_release>(),
      "Writes a text file whole or not at all.");
  module.def(
      "free_memory", [] { return free_memory(); },
      "Bytes that this process can still get: the least of what the kernel calls available and what its control groups "
      "leave; None: unavailable.");
  module.def(
      "doctor",
      [](const std::optional<std::filesystem::path>& run) {
        const Machine here = detect_machine();
        return object_of(to_json(run ? check_run(*run, here).findings : machine_findings(here)));
      },
      nb::arg("run") = nb::none(),
      "What makes measuring or training worse on this machine, or what is wrong with the files of a run's folder: a "
      "list of dicts of code, sentence and advice; empty when nothing is.");
}

}  // namespace headrace::python
