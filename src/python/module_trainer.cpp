#include "python/module_trainer.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <headrace/lr_scheduler.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "core/base/fail.h"
#include "python/batch_bytes.h"
#include "python/keywords.h"
#include "python/module_state.h"
#include "python/tensor_object.h"
#include "python/train_fields.h"
#include "torch/tensor/tensor_memory.h"
#include "torch/tensor/translate.h"
#include "torch/train/micro_batch.h"

namespace headrace::python {
namespace {

namespace fs = std::filesystem;
namespace py = pybind11;

double weight_of(py::handle weight) {
  const double number = PyFloat_AsDouble(weight.ptr());  // Of a tensor of one number too.
  if (number == -1.0 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return number;
}

// Without `wants_named` the named outputs are looked at and left.
Output output_of(const py::object& result, bool wants_named) {
  Output output;
  if (is_tensor(result)) {
    output.loss = tensor_of(result, "forward");
    return output;
  }
  const Py_ssize_t size = PyTuple_Check(result.ptr()) != 0 ? PyTuple_GET_SIZE(result.ptr()) : 0;
  if (size == 2 || size == 3) {
    const auto parts = py::reinterpret_borrow<py::tuple>(result);
    if (is_tensor(parts[0]) && py::isinstance<py::dict>(parts[1])) {
      output.loss = tensor_of(parts[0], "forward");
      for (const auto& [name, value] : py::reinterpret_borrow<py::dict>(parts[1])) {
        if (!wants_named && is_tensor(value)) continue;
        auto key = py::str(name).cast<std::string>();
        output.named[key] = tensor_of(value, "forward: " + key);
      }
      if (size == 3) output.weight = weight_of(parts[2]);
      return output;
    }
  }
  fail(ErrorCode::invalid_argument,
       "python: forward: wanted the loss, (loss, dict of tensors) or (loss, dict of tensors, weight), found {}",
       Py_TYPE(result.ptr())->tp_name);
}

// Whether the exception says that memory ran out: torch's, Python's or headrace's own class, or by the words of
// LibTorch's allocator, which are all that tells its RuntimeError from others.
bool is_out_of_memory(const py::error_already_set& error) {
  if (error.matches(PyExc_MemoryError) || error.matches(py::module_::import("torch._C").attr("OutOfMemoryError"))) {
    return true;
  }
  if (!error.matches(PyExc_RuntimeError)) return false;
  const c10::Error told(py::str(error.value()).cast<std::string>());
  return translate(std::make_exception_ptr(told)).code() == ErrorCode::out_of_memory;
}

py::dict applied_dict(const Applied& applied) {
  return py::dict(py::arg("requested") = applied.requested, py::arg("applied") = applied.applied,
                  py::arg("reason") = applied.reason);
}

py::dict pool_dict(const DeviceMemory::Pool& pool) {
  const auto bytes = [](const DeviceMemory::Bytes& of) {
    return py::dict(py::arg("now") = of.now, py::arg("peak") = of.peak);
  };
  return py::dict(py::arg("allocated") = bytes(pool.allocated), py::arg("requested") = bytes(pool.requested),
                  py::arg("active") = bytes(pool.active), py::arg("inactive_split") = bytes(pool.inactive_split),
                  py::arg("reserved") = bytes(pool.reserved));
}

// None, a name and a dict of keys are the engine's own schedules.
bool is_torch_scheduler(py::handle given) {
  if (py::isinstance<py::dict>(given)) return py::reinterpret_borrow<py::dict>(given).contains("scheduler");
  return py::hasattr(given, "load_state_dict");
}

}  // namespace

namespace {

// Of a batch that is a tensor, or a tuple, list or dict of tensors alone; else Python looks into it.
bool add_tensors_of_plain(py::handle batch, MovableBatch& made) {
  const auto add = [&made](py::handle item) {
    if (!is_tensor(item)) return false;
    made.tensors.push_back(tensor_of(item, "batch"));
    return true;
  };
  if (add(batch)) return true;
  if (PyTuple_CheckExact(batch.ptr()) != 0 || PyList_CheckExact(batch.ptr()) != 0) {
    made.structure = PyTuple_CheckExact(batch.ptr()) != 0 ? "tuple" : "list";
    for (const py::handle item : py::reinterpret_borrow<py::sequence>(batch)) {
      if (!add(item)) return false;
    }
    return true;
  }
  if (PyDict_CheckExact(batch.ptr()) == 0) return false;
  made.structure = "dict";
  for (const auto& [key, item] : py::reinterpret_borrow<py::dict>(batch)) {
    if (PyUnicode_Check(key.ptr()) == 0 || !add(item)) return false;
    made.structure += ' ' + key.cast<std::string>();
  }
  return true;
}

}  // namespace

// Weighted means, on the device, so that no batch waits for the one before.
class EvaluationSums {
 public:
  void add(const Output& output, std::int64_t samples) {
    const double weight = output.weight_or(samples);
    samples_ += samples;
    weights_ += weight;
    add("loss", output.loss, weight);
    for (const auto& [name, tensor] : output.named) {
      if (tensor.numel() == 1) add(name, tensor, weight);
    }
  }
  bool is_empty() const { return sums_.empty(); }
  py::dict means() const {
    py::dict result;
    result["samples"] = samples_;
    for (const auto& [name, sum] : sums_) result[py::str(name)] = sum.item<double>() / weights_;
    return result;
  }

