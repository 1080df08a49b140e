#include <headrace/option_fields.h>
#include <headrace/trace.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "python/bindings.h"
#include "python/python_tune.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

TuneRequest request_of(const py::dict& values) {
  TuneRequest request;
  const std::vector<Field> fields = fields_of(request.options, "tune.");
  for (const char* name : {"budget_s", "gain_min"}) {
    field_named(fields, std::string("tune.") + name).set(py::cast<double>(values[name]));
  }
  field_named(fields, "tune.allow").set(py::cast<std::string>(values["allow"]));
  request.options.only = py::cast<std::vector<std::string>>(values["only"]);
  request.options.fixed = py::cast<std::vector<std::string>>(values["fixed"]);
  request.seed = py::cast<std::uint64_t>(values["seed"]);
  request.title = py::cast<std::string>(values["title"]);
  request.command = py::cast<std::string>(values["command"]);
  request.out = py::cast<std::string>(values["out"]);
  return request;
}

// `with StepPart("forward"):` records the block as that part of a step, which a trace's time split knows.
class StepPart {
 public:
  explicit StepPart(const std::string& name) : name_(name_of(name)) {}
  void enter() { span_.emplace(name_); }
  void exit() { span_.reset(); }

 private:
  static const SpanName& name_of(const std::string& name) {
    for (const SpanName* known : {&step::kForward, &step::kBackward, &step::kOptimizer}) {
      if (name == known->text) return *known;
    }
    fail(ErrorCode::invalid_argument, "python: wanted forward, backward or optimizer as a step's part, found \"{}\"",
         name);
  }

  const SpanName& name_;
  std::optional<Span> span_;
};

}  // namespace

void register_tune(py::module_& module) {
  py::class_<StepPart>(module, "StepPart", "A context manager: its block is recorded as this part of a training step.")
      .def(py::init<std::string>(), py::arg("name"))
      .def("__enter__",
           [](const py::object& self) {
             self.cast<StepPart&>().enter();
             return self;
           })
      .def("__exit__", [](StepPart& part, const py::object& /*type*/, const py::object& /*value*/,
                          const py::object& /*traceback*/) { part.exit(); });
  module.def(
      "tune_objects",
      [](const py::object& subject, const py::dict& request, const py::function& on_progress) {
        TuneResult result = tune_objects(subject, request_of(request), on_progress);
        return std::pair(std::move(result.document), std::move(result.report));
      },
      py::arg("subject"), py::arg("request"), py::arg("on_progress"),
      "The tuner's loop on a headrace._subject.Subject; returns ledger.json and the report as text.");
}

}  // namespace headrace::python
