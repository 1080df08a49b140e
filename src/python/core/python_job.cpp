#include "python/core/python_job.h"

#include <headrace/trace.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <span>
#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/base/hash.h"
#include "core/base/middle.h"
#include "insight/tune/numeric_check.h"
#include "python/core/batches.h"
#include "python/core/errors.h"
#include "python/core/numbers.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

// Of pairs of a name and a flat tensor.
template <class Number>
auto gradients_in(nb::handle named) {
  std::vector<typename BasicFingerprint<Number>::Gradient> gradients;
  for (const nb::handle entry : named) {
    const auto pair = nb::borrow<nb::tuple>(entry);
    const FlatNumbers<Number> numbers{pair[1]};
    const std::span<const Number> values = numbers.span();
    gradients.push_back({text_of(pair[0]), {values.begin(), values.end()}});
  }
  return gradients;
}

}  // namespace

PythonJob::PythonJob(nb::object subject)
    : subject_(std::move(subject)),
      step_(nb::getattr(subject_, "step")),
      block_times_(nb::getattr(subject_, "block_times")),
      pass_(nb::none()),
      cached_(nb::none()),
      counts_batches_(truth_of(nb::getattr(subject_, "counts_batches"))) {
  memory_.add_model(nb::getattr(subject_, "model"));
  memory_.add_optimizer(nb::getattr(subject_, "optimizer"));
}

PythonJob::~PythonJob() {
  const nb::gil_scoped_acquire held;
  batches_for_checks_.clear();
  batches_as_loaded_.clear();
  cached_.reset();
  pass_.reset();
  block_times_.reset();
  step_.reset();
  subject_.reset();
}

template <class Work>
auto PythonJob::then_restored(Work&& work) {
  pass_ = nb::none();
  try {
    auto result = work();
    subject_.attr("restore")();
    return result;
  } catch (...) {
    subject_.attr("restore")();
    throw;
  }
}

void PythonJob::rethrow_interrupt() const {
  if (interrupt_) std::rethrow_exception(interrupt_);
}

void PythonJob::check() {
  in_python([this] {
    const nb::object batch = batch_for_checks(0);
    samples_ = batch_samples(batch);
    subject_.attr("restore")();
    const double value = real_of(gradients(batch).attr("item")());
    // NaN has a sign that means nothing.
    if (!std::isfinite(value)) fail(ErrorCode::numerics, "tune: the loss of the first batch is {}", std::abs(value));
    if (nb::len(subject_.attr("flat_gradients")()) == 0) {
      fail(ErrorCode::invalid_argument, "tune: the loss depends on none of the optimizer's parameters");
    }
    subject_.attr("restore")();
  });
}

void PythonJob::snapshot() {
  restore();
}

void PythonJob::restore() {
  in_python([this] {
    pass_ = nb::none();  // Ends the worker processes of the epoch, before the generators go back.
    subject_.attr("restore")();
  });
}

void PythonJob::configure(const Settings& settings) {
  in_python([&] {
    pass_ = nb::none();
    batches_as_loaded_.clear();
    subject_.attr("configure")(settings);
  });
}

nb::object PythonJob::next_batch() {
  if (!cached_.is_none()) return cached_;
  const std::int64_t begin_ns = monotonic_ns();
  bool begins = pass_.is_none();
  while (true) {
    if (begins) pass_ = subject_.attr("new_epoch")();
    if (std::optional<nb::object> batch = python::next_batch(pass_)) {
      waits_.push_back({seconds_since(begin_ns), begins});
      return *batch;
    }
    pass_ = nb::none();
    if (begins) fail(ErrorCode::invalid_argument, "tune: the loader gives no batch");
    begins = true;
  }
}

nb::object PythonJob::gradients(const nb::object& batch) {
  return subject_.attr("gradients")(batch);
}

