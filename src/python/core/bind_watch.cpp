#include <headrace/trace_export.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>

#include "python/core/bindings.h"
#include "python/core/loop_watch.h"

namespace headrace::python {

namespace nb = nanobind;

void register_watch(nb::module_& module) {
  nb::class_<LoopWatch>(module, "LoopWatch", nb::is_weak_referenceable(),
                        "Records the parts of a loop as hooks tell of their ends.")
      .def(nb::init<std::int64_t>(), nb::arg("events_per_thread") = TraceOptions{}.events_per_thread)
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
      .def("stop", &LoopWatch::stop)
      .def(
          "result",
          [](const LoopWatch& watch, const std::string& title) {
            WatchResult result = watch.result(title);
            return nb::make_tuple(result.document, result.text, result.html);
          },
          nb::arg("title"), "JSON, text and HTML.")
      .def("write_trace", &LoopWatch::write_trace, nb::arg("path"), nb::arg("form") = to_string(TraceForm::chrome),
           nb::call_guard<nb::gil_scoped_release>(), "As Trace.write() has it.");
}

}  // namespace headrace::python
