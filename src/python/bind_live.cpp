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
#include "python/live_replay_object.h"
#include "python/live_tuner_object.h"
#include "python/loop_hooks.h"
#include "python/loop_units_object.h"

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
  options.spent_s = given["spent_s"].cast<double>();
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

// Python's garbage collector sees the objects that an Object holds, by its traverse() and let_go().
template <class Object>
void show_to_collector(PyHeapTypeObject* heap_type) {
  PyTypeObject& type = heap_type->ht_type;
  type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) -> int {
    Py_VISIT(Py_TYPE(self));
    if (!py::detail::is_holder_constructed(self)) return 0;
    return py::handle(self).cast<Object&>().traverse(visit, arg);
  };
  type.tp_clear = [](PyObject* self) -> int {
    if (py::detail::is_holder_constructed(self)) py::handle(self).cast<Object&>().let_go();
    return 0;
  };
}

template <class Object>
py::tuple result_tuple(const Object& self, const py::dict& run) {
  const LiveResult result = self.result(run_of(run));
  return py::make_tuple(result.document, result.text, result.html);
}

constexpr const char* kResultDoc = "ledger.json, the report as text and as HTML.";
constexpr const char* kTrialsDoc = "Dicts as in ledger.json.";
constexpr const char* kNoteUpdateDoc = "The newest update, behind which failed(), stop() or undo() may be called.";

void register_tuner(py::module_& module) {
  py::class_<LiveTunerObject>(module, "LiveTuner",
                              "Tunes a run under way; include/headrace/live_tuner.h. From the thread that updates.",
                              py::custom_type_setup(&show_to_collector<LiveTunerObject>))
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
          "note_update", [](LiveTunerObject& self, std::int64_t update) { self.tuner().note_update(update); },
          py::arg("update"), kNoteUpdateDoc)
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
      .def("trials", &LiveTunerObject::trials, kTrialsDoc)
      .def("result", &result_tuple<LiveTunerObject>, py::arg("run"), kResultDoc);
}

// With the methods of LiveTuner, in whose place it stands.
void register_replay(py::module_& module) {
  py::class_<LiveReplayObject>(module, "LiveReplay",
                               "Repeats a tuned run from its ledger; include/headrace/live_replay.h. From the thread "
                               "that updates.",
                               py::custom_type_setup(&show_to_collector<LiveReplayObject>))
      .def(py::init<py::object, const std::string&, py::dict>(), py::arg("loop"), py::arg("path"), py::arg("progress"))
      .def("begin", &LiveReplayObject::begin, "Before the first update.")
      .def(
          "keeps_call", [](const LiveReplayObject&) { return false; }, "Nothing is replayed call by call.")
      .def(
          "before_update", [](const LiveReplayObject&) {}, "Nothing is to be done there.")
      .def(
          "after_update",
          [](LiveReplayObject& self, std::int64_t update, double, double, double, bool, const std::string&) {
            self.after_update(update);
          },
          py::arg("update"), py::arg("seconds"), py::arg("work"), py::arg("wait_s"), py::arg("countable"),
          py::arg("why_not"), "Applies what held for the next unit.")
      .def(
          "note_update", [](const LiveReplayObject&, std::int64_t) {}, py::arg("update"), kNoteUpdateDoc)
      .def(
          "failed",
          [](LiveReplayObject& self, const std::string&, const std::string& sentence,
             const std::vector<std::string>& keys) {
            for (const std::string& key : keys) self.replay().end_setting(key, sentence);
          },
          py::arg("code"), py::arg("sentence"), py::arg("keys") = std::vector<std::string>(),
          "Settings of these keys ended by themselves. Without keys nothing happens.")
      .def("watching", [](const LiveReplayObject& self) { return !self.replay().is_over(); })
      .def(
          "stop", [](LiveReplayObject& self, const std::string&) { self.replay().stop(); }, py::arg("why"),
          "What that run kept is in force.")
      .def("undo", [](LiveReplayObject& self) { self.replay().undo(); })
      .def(
          "turns",
          [](const LiveReplayObject& self) {
            return py::make_tuple(self.replay().turns_applied(), self.replay().turns());
          },
          "Applied, and in all.")
      .def(
          "settings", [](const LiveReplayObject& self) { return self.replay().settings(); },
          "Each that it will make hold, once.")
      .def("trials", &LiveReplayObject::trials, kTrialsDoc)
      .def("result", &result_tuple<LiveReplayObject>, py::arg("run"), kResultDoc);
}

