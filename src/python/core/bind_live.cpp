#include <headrace/live_tuner.h>
#include <headrace/option_fields.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/core/bindings.h"
#include "python/core/error_codes.h"
#include "python/core/given.h"
#include "python/core/live_replay_object.h"
#include "python/core/live_tuner_object.h"
#include "python/core/loop_hooks.h"
#include "python/core/loop_units_object.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

LiveOptions options_of(const Given& given) {
  TuneOptions checked;  // Whose describe() knows what each may be.
  const std::vector<Field> fields = fields_of(checked, "tune.");
  field_named(fields, "tune.allow").set(text_of(given["allow"]));
  field_named(fields, "tune.gain_min").set(real_of(given["gain_min"]));
  LiveOptions options;
  options.allow = checked.allow;
  options.gain_min = checked.gain_min;
  options.only = given.as<std::vector<std::string>>("only", "texts");
  options.fixed = given.as<std::vector<std::string>>("fixed", "texts");
  options.frozen = truth_of(given["frozen"]);
  options.spent_s = real_of(given["spent_s"]);
  return options;
}

LiveRun run_of(const Given& given) {
  LiveRun run;
  run.title = text_of(given["title"]);
  run.command = text_of(given["command"]);
  run.note = text_of(given["note"]);
  run.baseline = given.as<Settings>("baseline", "texts by key");
  run.not_tried = given.as<std::vector<Report::NotTried>>("not_tried", "a list of NotApplicable");
  using Row = std::tuple<std::string, std::string, std::string, std::string>;
  for (auto& [key, requested, applied, reason] : given.as<std::vector<Row>>("settings", "rows of four texts")) {
    run.settings.push_back({key, requested, applied, reason});
  }
  return run;
}

template <class Object>
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<Object>(self)->traverse(visit, arg) : 0;
}

template <class Object>
int let_go(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<Object>(self)->let_go();
  return 0;
}

// Python's garbage collector sees the objects that an Object holds, by its traverse() and let_go().
template <class Object>
nb::type_slots shown_to_collector() {
  static const PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&traverse<Object>)},
                                      {Py_tp_clear, reinterpret_cast<void*>(&let_go<Object>)},
                                      {0, nullptr}};
  return slots;
}

template <class Object>
nb::tuple result_tuple(const Object& self, const nb::dict& run) {
  const LiveResult result = self.result(run_of({run, "autotune"}));
  return nb::make_tuple(result.document, result.text, result.html);
}

constexpr const char* kResultDoc = "ledger.json, the report as text and as HTML.";
constexpr const char* kTrialsDoc = "Dicts as in ledger.json.";
constexpr const char* kNoteUpdateDoc = "The newest update, behind which failed(), stop() or undo() may be called.";

void register_tuner(nb::module_& module) {
  nb::class_<LiveTunerObject>(module, "LiveTuner",
                              "Tunes a run under way; include/headrace/live_tuner.h. From the thread that updates.",
                              shown_to_collector<LiveTunerObject>())
      .def(
          "__init__",
          [](LiveTunerObject* self, nb::object loop, std::vector<Candidate> candidates, const nb::dict& options,
             std::uint64_t seed, nb::dict progress, nb::object clock) {
            new (self) LiveTunerObject(std::move(loop), std::move(candidates), options_of({options, "autotune"}), seed,
                                       std::move(progress), std::move(clock));
          },
          nb::arg("loop").none(), nb::arg("candidates"), nb::arg("options"), nb::arg("seed"), nb::arg("progress"),
          nb::arg("clock") = nb::none())
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
          nb::arg("update"), nb::arg("seconds"), nb::arg("work"), nb::arg("wait_s"), nb::arg("countable"),
          nb::arg("why_not"), "Applies what holds for the next unit.")
      .def(
          "note_update", [](LiveTunerObject& self, std::int64_t update) { self.tuner().note_update(update); },
          nb::arg("update"), kNoteUpdateDoc)
      .def(
          "failed",
          [](LiveTunerObject& self, const std::string& code, const std::string& sentence,
             const std::vector<std::string>& keys) { self.tuner().failed(code_named(code), sentence, keys); },
          nb::arg("code"), nb::arg("sentence"), nb::arg("keys") = std::vector<std::string>(),
          "The loop raised while changes were tried; keys: of the settings at fault, where they are known.")
      .def("watching", [](LiveTunerObject& self) { return self.tuner().watching(); })
      .def(
          "stop", [](LiveTunerObject& self, const std::string& why) { self.tuner().stop(why); }, nb::arg("why"),
          "What is kept stays in force.")
      .def("undo", [](LiveTunerObject& self) { self.tuner().undo(); })
      .def("trials", &LiveTunerObject::trials, kTrialsDoc)
      .def("result", &result_tuple<LiveTunerObject>, nb::arg("run"), kResultDoc);
}

