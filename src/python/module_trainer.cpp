#include "python/module_trainer.h"

#include <headrace/option_fields.h>
#include <headrace/trace.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/hardware/machine.h"
#include "python/batch_bytes.h"
#include "python/keywords.h"
#include "python/module_state.h"
#include "python/tensor_object.h"
#include "torch/train/checkpoint.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

// Only those that mean something for a step from Python; checkpoints are the caller's own there.
std::vector<Field> step_fields(TrainOptions& options, LrSchedulerOptions& schedule) {
  std::vector<Field> fields = fields_of(options);
  std::erase_if(
      fields, [](const Field& field) { return field.key == "checkpoint_every_s" || field.key == "keep_checkpoints"; });
  for (Field& field : fields_of(schedule, "lr_scheduler.")) fields.push_back(std::move(field));
  return fields;
}

Output output_of(const py::object& result) {
  if (is_tensor(result)) return {tensor_of(result, "forward"), {}};
  if (PyTuple_Check(result.ptr()) != 0 && PyTuple_GET_SIZE(result.ptr()) == 2) {
    const auto pair = py::reinterpret_borrow<py::tuple>(result);
    if (is_tensor(pair[0]) && py::isinstance<py::dict>(pair[1])) {
      Output output{tensor_of(pair[0], "forward"), {}};
      for (const auto& [name, value] : py::reinterpret_borrow<py::dict>(pair[1])) {
        auto key = py::str(name).cast<std::string>();
        output.named[key] = tensor_of(value, "forward: " + key);
      }
      return output;
    }
  }
  fail(ErrorCode::invalid_argument, "python: forward: wanted the loss, or (loss, dict of tensors), found {}",
       Py_TYPE(result.ptr())->tp_name);
}

std::int64_t windows_in(std::int64_t batches, std::int64_t accumulate) {
  return (batches + accumulate - 1) / accumulate;
}

bool is_sequence(const py::object& loader) {
  return PyList_Check(loader.ptr()) != 0 || PyTuple_Check(loader.ptr()) != 0;
}

// Ctrl-C while C++ loops.
void check_signals() {
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

}  // namespace

// One step at a time: while C++ works without the GIL, another Python thread could come in.
class ModuleTrainer::Busy {
 public:
  explicit Busy(ModuleTrainer& trainer) : trainer_(trainer) {
    if (trainer.busy_.exchange(true)) {
      fail(ErrorCode::invalid_argument,
           "python: this Trainer is at work already, in another thread or around this call");
    }
  }
  ~Busy() { trainer_.busy_ = false; }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  ModuleTrainer& trainer_;
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
  if (rest.contains("lr_scheduler") && PyUnicode_Check(rest["lr_scheduler"].ptr()) != 0) {
    py::dict named;
    named["name"] = rest["lr_scheduler"];
    rest["lr_scheduler"] = named;
  }
  set_keywords(step_fields(options_, schedule_), rest);
  trainer_ = std::make_unique<Trainer>(state_, optimizer_.make(), Forward{}, options_, schedule_, steps_.value_or(1));
  trainer_->on_part = [this](StepPart part) {
    if (part == StepPart::optimizer) optimizer_.note_gradients(trainer_->optimizer());
  };
}

Output ModuleTrainer::call_forward(const py::object& batch) const {
  const py::gil_scoped_acquire gil;
  return output_of(forward_(model_, batch));
}

void ModuleTrainer::follow_optimizer() {
  if (optimizer_.replaced()) {
    trainer_->optimizer() = optimizer_.make();
  } else {
    optimizer_.read_options(trainer_->optimizer());
  }
}

at::Tensor ModuleTrainer::step_on(const py::object& batch, bool last_of_window) {
  const Busy busy(*this);
  follow_optimizer();
  const std::int64_t samples = batch_samples(batch);
  const BatchAtHand at_hand(batch_bytes_, batch_bytes(batch));
  at::Tensor loss;
  {
    const py::gil_scoped_release released;
    loss = trainer_->step([this, &batch] { return call_forward(batch); }, samples, last_of_window);
  }
  optimizer_.publish(trainer_->optimizer());
  return loss;
}

py::object ModuleTrainer::step(const py::object& batch, bool last_of_window) {
  if (schedule_.name != LrSchedulerName::constant && !steps_) {
    fail(ErrorCode::invalid_argument,
         "python: a schedule spreads over the whole run: wanted steps=, the optimizer steps of it");
  }
  return object_of(step_on(batch, last_of_window));
}

