#include <headrace/diagnosis.h>
#include <headrace/profile_summary.h>
#include <headrace/time_split.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "app/cli/doctor.h"
#include "core/hardware/machine.h"
#include "insight/diagnose/json.h"
#include "python/bindings.h"
#include "python/insight_report.h"
#include "python/keywords.h"
#include "python/trace_scope.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

py::list findings_list(const std::vector<Finding>& findings) {
  py::list list;
  for (const Finding& finding : findings) {
    py::dict entry;
    entry["code"] = finding.code;
    entry["sentence"] = finding.sentence;
    entry["advice"] = finding.advice;
    list.append(entry);
  }
  return list;
}

void register_recording(py::module_& module) {
  py::class_<TraceScope>(module, "Trace",
                         R"(Records spans of all threads while its with block runs; one at a time in a process.

events_per_thread: the newest events that a thread keeps.)")
      .def(py::init<std::int64_t>(), py::arg("events_per_thread") = TraceOptions{}.events_per_thread)
      .def("__enter__",
           [](const py::object& self) {
             self.cast<TraceScope&>().enter();
             return self;
           })
      .def("__exit__", [](TraceScope& trace, const py::args&) { trace.exit(); })
      .def(
          "summary", [](const TraceScope& trace) { return object_of(to_json(get_profile_summary(trace.record()))); },
          "total_operations, total_duration (seconds with any span open, nested time once), and for each name count, "
          "total, mean, standard deviation, extremes and percentiles.")
      .def(
          "time_split",
          [](const TraceScope& trace, std::int64_t skip) {
            return object_of(to_json(split_time(trace.record(), skip)));
          },
          py::arg("skip") = 0, "Seconds of each part of the steps; the first `skip` steps are left out.")
      .def(
          "memory", [](const TraceScope& trace) { return object_of(to_json(trace.memory())); },
          "Bytes over time while it recorded: resident, and by class what headrace's Loaders and Trainers held; None "
          "for a class that nobody counted.")
      .def(
          "write",
          [](const TraceScope& trace, const std::filesystem::path& path) { write_chrome_trace(trace.record(), path); },
          py::arg("path"), "Writes a Chrome JSON trace, which Perfetto opens.")
      .def_property_readonly(
          "dropped", [](const TraceScope& trace) { return trace.record().dropped; }, "Events that full buffers lost.");

  py::class_<SpanScope>(module, "span",
                        "A context manager: its block is recorded under this name while a Trace records. An exception "
                        "closes it and is marked by a gauge \"NAME: exception\".")
      .def(py::init<std::string>(), py::arg("name"))
      .def("__enter__",
           [](const py::object& self) {
             self.cast<SpanScope&>().enter();
             return self;
           })
      .def("__exit__", [](SpanScope& span, const py::object& type, const py::object& /*value*/,
                          const py::object& /*traceback*/) { span.exit(!type.is_none()); });
}

}  // namespace

void register_insight(py::module_& module) {
  register_recording(module);
  module.def(
      "diagnose",
      [](const TraceScope& trace, std::int64_t samples_per_step, std::int64_t skip, std::optional<double> loader_busy_s,
         int num_workers) {
        DiagnosisInput input;
        input.samples_per_step = samples_per_step;
        input.loader_busy_s = loader_busy_s;
        input.num_workers = num_workers;
        return object_of(to_json(diagnose_record(trace.record(), std::move(input), skip)));
      },
      py::arg("trace"), py::arg("samples_per_step"), py::kw_only(), py::arg("skip") = 0,
      py::arg("loader_busy_s") = py::none(), py::arg("num_workers") = 1,
      "What limits the steps that `trace` recorded: bound, predicted_free_data_gain, sentence, findings.");
  module.def(
      "write_report",
      [](const std::filesystem::path& path, const TraceScope& trace, std::int64_t samples_per_step,
         const std::string& title, std::int64_t skip) {
        write_trace_report(path, trace.record(), trace.memory(), samples_per_step, title, skip);
      },
      py::arg("path"), py::arg("trace"), py::arg("samples_per_step"), py::kw_only(), py::arg("title") = "training",
      py::arg("skip") = 0,
      "Writes time split, diagnosis and memory, of what Loaders and Trainers hold by class, as one HTML file.");
  module.def(
      "free_memory", [] { return free_memory(); },
      "Bytes that this process can still get: the least of what the kernel calls available and what its control groups "
      "leave; None: unavailable.");
  module.def(
      "doctor",
      [](const std::optional<std::filesystem::path>& run) {
        const Machine here = detect_machine();
        return findings_list(run ? check_run(*run, here).findings : machine_findings(here));
      },
      py::arg("run") = py::none(),
      "What makes measuring or training worse on this machine, or what is wrong with the files of a run's folder: a "
      "list of dicts of code, sentence and advice; empty when nothing is.");
}

}  // namespace headrace::python