void register_epochs(py::module_& module) {
  const auto here = [] { return LoopThread{PyThread_get_thread_ident()}; };
  py::class_<EpochCounts, std::shared_ptr<EpochCounts>>(
      module, "EpochCounts",
      "What a loop takes from its loader, and how long it waits for it; insight/tune/loop_units.h.")
      .def(py::init<>())
      .def_property("is_watched", &EpochCounts::is_watched, &EpochCounts::set_watched)
      .def(
          "note_begin", [here](EpochCounts& self, double wait_s) { self.note_begin(here(), wait_s); },
          py::arg("wait_s"))
      .def(
          "note_end",
          [here](EpochCounts& self, double wait_s, std::int64_t batches) { self.note_end(here(), wait_s, batches); },
          py::arg("wait_s"), py::arg("batches"))
      .def_property_readonly(
          "hooks", [](EpochCounts& self) { return hooks_of(self); }, "(note_batch,); loop_hooks.h.")
      .def("note_failure", [here](EpochCounts& self) { self.note_failure(here()); })
      .def_property_readonly("begun", &EpochCounts::begun)
      .def_property_readonly("ended", &EpochCounts::ended)
      .def_property_readonly("batches", &EpochCounts::batches)
      .def_property_readonly("serves_loop", &EpochCounts::serves_loop)
      .def_property_readonly("length", &EpochCounts::length);
}

void register_units(py::module_& module) {
  py::class_<LoopUnitsObject> units(module, "LoopUnits",
                                    "Where one update of a loop ends and the next begins; insight/tune/loop_units.h.",
                                    py::custom_type_setup(&show_to_collector<LoopUnitsObject>));
  units.def(py::init<std::size_t, std::shared_ptr<EpochCounts>>(), py::arg("optimizers"), py::arg("epochs"))
      .def_property_readonly(
          "hooks", [](LoopUnitsObject& self) { return hooks_of(self); },
          "(see_call, begin_step, end_step); loop_hooks.h.")
      .def("see_checkpoint", [](LoopUnitsObject& self) { self.units().see_checkpoint(); })
      .def("note_asked", [](LoopUnitsObject& self) { self.units().note_asked(); })
      .def("follow", &LoopUnitsObject::follow, py::arg("tuner"), py::arg("ended"))
      .def(
          "leave_out", [](LoopUnitsObject& self, std::string why) { self.units().leave_out(std::move(why)); },
          py::arg("why"), "The unit at hand.")
      .def("call_back", &LoopUnitsObject::call_back, "At the end of the unit at hand, whatever it is.")
      .def("set_asks", &LoopUnitsObject::set_asks, py::arg("asks"))
      .def("set_looks_for_calls", &LoopUnitsObject::set_looks_for_calls, py::arg("looks"))
      .def("interrupt", [](LoopUnitsObject& self) { self.units().interrupt(); })
      .def_property(
          "is_telling", [](LoopUnitsObject& self) { return self.units().is_telling(); },
          [](LoopUnitsObject& self, bool telling) { self.units().set_telling(telling); })
      .def_property_readonly("unit",
                             [](LoopUnitsObject& self) {
                               const LiveUnit& unit = self.units().unit();
                               return py::make_tuple(unit.seconds, unit.work, unit.wait_s, unit.countable,
                                                     unit.why_not);
                             })
      .def_property_readonly("updates", [](LoopUnitsObject& self) { return self.units().updates(); })
      .def_property_readonly("thread", [](LoopUnitsObject& self) { return self.units().thread(); })
      .def_property_readonly("was_called", [](LoopUnitsObject& self) { return self.units().was_called(); })
      .def_property_readonly("micro_batches", [](LoopUnitsObject& self) { return self.units().micro_batches(); })
      .def_property_readonly("updates_an_epoch", [](LoopUnitsObject& self) { return self.units().updates_an_epoch(); })
      .def_property_readonly("problem", [](LoopUnitsObject& self) { return self.units().problem(); });
}

}  // namespace

void register_live(py::module_& module) {
  register_epochs(module);
  register_units(module);
  register_tuner(module);
  register_replay(module);
}

}  // namespace headrace::python