void ModuleTrainer::finish_window() {
  const Busy busy(*this);
  follow_optimizer();
  {
    const py::gil_scoped_release released;
    trainer_->finish_window();
  }
  optimizer_.publish(trainer_->optimizer());
}

void ModuleTrainer::plan_run(const AnyLoader& loader, std::int64_t epochs) {
  const auto batches = loader.batches();
  if (batches) steps_ = windows_in(*batches, options_.gradient_accumulation_steps) * epochs;
  if (schedule_.name != LrSchedulerName::constant && !steps_) {
    fail(ErrorCode::invalid_argument,
         "python: a schedule spreads over the whole run: wanted a loader with a length, or steps=");
  }
  trainer_->set_run_length(steps_.value_or(1), epochs);
}

// Stands at resume_batch_, or refuses.
py::iterator ModuleTrainer::begin_pass(const AnyLoader& loader) {
  Progress& progress = trainer_->progress();
  progress.batch = std::exchange(resume_batch_, 0);
  loader_ = loader.object();
  if (!is_native_loader(loader_)) return begin_pass_of_python(loader);
  const py::object start_at = loader_.attr("start_at");
  if (loader_.attr("_takes_orders").cast<bool>()) {  // A sampler may draw from any generator.
    start_at(progress.epoch, 0);
    return begin_pass_of_python(loader);
  }
  loaded_place_ = pass_began_ = py::none();  // It needs no generator.
  start_at(progress.epoch, progress.batch);
  return loader.pass();
}

// A loader of Python's has no positions: the epoch begins with the generators as they were, its first batches are
// loaded and dropped, and what the model drew since is made up for by the generators of the checkpoint.
py::iterator ModuleTrainer::begin_pass_of_python(const AnyLoader& loader) {
  const std::int64_t done = trainer_->progress().batch;
  const py::object loaded = std::exchange(loaded_place_, py::none());
  const py::object began = loaded.is_none() ? loaded : py::object(loaded["pass_began"]);
  if (done > 0 && (loader.single_pass() || (began.is_none() && !is_sequence(loader_)))) {
    fail(ErrorCode::invalid_argument, "python: the checkpoint stands at batch {} of its epoch; {}", done,
         loader.single_pass()
             ? "an iterator cannot go on there: give a function that makes one"
             : "only a headrace.Loader and a list can go on where no fit() began, and no Loader with a "
               "sampler of your own");
  }
  const py::module_ place = py::module_::import("headrace._place");
  const bool in_pass = done > 0 && !began.is_none();
  if (!loaded.is_none()) place.attr("set_generator_states")(in_pass ? began : py::object(loaded["now"]), loader_);
  pass_began_ = place.attr("generator_states")(loader_);
  py::iterator pass = loader.pass();
  for (std::int64_t i = 0; i < done; ++i) {
    if (!next_batch(pass)) {
      fail(ErrorCode::invalid_argument, "python: the checkpoint stands at batch {} of its epoch, the loader gave {}",
           done, i);
    }
    check_signals();
  }
  if (in_pass) place.attr("set_generator_states")(loaded["now"], loader_);
  return pass;
}

py::dict ModuleTrainer::fit_epoch(const AnyLoader& loader, const FitCallbacks& callbacks) {
  Progress& progress = trainer_->progress();
  const std::int64_t begin_ns = monotonic_ns(), skipped_before = progress.skipped_updates;
  const std::optional<std::int64_t> batches = loader.batches();
  py::iterator pass = begin_pass(loader);
  std::int64_t samples = 0;
  while (!batches || progress.batch < *batches) {
    const Span span{step::kStep, progress.batch};
    std::optional<py::object> batch;
    {
      const Span wait{step::kDataWait};
      batch = next_batch(pass);
    }
    if (!batch) break;
    const at::Tensor loss = step_on(*batch, batches && progress.batch + 1 == *batches);
    samples += batch_samples(*batch);
    if (!callbacks.on_step.is_none()) callbacks.on_step(object_of(loss));
    check_signals();
  }
  if (progress.batch == 0) {
    fail(ErrorCode::invalid_argument, "python: loader: gave no batch in epoch {}{}", progress.epoch + 1,
         loader.single_pass() ? "; an iterator or generator is used up by one epoch: give a function that makes one"
                              : "");
  }
  finish_window();
  ++progress.epoch;
  progress.batch = 0;
  pass_began_ = py::none();
  const double seconds = seconds_since(begin_ns);
  py::dict result;
  result["epoch"] = progress.epoch;
  result["loss"] = trainer_->take_mean_loss();
  result["samples"] = samples;
  result["seconds"] = seconds;
  result["samples_per_second"] = static_cast<double>(samples) / seconds;
  result["optimizer_steps"] = progress.optimizer_steps;
  result["skipped_updates"] = progress.skipped_updates - skipped_before;
  result["resident_memory"] = resident_memory();
  return result;
}

