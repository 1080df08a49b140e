#include <headrace/live_tuner.h>
#include <headrace/option_fields.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/bindings.h"
#include "python/live_tuner_object.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

LiveOptions options_of(const py::dict& given) {
  TuneOptions checked;  // Whose describe() knows what each may be.
  const std::vector<Field> fields = fields_of(checked, "tune.");
  field_named(fields, "tune.allow").set(given["allow"].cast<std::string>());
  field_named(fields, "tune.gain_min").set(given["gain_min"].cast<double>());
  LiveOptions options;
  options.allow = checked.allow;
  options.gain_min = checked.gain_min;
  options.only = given["only"].cast<std::vector<std::string>>();
  options.fixed = given["fixed"].cast<std::vector<std::string>>();
  options.frozen = given["frozen"].cast<bool>();
  return options;
}

LiveRun run_of(const py::dict& given) {
  LiveRun run;
  run.title = given["title"].cast<std::string>();
  run.command = given["command"].cast<std::string>();
  run.note = given["note"].cast<std::string>();
  run.baseline = given["baseline"].cast<Settings>();
  run.not_tried = given["not_tried"].cast<std::vector<Report::NotTried>>();
  using Row = std::tuple<std::string, std::string, std::string, std::string>;
  for (auto& [key, requested, applied, reason] : given["settings"].cast<std::vector<Row>>()) {
    run.settings.push_back({key, requested, applied, reason});
  }
  return run;
}

// Python's garbage collector sees the objects that a LiveTunerObject holds.
void show_to_collector(PyHeapTypeObject* heap_type) {
  PyTypeObject& type = heap_type->ht_type;
  type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) -> int {
    Py_VISIT(Py_TYPE(self));
    if (!py::detail::is_holder_constructed(self)) return 0;
    return py::handle(self).cast<LiveTunerObject&>().traverse(visit, arg);
  };
  type.tp_clear = [](PyObject* self) -> int {
    if (py::detail::is_holder_constructed(self)) py::handle(self).cast<LiveTunerObject&>().let_go();
    return 0;
  };
}

}  // namespace

void register_live(py::module_& module) {
  py::class_<LiveTunerObject>(module, "LiveTuner",
                              "Tunes a run under way; include/headrace/live_tuner.h. From the thread that updates.",
                              py::custom_type_setup(&show_to_collector))
      .def(py::init([](py::object loop, std::vector<Candidate> candidates, const py::dict& options, std::uint64_t seed,
                       py::dict progress, py::object clock) {
             return std::make_unique<LiveTunerObject>(std::move(loop), std::move(candidates), options_of(options), seed,
                                                      std::move(progress), std::move(clock));
           }),
           py::arg("loop"), py::arg("candidates"), py::arg("options"), py::arg("seed"), py::arg("progress"),
           py::arg("clock") = py::none())
      .def(
          "keeps_call", [](LiveTunerObject& self) { return self.tuner().keeps_call(); },
          "Whether the call of the unit that begins now is to be kept.")
      .def(
          "before_update", [](LiveTunerObject& self) { self.tuner().before_update(); },
          "Replays what was kept; the gradients of the update are complete.")
      .def(
          "after_update",
          [](LiveTunerObject& self, std::int64_t update, double seconds, double work, double wait_s, bool countable,
             const std::string& why_not) {
            self.tuner().after_update({update, seconds, work, wait_s, countable, why_not});
          },
          py::arg("update"), py::arg("seconds"), py::arg("work"), py::arg("wait_s"), py::arg("countable"),
          py::arg("why_not"), "Applies what holds for the next unit.")
      .def(
          "failed",
          [](LiveTunerObject& self, const std::string& code, const std::string& sentence,
             const std::vector<std::string>& keys) { self.tuner().failed(code_named(code), sentence, keys); },
          py::arg("code"), py::arg("sentence"), py::arg("keys") = std::vector<std::string>(),
          "The loop raised while changes were tried; keys: of the settings at fault, where they are known.")
      .def("watching", [](LiveTunerObject& self) { return self.tuner().watching(); })
      .def(
          "stop", [](LiveTunerObject& self, const std::string& why) { self.tuner().stop(why); }, py::arg("why"),
          "What is kept stays in force.")
      .def("undo", [](LiveTunerObject& self) { self.tuner().undo(); })
      .def("trials", &LiveTunerObject::trials, "Dicts as in ledger.json.")
      .def(
          "result",
          [](const LiveTunerObject& self, const py::dict& run) {
            const LiveResult result = self.result(run_of(run));
            return py::make_tuple(result.document, result.text, result.html);
          },
          py::arg("run"), "ledger.json, the report as text and as HTML.");
}

}  // namespace headrace::python