 private:
  void add(const std::string& name, const at::Tensor& mean, double weight) {
    const c10::AutoGradMode no_graph(false);
    at::Tensor& sum = sums_[name];
    if (!sum.defined()) sum = at::zeros({}, mean.options().dtype(at::kDouble).requires_grad(false));
    if (weight > 0) sum.add_(mean.detach().reshape({}), weight);  // The mean of nothing may be NaN.
  }

  std::int64_t samples_ = 0;
  double weights_ = 0;
  std::map<std::string, at::Tensor> sums_;
};

class ModuleTrainer::BatchAtHand {
 public:
  BatchAtHand(std::atomic<std::int64_t>& held, std::int64_t bytes) : held_(held) { held_ = bytes; }
  ~BatchAtHand() { held_ = 0; }
  BatchAtHand(const BatchAtHand&) = delete;
  BatchAtHand& operator=(const BatchAtHand&) = delete;

 private:
  std::atomic<std::int64_t>& held_;
};

void ModuleTrainer::check_signals() {
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

void ModuleTrainer::refuse_while_shown(const char* what) const {
  if (!shown_ && swa_shown_.is_none()) return;
  fail(ErrorCode::invalid_argument,
       "python: {}: wanted it outside the block of with_averages(), found the averages in the place of the weights",
       what);
}

ModuleTrainer::ModuleTrainer(py::object model, py::object optimizer, py::object forward, const py::dict& keywords)
    : model_(std::move(model)),
      forward_(std::move(forward)),
      state_(module_state(model_)),
      optimizer_(std::move(optimizer), state_) {
  if (PyCallable_Check(forward_.ptr()) == 0) {
    throw py::type_error(
        fmt::format("forward: wanted a function (model, batch) -> loss, found {}", Py_TYPE(forward_.ptr())->tp_name));
  }
  py::dict rest(keywords.attr("copy")());
  if (rest.contains("steps")) {
    const py::object steps = rest.attr("pop")("steps");
    if (!steps.is_none()) steps_ = steps.cast<std::int64_t>();
    if (steps_ && *steps_ < 1) fail(ErrorCode::invalid_argument, "steps is {}; wanted at least 1", *steps_);
  }
  if (rest.contains("lr_scheduler") && is_torch_scheduler(rest["lr_scheduler"])) {
    scheduler_ = py::module_::import("headrace._torch_scheduler")
                     .attr("TorchScheduler")(rest.attr("pop")("lr_scheduler"), optimizer_.object());
  }
  if (rest.contains("lr_scheduler") && PyUnicode_Check(rest["lr_scheduler"].ptr()) != 0) {
    py::dict named;
    named["name"] = rest["lr_scheduler"];
    rest["lr_scheduler"] = named;
  }
  knows_epochs_ = rest.contains("epochs") && !rest["epochs"].is_none();
  set_keywords(trainer_fields(options_, schedule_), rest);
  if (const at::Device place = state_.parameters.front().second.device(); !place.is_cpu()) {
    std::string ignored;  // The trainer tells it where it matters.
    accelerator_ = accelerator_of(place, ignored);
  }
  trainer_ = std::make_unique<Trainer>(state_, optimizer_.make(), Forward{}, options_, schedule_, steps_.value_or(1));
  lend_generators();
  tell_who_updates();
  refuse_momentum_of_own_step();
  trainer_->on_part = [this](StepPart part) {
    if (part == StepPart::optimizer) optimizer_.note_gradients(trainer_->optimizer());
  };
}

bool ModuleTrainer::needs_figure() const {
  if (scheduler_.is_none()) return schedule_.name == LrSchedulerName::ReduceLROnPlateau;
  return scheduler_.attr("needs_figure").cast<bool>();
}

Output ModuleTrainer::call_forward(const py::object& batch, bool wants_named) const {
  const py::gil_scoped_acquire gil;
  return output_of(forward_(model_, batch), wants_named);
}

Output ModuleTrainer::call_part(const py::object& batch, std::int64_t rows, std::int64_t begin, std::int64_t end,
                                bool wants_named) const {
  const py::gil_scoped_acquire gil;
  PyErr_Clear();  // What a hook of the backward raised for which this is done again: torch has set it.
  try {
    const bool is_whole = begin == 0 && end == rows;
    const py::object part =
        is_whole ? batch : py::module_::import("headrace._batch_parts").attr("part_of")(batch, begin, end);
    Output output = call_forward(part, wants_named);
    if (is_of_loader(part)) output.samples = batch_samples(part);
    return output;
  } catch (const py::error_already_set& error) {
    if (!is_out_of_memory(error)) throw;
    throw c10::OutOfMemoryError(
        fmt::format("{}: {}", Py_TYPE(error.value().ptr())->tp_name, py::str(error.value()).cast<std::string>()));
  }
}

void ModuleTrainer::follow_optimizer() {
  if (optimizer_.replaced()) {
    const std::string why_before = optimizer_.why_own_step();
    trainer_->optimizer() = optimizer_.make();
    tell_who_updates();
    if (optimizer_.why_own_step() != why_before) trainer_->set_last_good_state({});  // It has the other one's state.
    trainer_->schedule_momentum();  // May switch on state that torch's optimizer has: read_options() shares that.
  }
  optimizer_.read_options(trainer_->optimizer());
}

// A forward may draw from them.
void ModuleTrainer::lend_generators() {
  const auto place = [] { return py::module_::import("headrace._place"); };
  OtherGenerators& others = trainer_->other_generators;
  others.state = [place] {
    const py::gil_scoped_acquire gil;
    return tensor_of(place().attr("other_generators")(), "other_generators");
  };
  others.set_state = [place](const at::Tensor& state) {
    const py::gil_scoped_acquire gil;
    place().attr("set_other_generators")(object_of(state));
  };
}

void ModuleTrainer::tell_who_updates() {
  if (optimizer_.why_own_step().empty()) {
    trainer_->external_optimizer = {};
    return;
  }
  trainer_->external_optimizer = {
      optimizer_.class_name(), [this](const std::function<double(double)>& scheduled) { optimizer_.step(scheduled); },
      [this] { return optimizer_.keep_state(); }};
}

// Its groups' momentum may have any meaning, and the engine sets that of its own updates alone.
void ModuleTrainer::refuse_momentum_of_own_step() const {
  if (optimizer_.why_own_step().empty() || !scheduled_momentum(schedule_, 0, RunLength{})) return;
  fail(ErrorCode::invalid_argument,
       "python: lr_scheduler: {} moves momentum, which the step() of {} keeps to itself: wanted cycle_momentum=False, "
       "or the schedule as an object of torch.optim.lr_scheduler",
       choice_name(schedule_.name), optimizer_.class_name());
}

// Of a loop of one's own: what only a run of epochs can give a schedule.
void ModuleTrainer::refuse_schedule_without_epochs() const {
  if (!scheduler_.is_none()) scheduler_.attr("refuse_without_epochs")();
  if (schedule_.name == LrSchedulerName::ReduceLROnPlateau) {
    fail(ErrorCode::invalid_argument,
         "python: lr_scheduler: ReduceLROnPlateau goes by the figure of an epoch, whose end fit() alone knows: wanted "
         "fit()");
  }
  if (needs_run_length() && !steps_) {
    fail(ErrorCode::invalid_argument,
         "python: a schedule spreads over the whole run: wanted steps=, the optimizer steps of it");
  }
  if (schedule_.name != LrSchedulerName::none && !moves_by_steps(schedule_) && !knows_epochs_) {
    fail(ErrorCode::invalid_argument,
         "python: lr_scheduler: {} is stepped by epoch: wanted fit(), epochs= beside steps=, or interval=\"step\"",
         choice_name(schedule_.name));
  }
}

bool ModuleTrainer::needs_run_length() const {
  const LrSchedulerName name = schedule_.name;
  if (name == LrSchedulerName::none || name == LrSchedulerName::ReduceLROnPlateau) return false;
  const bool fills_run = (name == LrSchedulerName::CosineAnnealingLR && schedule_.T_max == 0) ||
                         (name == LrSchedulerName::OneCycleLR && schedule_.total_steps == 0) ||
                         name == LrSchedulerName::SequentialLR || name == LrSchedulerName::ChainedScheduler;
  return fills_run || !moves_by_steps(schedule_);
}

py::object ModuleTrainer::own_optimizer() const {
  return optimizer_.why_own_step().empty() ? py::object(py::none()) : optimizer_.object();
}

// An update that was left out moves no schedule.
void ModuleTrainer::follow_schedule(std::int64_t updates_before) {
  const bool is_updated = trainer_->progress().optimizer_steps > updates_before;
  if (is_updated && !scheduler_.is_none()) scheduler_.attr("after_update")();
}

bool ModuleTrainer::moves_batches() const {
  return options_.cuda_graph || !state_.parameters.front().second.is_cpu();
}

MovableBatch ModuleTrainer::movable(const py::object& batch) const {
  MovableBatch made;
  if (!add_tensors_of_plain(batch, made)) {
    made = {};
    const py::module_ device_batch = py::module_::import("headrace._device_batch");
    for (const py::handle tensor : device_batch.attr("tensors_of")(batch)) {
      made.tensors.push_back(tensor_of(tensor, "batch"));
    }
    made.structure = device_batch.attr("structure_of")(batch).cast<std::string>();
  }
  // Owners: the copies of the forward, which a captured step may keep and end without the GIL.
  const std::shared_ptr<const py::object> held(new py::object(batch), [](const py::object* object) {
    const py::gil_scoped_acquire gil;
    delete object;
  });
  made.forward = [this, held, own = made.tensors](const std::vector<at::Tensor>& tensors) {
    const py::gil_scoped_acquire gil;
    PyErr_Clear();  // What a hook raised in a backward that could not be captured: torch has set it.
    const auto is_same = [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); };
    if (std::equal(own.begin(), own.end(), tensors.begin(), tensors.end(), is_same)) {
      return output_of(forward_(model_, *held), /*wants_named=*/false);
    }
    py::list objects;
    for (const at::Tensor& tensor : tensors) objects.append(object_of(tensor));
    const py::object there = py::module_::import("headrace._device_batch").attr("with_tensors")(*held, objects);
    return output_of(forward_(model_, there), /*wants_named=*/false);
  };
  return made;
}

ModuleTrainer::Stepped ModuleTrainer::step_on(const py::object& given, bool last_of_window) {
  refuse_while_shown("step()");
  const Busy busy(*this);
  follow_optimizer();
  refuse_momentum_of_own_step();
  Stepped stepped{.samples = batch_samples(given)};
  const std::optional<std::int64_t> rows = batch_rows(given);
  const BatchAtHand at_hand(batch_bytes_, batch_bytes(given));
  py::object batch = given;
  if (moves_batches() && may_cut()) {  // Whole, and then cut.
    batch = py::module_::import("headrace._device_batch").attr("moved")(given, device());
  }
  const std::int64_t updates = trainer_->progress().optimizer_steps;
  const std::int64_t ran_out = trainer_->progress().out_of_memory;
  try {
    std::optional<MovableBatch> moves;
    if (moves_batches() && !may_cut()) moves = movable(batch);
    const py::gil_scoped_release released;
    if (moves) {
      stepped.loss = trainer_->step(*moves, stepped.samples, last_of_window);
    } else if (rows.value_or(0) > 0 && may_cut()) {
      const PartForward forward = [this, &batch, all = *rows](std::int64_t begin, std::int64_t end) {
        return call_part(batch, all, begin, end);
      };
      stepped.loss = trainer_->step(forward, *rows, last_of_window);
    } else {
      const BoundForward forward = [this, &batch] {
        return halves() ? call_part(batch, 0, 0, 0) : call_forward(batch, /*wants_named=*/false);
      };
      stepped.loss = trainer_->step(forward, stepped.samples, last_of_window);
    }
  } catch (...) {
    tell_out_of_memory(ran_out);
    throw;
  }
  optimizer_.publish(trainer_->optimizer());
  follow_schedule(updates);
  live_.note_step(trainer_->progress(), stepped.loss, stepped.samples,
                  accelerator_ == nullptr ? nullptr : accelerator_->moment());
  tell_out_of_memory(ran_out);
  return stepped;
}

// A smaller micro-batch of a checkpoint holds under either policy, as its run is that of this size.
bool ModuleTrainer::may_cut() const {
  return halves() || trainer_->progress().micro_batch > 0;
}

void ModuleTrainer::tell_out_of_memory(std::int64_t counted_before) const {
  if (trainer_->progress().out_of_memory == counted_before) return;
  const py::error_scope raised;  // By a hook of a backward: torch has set it.
  py::module_::import("headrace._progress").attr("tell_line")(trainer_->last_out_of_memory());
  py::module_::import("headrace._compiled").attr("tell_of_halving")(model_, trainer_->progress().micro_batch);
}

py::dict ModuleTrainer::set_memory_limit_mib(double mib) {
  const auto bytes = py::module_::import("headrace._tensor_memory").attr("checked_bytes")(mib).cast<std::int64_t>();
  const Busy busy(*this);
  return applied_dict(trainer_->set_memory_limit(bytes));
}

py::object ModuleTrainer::step(const py::object& batch, bool last_of_window) {
  refuse_schedule_without_epochs();
  const Stepped stepped = step_on(batch, last_of_window);
  record_.open_epoch = py::none();  // The weights are no longer those of the epoch's end.
  return object_of(stepped.loss);
}

void ModuleTrainer::finish_window() {
  refuse_while_shown("finish_window()");
  const Busy busy(*this);
  follow_optimizer();
  refuse_momentum_of_own_step();
  const std::int64_t updates = trainer_->progress().optimizer_steps;
  {
    const py::gil_scoped_release released;
    trainer_->finish_window();
  }
  optimizer_.publish(trainer_->optimizer());
  follow_schedule(updates);
  live_.note_place(trainer_->progress());
  record_.open_epoch = py::none();
}

py::dict ModuleTrainer::evaluate(const py::object& loader, bool averages) {
  if (!averages) refuse_while_shown("evaluate(averages=False)");
  const Busy busy(*this);
  const AnyLoader batches(loader);
  py::iterator pass = batches.pass();
  Shown shown;
  if (averages && !shown_ && swa_shown_.is_none()) shown = shown_averages();
  {
    const py::gil_scoped_release released;
    trainer_->mean_loss();  // Reads what waits on a device: a fault of the steps before is an error now.
  }
  EvaluationSums sums;
  while (std::optional<py::object> batch = next_batch(pass)) {
    evaluate_batch(*batch, sums);
    check_signals();
  }
  if (sums.is_empty()) fail(ErrorCode::invalid_argument, "python: loader: gave no batch to evaluate");
  return sums.means();
}

void ModuleTrainer::evaluate_batch(const py::object& given, EvaluationSums& sums) {
  py::object batch = given;
  if (moves_batches()) batch = py::module_::import("headrace._device_batch").attr("moved")(given, device());
  const std::optional<std::int64_t> rows = batch_rows(batch);
  const std::int64_t all = rows.value_or(0);
  std::int64_t at_once = all > 0 && may_cut() ? trainer_->progress().micro_batch : 0;
  std::int64_t begin = 0;
  do {
    const std::int64_t end = all > 0 ? begin + part_size(all - begin, at_once) : 0;
    const bool is_whole = begin == 0 && end == all;
    try {
      Output output;
      {
        const py::gil_scoped_release released;
        output = trainer_->evaluate([&] {
          return halves() || !is_whole ? call_part(batch, all, begin, end, /*wants_named=*/true)
                                       : call_forward(batch, /*wants_named=*/true);
        });
      }
      sums.add(output, output.samples.value_or(is_whole ? batch_samples(given) : end - begin));
      begin = end;
    } catch (const std::exception&) {
      if (!halves() || end - begin < 2 || !out_of_memory_reason(std::current_exception())) throw;
      at_once = (end - begin + 1) / 2;
    }
  } while (begin < all);
}

py::dict ModuleTrainer::averages() const {
  py::dict named;
  for (const auto& [name, tensor] : trainer_->averages()) named[py::str(name)] = object_of(tensor);
  return named;
}

Shown ModuleTrainer::shown_averages() {
  const py::gil_scoped_release released;
  return Shown(new ShownAverages(*trainer_));
}

py::dict ModuleTrainer::swa_averages() const {
  return swa_.is_none() ? py::dict() : py::dict(swa_.attr("named")());
}

void ModuleTrainer::show_averages(const std::string& kind) {
  refuse_while_shown("with_averages()");
  const Busy busy(*this);
  if (kind == "swa") {
    if (!swa_.is_none()) swa_shown_ = swa_.attr("show")(model_);
  } else if (kind == "ema") {
    if (!trainer_->averages().empty()) shown_ = shown_averages();
  } else {
    fail(ErrorCode::invalid_argument, "python: with_averages: wanted ema | swa, found {}", kind);
  }
}

void ModuleTrainer::hide_averages() {
  shown_.reset();
  const py::object put_back = std::exchange(swa_shown_, py::none());
  if (!put_back.is_none()) put_back();
}

py::dict ModuleTrainer::progress() const {
  const Progress& now = trainer_->progress();
  py::dict progress;
  progress["epoch"] = now.epoch;
  progress["batch"] = now.batch;
  progress["optimizer_steps"] = now.optimizer_steps;
  progress["skipped_updates"] = now.skipped_updates;
  progress["window"] = now.window;
  progress["clipped_updates"] = now.clipped_updates;
  progress["micro_batch"] = now.micro_batch;
  progress["out_of_memory"] = now.out_of_memory;
  progress["graph_replays"] = trainer_->graph_report().replays;
  const GuardCounts& guard = now.guard;
  progress["step_guard"] =
      py::dict(py::arg("losses") = guard.losses, py::arg("gradients") = guard.gradients,
               py::arg("weights") = guard.weights, py::arg("activations") = guard.activations,
               py::arg("skipped") = guard.skipped, py::arg("replaced") = guard.replaced,
               py::arg("lowered_lr") = guard.lowered_lr, py::arg("rolled_back") = guard.rolled_back,
               py::arg("in_a_row") = guard.in_a_row, py::arg("lr_factor") = guard.lr_factor);
  return progress;
}

py::dict ModuleTrainer::clip_report() const {
  {
    const py::gil_scoped_release released;
    trainer_->mean_loss();  // Reads what waits on a device.
  }
  const ClipReport& report = trainer_->clip_report();
  return py::dict(py::arg("norm_before") = report.norm_before, py::arg("norm_after") = report.norm_after,
                  py::arg("clipped") = report.clipped);
}

py::dict ModuleTrainer::device_memory() const {
  const DeviceMemoryReport report = trainer_->device_memory();
  py::dict told(py::arg("device") = device(), py::arg("reason") = report.reason);
  if (!report.memory) {
    for (const char* name : {"all", "small", "large", "retries", "out_of_memory"}) told[name] = py::none();
    return told;
  }
  told["all"] = pool_dict(report.memory->all);
  told["small"] = pool_dict(report.memory->small);
  told["large"] = pool_dict(report.memory->large);
  told["retries"] = report.memory->retries;
  told["out_of_memory"] = report.memory->out_of_memory;
  return told;
}

void ModuleTrainer::save_device_memory(const fs::path& path) const {
  const py::gil_scoped_release released;
  trainer_->save_device_memory(path);
}

std::optional<std::int64_t> ModuleTrainer::release_device_cache() {
  const Busy busy(*this);
  const py::gil_scoped_release released;
  return trainer_->release_device_cache();
}

py::dict ModuleTrainer::time_device(bool on) {
  const Busy busy(*this);
  return applied_dict(trainer_->time_device(on));
}

py::dict ModuleTrainer::device_times() {
  const Busy busy(*this);
  const DeviceTimes times = trainer_->device_times();
  py::dict told;
  for (std::size_t i = 0; i < kDevicePhases.size(); ++i) {
    const DeviceTimes::Phase& phase = times.phases[i];
    told[kDevicePhases[i]] =
        py::dict(py::arg("seconds") = phase.count > 0 ? py::object(py::float_(phase.seconds)) : py::object(py::none()),
                 py::arg("count") = phase.count);
  }
  const std::optional<double> busy_share = times.busy_share();
  told["seconds"] = busy_share ? py::object(py::float_(times.seconds)) : py::object(py::none());
  told["busy_share"] = busy_share ? py::object(py::float_(*busy_share)) : py::object(py::none());
  told["waiting"] = times.waiting;
  told["dropped"] = times.dropped;
  told["advice"] = times.advice();
  return told;
}

double ModuleTrainer::learning_rate() {
  const Busy busy(*this);
  follow_optimizer();
  return trainer_->learning_rate();
}

std::vector<double> ModuleTrainer::learning_rates() {
  const Busy busy(*this);
  follow_optimizer();
  return trainer_->learning_rates();
}

py::dict ModuleTrainer::options() {
  py::dict options = keywords_of(trainer_fields(options_, schedule_));
  if (!scheduler_.is_none()) options["lr_scheduler"] = scheduler_.attr("given")();
  return options;
}

py::dict ModuleTrainer::explain() {
  const Busy busy(*this);
  follow_optimizer();
  py::dict parts;
  const auto tell = [&parts](const char* part, bool native, const std::string& by, const std::string& reason = "") {
    parts[part] = py::dict(py::arg("native") = native, py::arg("by") = by, py::arg("reason") = reason);
  };
  tell("forward", false, "forward", "it is a function of Python; the operators that it calls are torch's");
  tell("backward", true, "torch's autograd, without the interpreter lock");
  tell("gradients", true, "the engine: accumulation, loss scale, clipping");
  const std::string& why = optimizer_.why_own_step();
  tell("optimizer", why.empty(), why.empty() ? "the engine" : optimizer_.class_name() + ".step()", why);
  if (scheduler_.is_none()) {
    tell("lr_scheduler", true, "the engine");
  } else {
    tell("lr_scheduler", false, scheduler_.attr("name").cast<std::string>() + ".step()",
         "it was given as an object; stepped by " + scheduler_.attr("interval").cast<std::string>());
  }
  tell("out_of_memory", halves(),
       halves() ? "the engine: the micro-batch is halved and the step redone" : "an exception",
       halves() ? "" : "on_out_of_memory is \"raise\"");
  const std::int64_t limit = tensor_memory_limit();  // Whoever has set it.
  const std::string& refusal = trainer_->applied_memory_limit().reason;
  tell("memory_limit", limit > 0,
       limit > 0 ? fmt::format("the allocator: {} MiB of tensors on the CPU in this process",
                               static_cast<double>(limit) / (1 << 20))
                 : "nobody",
       limit > 0 || !refusal.empty() ? refusal : "none is set");
  const GraphReport& graph = trainer_->graph_report();
  const bool replays = graph.replays > 0 && graph.reason.empty();
  tell("cuda_graph", replays,
       replays ? fmt::format("a CUDA graph of the whole step, replayed {} times; its memory: {:.1f} MiB", graph.replays,
                             static_cast<double>(graph.pool_bytes) / (1 << 20))
               : "operator by operator",
       !options_.cuda_graph ? "cuda_graph is off" : graph.reason);
  const bool is_on_cpu = state_.parameters.front().second.is_cpu();
  tell("losses", true,
       is_on_cpu ? "the engine: read at each step"
                 : fmt::format("the engine: copied to the host by {}s, so that no step waits", options_.loss_interval),
       is_on_cpu ? "loss_interval is for a CUDA device: the model is on the CPU" : "");
  tell("averages", true, "the engine");
  if (!swa_.is_none()) tell("swa", false, "headrace, in Python", "it is done once an epoch");
  return parts;
}

}  // namespace headrace::python