double PythonJob::one_step(bool is_last) {
  const std::int64_t begin_ns = monotonic_ns();
  const Span span{step::kStep};
  nb::object batch;
  if (use_) use_->begin(PartUseCounter::Part::data_wait);
  {
    const Span wait{step::kDataWait};
    batch = next_batch();
  }
  if (idle_s_ > 0) return idle_step(begin_ns);
  if (use_) use_->begin(PartUseCounter::Part::other);
  const nb::object loss = step_(batch);
  const double time_s = seconds_since(begin_ns);
  if (use_) use_->end_step(true);
  if (counts_batches_) memory_.note_batch(batch);
  memory_.note_objects();
  note_step(loss, time_s, is_last);
  if (PyErr_CheckSignals() != 0) nb::raise_python_error();
  return time_s;
}

// Reading a loss waits for the device: of a block there the last step waits once for all, within its span.
void PythonJob::note_step(const nb::object& loss, double time_s, bool is_last) {
  if (is_on_device()) {
    block_times_.attr("stepped")(loss, time_s);
    if (is_last) block_times_.attr("wait")();
    return;
  }
  if (loss.is_none()) return;
  const double value = real_of(loss.attr("item")());
  if (!std::isfinite(value)) fail(ErrorCode::numerics, "tune: the loss is {}", std::abs(value));
}

std::vector<double> PythonJob::device_seconds() {
  std::vector<double> seconds;
  const nb::object found = block_times_.attr("seconds")();
  for (const nb::handle time_s : found) seconds.push_back(real_of(time_s));
  for (std::size_t i = 0; i < waits_.size(); ++i) waits_[i].time_s = std::min(waits_[i].time_s, seconds.at(i));
  return seconds;
}

double PythonJob::idle_step(std::int64_t begin_ns) {
  {
    const nb::gil_scoped_release released;
    std::this_thread::sleep_for(std::chrono::duration<double>(idle_s_));
  }
  if (PyErr_CheckSignals() != 0) nb::raise_python_error();
  const double time_s = seconds_since(begin_ns);
  note_step(nb::none(), time_s, /*is_last=*/false);
  return time_s;
}

std::vector<double> PythonJob::run(std::int64_t steps) {
  return in_python([&] {
    waits_.clear();
    if (is_on_device()) block_times_.attr("begin")();
    std::vector<double> seconds;
    seconds.reserve(static_cast<std::size_t>(steps));
    for (std::int64_t step = 0; step < steps; ++step) seconds.push_back(one_step(step + 1 == steps));
    if (is_on_device()) seconds = device_seconds();
    const double once_s = real_of(subject_.attr("once_s_per_step")());
    moved_s_.assign(seconds.size(), 0.0);
    const double pass_s = cached_.is_none() ? spread_pass_starts(seconds) : 0;
    for (double& moved_s : moved_s_) moved_s += pass_s;
    for (double& time_s : seconds) time_s += once_s + pass_s;
    return seconds;
  });
}

double PythonJob::spread_pass_starts(std::vector<double>& seconds) {
  std::vector<double> usual_s;
  for (const Wait& wait : waits_) {
    if (!wait.begins_pass) usual_s.push_back(wait.time_s);
  }
  const double usual = usual_s.empty() ? 0 : middle_of(std::move(usual_s));
  for (std::size_t i = 0; i < waits_.size(); ++i) {
    if (!waits_[i].begins_pass) continue;
    pass_start_s_ = std::max(0.0, waits_[i].time_s - usual);
    seconds[i] -= pass_start_s_;
    moved_s_[i] -= pass_start_s_;
  }
  return pass_start_s_ * real_of(subject_.attr("epochs_per_step")());
}

void PythonJob::take_batches(const char* method, std::int64_t count, std::vector<nb::object>& batches) {
  const nb::object pass = subject_.attr(method)();
  while (static_cast<std::int64_t>(batches.size()) < count) {
    std::optional<nb::object> batch = python::next_batch(pass);
    if (!batch) return;
    subject_.attr("check_batch")(*batch);
    batches.push_back(std::move(*batch));
  }
}

