#include "python/live_figures.h"

#include <memory>
#include <utility>

#include "core/base/clock.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

constexpr std::int64_t kSecondNs = 1'000'000'000;

}  // namespace

void LiveFigures::note_step(const Progress& progress, const at::Tensor& loss, std::int64_t samples,
                            std::shared_ptr<const DeviceMoment> computed) {
  note_place(progress);
  loss_ = loss;
  computed_ = std::move(computed);
  last_ = {monotonic_ns(), last_.samples + samples};
  if (steps_++ == 0) recent_ = older_ = last_;
  if (last_.ns - recent_.ns >= kSecondNs) older_ = std::exchange(recent_, last_);
}

void LiveFigures::note_place(const Progress& progress) {
  epoch_ = progress.epoch;
  batch_ = progress.batch;
  optimizer_steps_ = progress.optimizer_steps;
  skipped_updates_ = progress.skipped_updates;
}

py::dict LiveFigures::told() const {
  py::dict told;
  told["epoch"] = epoch_;
  told["batch"] = batch_;
  told["optimizer_steps"] = optimizer_steps_;
  told["skipped_updates"] = skipped_updates_;
  told["steps"] = steps_;
  told["samples"] = last_.samples;
  const std::int64_t elapsed_ns = last_.ns - older_.ns;
  told["samples_per_second"] = py::none();
  if (elapsed_ns > 0) {
    told["samples_per_second"] = static_cast<double>(last_.samples - older_.samples) * static_cast<double>(kSecondNs) /
                                 static_cast<double>(elapsed_ns);
  }
  told["seconds_since_step"] = steps_ > 0 ? py::object(py::float_(seconds_since(last_.ns))) : py::object(py::none());
  told["loss"] = py::none();
  if (const at::Tensor loss = loss_; loss.defined()) {  // A step may put another in its place meanwhile.
    const std::shared_ptr<const DeviceMoment> computed = computed_;
    double value = 0;
    {
      const py::gil_scoped_release released;
      if (computed != nullptr) computed->wait();
      value = loss.item<double>();
    }
    told["loss"] = value;
  }
  return told;
}

}  // namespace headrace::python