py::list ModuleTrainer::fit(const py::object& loader, std::optional<std::int64_t> epochs, const py::object& evaluate_on,
                            const FitCallbacks& callbacks) {
  const AnyLoader batches(loader);
  const std::int64_t last = epochs.value_or(options_.epochs);
  py::list results;
  plan_run(batches, last);
  while (trainer_->progress().epoch < last) {
    py::dict result = fit_epoch(batches, callbacks);
    if (!evaluate_on.is_none()) result["evaluation"] = evaluate(evaluate_on);
    results.append(result);
    if (!callbacks.on_epoch.is_none()) callbacks.on_epoch(result);
  }
  return results;
}

py::dict ModuleTrainer::evaluate(const py::object& loader) {
  const Busy busy(*this);
  const AnyLoader batches(loader);
  py::iterator pass = batches.pass();
  std::int64_t samples = 0;
  std::map<std::string, double> sums;
  while (std::optional<py::object> batch = next_batch(pass)) {
    Output output;
    {
      const py::gil_scoped_release released;
      output = trainer_->evaluate([this, &batch] { return call_forward(*batch); });
    }
    const std::int64_t here = batch_samples(*batch);
    samples += here;
    sums["loss"] += output.loss.item<double>() * static_cast<double>(here);
    for (const auto& [name, tensor] : output.named) {
      if (tensor.numel() == 1) sums[name] += tensor.item<double>() * static_cast<double>(here);
    }
    check_signals();
  }
  if (samples == 0) fail(ErrorCode::invalid_argument, "python: loader: gave no batch to evaluate");
  py::dict result;
  result["samples"] = samples;
  for (const auto& [name, sum] : sums) result[py::str(name)] = sum / static_cast<double>(samples);
  return result;
}

std::string ModuleTrainer::model_name() const {
  return py::type::of(model_).attr("__qualname__").cast<std::string>();
}

void ModuleTrainer::save(const std::filesystem::path& path) {
  const Busy busy(*this);
  follow_optimizer();
  RunState run;
  run.model = model_name();
  run.history = py::module_::import("headrace._place").attr("to_text")(loader_, pass_began_).cast<std::string>();
  const py::gil_scoped_release released;
  write_checkpoint(path, *trainer_, run);
}

py::dict ModuleTrainer::load(const std::filesystem::path& path) {
  const Busy busy(*this);
  follow_optimizer();
  const std::string name = model_name();
  CheckpointInfo info;
  {
    const py::gil_scoped_release released;
    info = load_checkpoint(path, *trainer_, name, /*weights_only=*/false);
  }
  optimizer_.publish_all(trainer_->optimizer());
  const py::module_ place = py::module_::import("headrace._place");
  loaded_place_ = place.attr("from_text")(info.run.history);
  if (!loaded_place_.is_none()) place.attr("set_global_states")(loaded_place_["now"]);
  pass_began_ = py::none();
  resume_batch_ = trainer_->progress().batch;
  return progress();
}

py::dict ModuleTrainer::progress() const {
  const Progress& now = trainer_->progress();
  py::dict progress;
  progress["epoch"] = now.epoch;
  progress["batch"] = now.batch;
  progress["optimizer_steps"] = now.optimizer_steps;
  progress["skipped_updates"] = now.skipped_updates;
  progress["window"] = now.window;
  return progress;
}

double ModuleTrainer::learning_rate() {
  const Busy busy(*this);
  follow_optimizer();
  return trainer_->learning_rate();
}

py::dict ModuleTrainer::options() {
  return keywords_of(step_fields(options_, schedule_));
}

}  // namespace headrace::python