nb::object PythonJob::batch_for_checks(std::int64_t index) {
  if (batches_for_checks_.empty()) {
    subject_.attr("restore")();
    take_batches("first_epoch", kCheckedBatches, batches_for_checks_);
    if (batches_for_checks_.empty()) fail(ErrorCode::invalid_argument, "tune: the loader gives no batch");
  }
  return batches_for_checks_[static_cast<std::size_t>(index) % batches_for_checks_.size()];
}

// Loads a set of kBatchesCompared at a time, from the beginning: a gradient in between would move the generators that
// the next batch is drawn from.
nb::object PythonJob::batch_as_loaded(std::int64_t index) {
  if (index >= static_cast<std::int64_t>(batches_as_loaded_.size())) {
    batches_as_loaded_.clear();
    subject_.attr("restore")();
    const std::int64_t count = (index / kBatchesCompared + 1) * kBatchesCompared;
    while (static_cast<std::int64_t>(batches_as_loaded_.size()) < count) {
      const std::size_t before = batches_as_loaded_.size();
      take_batches("new_epoch", count, batches_as_loaded_);
      if (batches_as_loaded_.size() == before) {
        fail(ErrorCode::invalid_argument, "tune: the loader gives no batch");
      }
    }
  }
  return batches_as_loaded_[static_cast<std::size_t>(index)];
}

Fingerprint PythonJob::fingerprint_of(const nb::object& batch) {
  subject_.attr("restore")();
  Fingerprint result;
  result.loss = real_of(gradients(batch).attr("item")());
  result.gradients = gradients_in<float>(subject_.attr("flat_gradients")());
  return result;
}

Fingerprint PythonJob::fingerprint(std::int64_t batch_index) {
  return in_python([&] { return then_restored([&] { return fingerprint_of(batch_for_checks(batch_index)); }); });
}

Fingerprint PythonJob::fingerprint_as_loaded(std::int64_t batch_index) {
  return in_python([&] { return then_restored([&] { return fingerprint_of(batch_as_loaded(batch_index)); }); });
}

ExactResult PythonJob::exact_fingerprint(std::int64_t batch_index) {
  return in_python([&]() -> ExactResult {
    const nb::object batch = batch_for_checks(batch_index);
    pass_ = nb::none();
    subject_.attr("restore")();
    const auto found = nb::cast<nb::tuple>(subject_.attr("exact_gradients")(batch));
    subject_.attr("restore")();
    if (!nb::isinstance<nb::list>(found[1])) return {std::nullopt, text_of(found[1])};
    return {ExactFingerprint{real_of(found[0]), gradients_in<double>(found[1])}, {}};
  });
}

std::uint64_t PythonJob::state_hash() {
  return in_python([this] {
    Xxh3Stream stream;
    const nb::object parts = subject_.attr("state_bytes")();
    for (const nb::handle part : parts) stream.update(std::as_bytes(FlatNumbers<std::uint8_t>(part).span()));
    return stream.digest();
  });
}

double PythonJob::update_difference(const Settings& a, const Settings& b) {
  return in_python([&] {
    configure(b);
    const nb::object given = then_restored([&] {
      const nb::object batch = batch_for_checks(0);
      subject_.attr("restore")();
      gradients(batch);
      return subject_.attr("kept_gradients")();
    });
    const auto updated = [&](const Settings& settings) {
      configure(settings);
      return then_restored([&] {
        subject_.attr("restore")();
        subject_.attr("put_gradients")(given);
        step_.attr("update")();
        return subject_.attr("whole_state")();
      });
    };
    const nb::object with_a = updated(a), with_b = updated(b);
    return real_of(imported("headrace._tensors", "state_difference")(with_a, with_b));
  });
}

void PythonJob::set_free_data(bool free_data) {
  if (free_data != cached_.is_none()) return;
  in_python([&] { cached_ = free_data ? batch_for_checks(0) : nb::object(nb::none()); });
}

}  // namespace headrace::python