// With the methods of LiveTuner, in whose place it stands.
void register_replay(nb::module_& module) {
  nb::class_<LiveReplayObject>(module, "LiveReplay",
                               "Repeats a tuned run from its ledger; include/headrace/live_replay.h. From the thread "
                               "that updates.",
                               shown_to_collector<LiveReplayObject>())
      .def(nb::init<nb::object, const std::string&, nb::dict>(), nb::arg("loop"), nb::arg("path"), nb::arg("progress"))
      .def("begin", &LiveReplayObject::begin, nb::arg("updates"), "Behind so many updates, before the next one.")
      .def(
          "keeps_call", [](const LiveReplayObject&) { return false; }, "Nothing is replayed call by call.")
      .def(
          "before_update", [](const LiveReplayObject&) {}, "Nothing is to be done there.")
      .def(
          "after_update",
          [](LiveReplayObject& self, std::int64_t update, double, double, double, bool, const std::string&) {
            self.after_update(update);
          },
          nb::arg("update"), nb::arg("seconds"), nb::arg("work"), nb::arg("wait_s"), nb::arg("countable"),
          nb::arg("why_not"), "Applies what held for the next unit.")
      .def(
          "note_update", [](const LiveReplayObject&, std::int64_t) {}, nb::arg("update"), kNoteUpdateDoc)
      .def(
          "failed",
          [](LiveReplayObject& self, const std::string&, const std::string& sentence,
             const std::vector<std::string>& keys) {
            for (const std::string& key : keys) self.replay().end_setting(key, sentence);
          },
          nb::arg("code"), nb::arg("sentence"), nb::arg("keys") = std::vector<std::string>(),
          "Settings of these keys ended by themselves. Without keys nothing happens.")
      .def("watching", [](const LiveReplayObject& self) { return !self.replay().is_over(); })
      .def(
          "stop", [](LiveReplayObject& self, const std::string&) { self.replay().stop(); }, nb::arg("why"),
          "What that run kept is in force.")
      .def("undo", [](LiveReplayObject& self) { self.replay().undo(); })
      .def(
          "turns",
          [](const LiveReplayObject& self) {
            return nb::make_tuple(self.replay().turns_applied(), self.replay().turns());
          },
          "Applied, and in all.")
      .def(
          "settings", [](const LiveReplayObject& self) { return self.replay().settings(); },
          "Each that it will make hold, once.")
      .def("trials", &LiveReplayObject::trials, kTrialsDoc)
      .def("result", &result_tuple<LiveReplayObject>, nb::arg("run"), kResultDoc);
}

void register_epochs(nb::module_& module) {
  const auto here = [] { return LoopThread{PyThread_get_thread_ident()}; };
  nb::class_<EpochCounts>(module, "EpochCounts",
                          "What a loop takes from its loader, and how long it waits for it; insight/tune/loop_units.h.")
      .def(nb::init<>())
      .def_prop_rw("is_watched", &EpochCounts::is_watched, &EpochCounts::set_watched)
      .def(
          "note_begin", [here](EpochCounts& self, double wait_s) { self.note_begin(here(), wait_s); },
          nb::arg("wait_s"))
      .def(
          "note_end",
          [here](EpochCounts& self, double wait_s, std::int64_t batches) { self.note_end(here(), wait_s, batches); },
          nb::arg("wait_s"), nb::arg("batches"))
      .def_prop_ro(
          "hooks", [](EpochCounts& self) { return hooks_of(self); }, "(note_batch,); loop_hooks.h.")
      .def("note_failure", [here](EpochCounts& self) { self.note_failure(here()); })
      .def_prop_ro("begun", &EpochCounts::begun)
      .def_prop_ro("ended", &EpochCounts::ended)
      .def_prop_ro("batches", &EpochCounts::batches)
      .def_prop_ro("serves_loop", &EpochCounts::serves_loop)
      .def_prop_ro("length", &EpochCounts::length);
}

void register_units(nb::module_& module) {
  nb::class_<LoopUnitsObject> units(module, "LoopUnits",
                                    "Where one update of a loop ends and the next begins; insight/tune/loop_units.h.",
                                    shown_to_collector<LoopUnitsObject>());
  units
      .def(nb::init<std::size_t, std::shared_ptr<EpochCounts>, std::int64_t>(), nb::arg("optimizers"),
           nb::arg("epochs"), nb::arg("updates") = 0)
      .def_prop_ro(
          "hooks", [](LoopUnitsObject& self) { return hooks_of(self); },
          "(see_call, begin_step, end_step); loop_hooks.h.")
      .def("see_checkpoint", [](LoopUnitsObject& self) { self.units().see_checkpoint(); })
      .def("note_asked", [](LoopUnitsObject& self) { self.units().note_asked(); })
      .def("follow", &LoopUnitsObject::follow, nb::arg("tuner").none(), nb::arg("ended"))
      .def(
          "leave_out", [](LoopUnitsObject& self, std::string why) { self.units().leave_out(std::move(why)); },
          nb::arg("why"), "The unit at hand.")
      .def("call_back", &LoopUnitsObject::call_back, "At the end of the unit at hand, whatever it is.")
      .def("set_asks", &LoopUnitsObject::set_asks, nb::arg("asks"))
      .def("set_looks_for_calls", &LoopUnitsObject::set_looks_for_calls, nb::arg("looks"))
      .def("interrupt", [](LoopUnitsObject& self) { self.units().interrupt(); })
      .def_prop_rw(
          "is_telling", [](LoopUnitsObject& self) { return self.units().is_telling(); },
          [](LoopUnitsObject& self, bool telling) { self.units().set_telling(telling); })
      .def_prop_ro("unit",
                   [](LoopUnitsObject& self) {
                     const LiveUnit& unit = self.units().unit();
                     return nb::make_tuple(unit.seconds, unit.work, unit.wait_s, unit.countable, unit.why_not);
                   })
      .def_prop_ro("updates", [](LoopUnitsObject& self) { return self.units().updates(); })
      .def_prop_ro("thread", [](LoopUnitsObject& self) { return self.units().thread(); })
      .def_prop_ro("was_called", [](LoopUnitsObject& self) { return self.units().was_called(); })
      .def_prop_ro("micro_batches", [](LoopUnitsObject& self) { return self.units().micro_batches(); })
      .def_prop_ro("updates_an_epoch", [](LoopUnitsObject& self) { return self.units().updates_an_epoch(); })
      .def_prop_ro("problem", [](LoopUnitsObject& self) { return self.units().problem(); });
}

}  // namespace

void register_live(nb::module_& module) {
  register_epochs(module);
  register_units(module);
  register_tuner(module);
  register_replay(module);
}

}  // namespace headrace::python
