#include <pybind11/pybind11.h>

#include <string>

#include "python/bindings.h"
#include "python/loop_watch.h"

namespace headrace::python {

namespace py = pybind11;

void register_watch(py::module_& module) {
  py::class_<LoopWatch>(module, "LoopWatch", "Records the parts of a loop as hooks tell of their ends.")
      .def(py::init<>())
      .def("epoch_begins", &LoopWatch::pass_begins)
      .def("data_begins", &LoopWatch::data_begins)
      .def("data_ends", &LoopWatch::data_ends, py::arg("batch"), "None: the epoch is over.")
      .def("forward_begins", &LoopWatch::forward_begins, py::arg("for_training"))
      .def("forward_ends", &LoopWatch::forward_ends, py::arg("for_training"))
      .def("backward_begins", &LoopWatch::backward_begins)
      .def("backward_ends", &LoopWatch::backward_ends)
      .def("optimizer_begins", &LoopWatch::optimizer_begins)
      .def("optimizer_ends", &LoopWatch::optimizer_ends)
      .def("add_model", &LoopWatch::add_model, py::arg("model"), "Its memory is counted.")
      .def("add_optimizer", &LoopWatch::add_optimizer, py::arg("optimizer"), "Its memory is counted.")
      .def("time_host_alone", &LoopWatch::time_host_alone, "A device works on its own: there is no diagnosis.")
      .def("stop", &LoopWatch::stop)
      .def(
          "result",
          [](const LoopWatch& watch, const std::string& title) {
            WatchResult result = watch.result(title);
            return py::make_tuple(result.document, result.text, result.html);
          },
          py::arg("title"), "JSON, text and HTML.")
      .def("write_trace", &LoopWatch::write_trace, py::arg("path"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace headrace::python
