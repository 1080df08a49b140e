#include <headrace/batch_planner.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "python/module_trainer.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

// A batch that may be let go of without the GIL.
std::shared_ptr<const py::object> shared(py::object batch) {
  return {new py::object(std::move(batch)), [](const py::object* held) {
            const py::gil_scoped_acquire gil;
            delete held;
          }};
}

py::dict probe_as_dict(const BatchProbe& probe) {
  return py::dict(py::arg("batch_size") = probe.batch_size, py::arg("peak_bytes") = probe.peak_bytes,
                  py::arg("step_s") = probe.step_s, py::arg("spread_s") = probe.spread_s,
                  py::arg("ran_out") = probe.ran_out);
}

py::dict plan_as_dict(const BatchPlan& plan) {
  py::list probes;
  for (const BatchProbe& probe : plan.probes) probes.append(probe_as_dict(probe));
  return py::dict(py::arg("batch_size") = plan.batch_size,
                  py::arg("gradient_accumulation_steps") = plan.gradient_accumulation_steps, py::arg("probes") = probes,
                  py::arg("fixed_bytes") = plan.fixed_bytes, py::arg("bytes_per_sample") = plan.bytes_per_sample,
                  py::arg("activation_bytes") = plan.activation_bytes, py::arg("predicted_peak") = plan.predicted_peak,
                  py::arg("largest_batch_size") = plan.largest_batch_size, py::arg("memory_limit") = plan.memory_limit,
                  py::arg("samples_per_second") = plan.samples_per_second,
                  py::arg("memory_fraction") = plan.memory_fraction, py::arg("search_s") = plan.search_s,
                  py::arg("reason") = plan.reason);
}

}  // namespace

py::dict ModuleTrainer::plan_batch_size(const py::object& batch_of, const BatchPlannerOptions& options) {
  refuse_while_shown("plan_batch_size()");
  const Busy busy(*this);
  follow_optimizer();
  const auto forward_of = [this, &batch_of](std::int64_t samples) -> BoundForward {
    const py::gil_scoped_acquire gil;
    PyErr_Clear();  // What a hook of a backward raised for which memory ran out: torch has set it.
    const std::shared_ptr<const py::object> batch = shared(batch_of(samples));
    return [this, batch, samples] { return call_part(*batch, samples, 0, samples); };
  };
  BatchPlan plan;
  {
    const py::gil_scoped_release released;
    plan = headrace::plan_batch_size(*trainer_, forward_of, options);
  }
  PyErr_Clear();  // As above.
  return plan_as_dict(plan);
}

}  // namespace headrace::python
