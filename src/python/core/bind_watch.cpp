#include <headrace/trace_export.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/hardware/machine_peaks.h"
#include "python/core/bindings.h"
#include "python/core/loop_watch.h"
#include "python/core/torch_facts.h"
#include "python/core/trace_scope.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

void register_figures(nb::class_<LoopWatch>& watch) {
  watch
      .def(
          "set_loading",
          [](LoopWatch& seen, double read_s, double decode_s, double augment_s, double collate_s, double batches,
             int num_workers, int prefetch_batches, std::vector<double> batch_s) {
            seen.set_loading(
                {read_s, decode_s, augment_s, collate_s, batches, num_workers, prefetch_batches, std::move(batch_s)});
          },
          nb::kw_only(), nb::arg("read_s"), nb::arg("decode_s"), nb::arg("augment_s"), nb::arg("collate_s"),
          nb::arg("batches"), nb::arg("num_workers"), nb::arg("prefetch_batches"), nb::arg("batch_s"),
          "What loading took, in seconds of all that load together.")
      .def(
          "set_step_work",
          [](LoopWatch& seen, std::optional<double> flops, const std::string& why_no_flops,
             std::optional<std::int64_t> update_bytes, std::int64_t update_tensors) {
            StepWork work;
            work.flops = flops;
            work.why_no_flops = why_no_flops;
            work.update_bytes = update_bytes;
            work.update_tensors = update_tensors;
            seen.set_step_work(std::move(work));
          },
          nb::kw_only(), nb::arg("flops").none(), nb::arg("why_no_flops"), nb::arg("update_bytes").none(),
          nb::arg("update_tensors"), "What a step computes at least, and what its update moves.")
      .def(
          "find_peaks", [](LoopWatch& seen, const nb::callable& multiply) { seen.set_peaks(peaks_by(multiply)); },
          nb::arg("multiply"), "The machine's, which are measured the first time: multiply(n) multiplies two matrices.")
      .def("set_idle_wait", &LoopWatch::set_idle_wait, nb::arg("seconds"),
           "A step's data wait while a sleep takes the place of compute.")
      .def("add_garbage", &LoopWatch::add_garbage, nb::arg("seconds"), "Of Python's garbage collector.");
}

}  // namespace

void register_watch(nb::module_& module) {
  nb::class_<LoopWatch> bound(module, "LoopWatch", nb::is_weak_referenceable(),
                              "Records the parts of a loop as hooks tell of their ends.");
  register_figures(bound);
  bound
      .def(
          "__init__",
          [](LoopWatch* place, std::int64_t events_per_thread, std::vector<std::string> names, std::int64_t every_steps,
             double from_s, double length_s) {
            new (place) LoopWatch(events_per_thread, choice_of(std::move(names), every_steps, from_s, length_s));
          },
          nb::arg("events_per_thread") = TraceOptions{}.events_per_thread, nb::kw_only(),
          nb::arg("names") = std::vector<std::string>{}, nb::arg("every_steps") = 1, nb::arg("from_s") = 0.0,
          nb::arg("length_s") = 0.0)
      .def("epoch_begins", &LoopWatch::pass_begins)
      .def("data_begins", &LoopWatch::data_begins)
      .def("data_ends", &LoopWatch::data_ends, nb::arg("batch").none(), "None: the epoch is over.")
      .def("forward_begins", &LoopWatch::forward_begins, nb::arg("for_training"))
      .def("forward_ends", &LoopWatch::forward_ends, nb::arg("for_training"))
      .def("backward_begins", &LoopWatch::backward_begins)
      .def("backward_ends", &LoopWatch::backward_ends)
      .def("optimizer_begins", &LoopWatch::optimizer_begins)
      .def("optimizer_ends", &LoopWatch::optimizer_ends)
      .def("beside_begins", &LoopWatch::beside_begins, nb::arg("what"), "transfer, checkpoint or optimizer.")
      .def("beside_ends", &LoopWatch::beside_ends)
      .def("record_flights", &LoopWatch::record_flights, nb::arg("folder"), nb::arg("signal"),
           "Keeps the last minute, and writes it when a step is slow or the signal comes; 0: none.")
      .def("dump", &LoopWatch::dump, nb::arg("reason"), "Writes the last minute now; the file's path.")
      .def("add_model", &LoopWatch::add_model, nb::arg("model"), "Its memory is counted.")
      .def("add_optimizer", &LoopWatch::add_optimizer, nb::arg("optimizer"), "Its memory is counted.")
      .def("time_host_alone", &LoopWatch::time_host_alone, "A device works on its own: there is no diagnosis.")
      .def_prop_ro("steps", &LoopWatch::steps)
      .def(
          "live",
          [](const LoopWatch& seen) {
            nb::dict figures;
            for (const auto& [name, value] : seen.live()) figures[name.c_str()] = value;
            return figures;
          },
          "Of the newest steps: time.<part>_s and samples_per_s; empty: there is no whole one.")
      .def("stop", &LoopWatch::stop)
      .def(
          "result",
          [](const LoopWatch& watch, const std::string& title, const std::string& command) {
            WatchResult result = watch.result(title, command);
            return nb::make_tuple(result.document, result.text, result.html);
          },
          nb::arg("title"), nb::arg("command") = "", "JSON, text and HTML.")
      .def("write_trace", &LoopWatch::write_trace, nb::arg("path"), nb::arg("form") = to_string(TraceForm::chrome),
           nb::call_guard<nb::gil_scoped_release>(), "As Trace.write() has it.");
  module.def(
      "machine_peaks",
      [](const nb::callable& multiply) {
        const MachinePeaks peaks = peaks_by(multiply);
        nb::dict found;
        found["cpu"] = peaks.key.cpu;
        found["cores"] = peaks.key.cores;
        found["threads"] = peaks.key.threads;
        found["library"] = peaks.key.library;
        found["flops_per_s"] = peaks.flops_per_s;
        found["copy_bytes_per_s"] = peaks.copy_bytes_per_s;
        found["page_fault_s"] = peaks.page_fault_s;
        found["measured"] = peaks.measured;
        found["others"] = peaks.others;
        return found;
      },
      nb::arg("multiply"), "What this machine computes and moves at most, measured once and kept.");
}

}  // namespace headrace::python
