// What a PythonJob tells beside its times, for the verdict over resources.
#include <headrace/trace.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <memory>

#include "python/core/errors.h"
#include "python/core/python_job.h"
#include "python/core/torch_facts.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

PartUseCounter::Part part_named(const std::string& name) {
  if (name == step::kForward.text) return PartUseCounter::Part::forward;
  if (name == step::kBackward.text) return PartUseCounter::Part::backward;
  if (name == step::kOptimizer.text) return PartUseCounter::Part::optimizer;
  return PartUseCounter::Part::other;
}

}  // namespace

bool PythonJob::set_idle_compute(double seconds) {
  idle_s_ = std::max(0.0, seconds);
  return true;
}

void PythonJob::set_counts_use(bool counts) {
  in_python([&] {
    use_ = counts ? std::make_shared<PartUseCounter>() : nullptr;
    if (!counts) {
      step_.attr("tell")(nb::none());
      return;
    }
    step_.attr("tell")(nb::cpp_function([weak = std::weak_ptr<PartUseCounter>(use_)](const std::string& part) {
      if (const auto use = weak.lock()) use->begin(part_named(part));
    }));
  });
}

std::optional<PartUses> PythonJob::part_uses(std::int64_t steps) const {
  if (is_on_device()) return std::nullopt;  // What a thread uses while it launches tells nothing of a part.
  const std::optional<PartUses> uses = use_ ? use_->uses(steps) : std::nullopt;
  if (!uses || uses->forward.wall_s == 0) return std::nullopt;
  return uses;
}

bool PythonJob::tells(const char* method) const {
  return nb::hasattr(subject_, method);
}

std::optional<LoadingTotals> PythonJob::loading_totals() const {
  const nb::gil_scoped_acquire held;
  return from_python([&]() -> std::optional<LoadingTotals> {
    if (!tells("loading_totals")) return std::nullopt;
    const nb::object found = subject_.attr("loading_totals")();
    if (found.is_none()) return std::nullopt;
    LoadingTotals totals;
    totals.read_s = real_of(nb::getattr(found, "read_s"));
    totals.decode_s = real_of(nb::getattr(found, "decode_s"));
    totals.augment_s = real_of(nb::getattr(found, "augment_s"));
    totals.collate_s = real_of(nb::getattr(found, "collate_s"));
    totals.batches = real_of(nb::getattr(found, "batches"));
    totals.num_workers = static_cast<int>(integer_of(nb::getattr(found, "num_workers")));
    totals.prefetch_batches = static_cast<int>(integer_of(nb::getattr(found, "prefetch_batches")));
    const nb::object batch_s = nb::getattr(found, "batch_s");
    for (const nb::handle seconds : batch_s) totals.batch_s.push_back(real_of(seconds));
    return totals;
  });
}

std::optional<double> PythonJob::garbage_s() const {
  const nb::gil_scoped_acquire held;
  return from_python([&]() -> std::optional<double> {
    if (!tells("garbage_s")) return std::nullopt;
    return real_of(subject_.attr("garbage_s")());
  });
}

std::optional<ReadTimes> PythonJob::read_times() {
  return in_python([&]() -> std::optional<ReadTimes> {
    if (!tells("read_times")) return std::nullopt;
    pass_ = nb::none();
    const nb::object found = subject_.attr("read_times")();
    if (found.is_none()) return std::nullopt;
    const auto times = nb::cast<nb::tuple>(found);
    return ReadTimes{real_of(times[0]), real_of(times[1])};
  });
}

StepWork PythonJob::step_work() {
  return in_python([&]() -> StepWork {
    StepWork work;
    if (!tells("step_work")) return work;
    pass_ = nb::none();
    const nb::object batch = batch_for_checks(0);
    const auto found = nb::cast<nb::tuple>(subject_.attr("step_work")(batch));
    if (!found[0].is_none()) work.flops = real_of(found[0]);
    work.why_no_flops = text_of(found[1]);
    if (!found[2].is_none()) work.update_bytes = integer_of(found[2]);
    work.update_tensors = integer_of(found[3]);
    if (!found[4].is_none()) work.between_operators_s = real_of(found[4]);
    return work;
  });
}

std::optional<MachinePeaks> PythonJob::peaks() {
  return in_python([&]() -> std::optional<MachinePeaks> {
    if (!tells("multiply")) return std::nullopt;
    const nb::object multiply = subject_.attr("multiply");
    return peaks_by(multiply);
  });
}

}  // namespace headrace::python
