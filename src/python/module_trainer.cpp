#include "python/module_trainer.h"

#include <map>
#include <system_error>
#include <utility>

#include "core/base/fail.h"
#include "python/batch_bytes.h"
#include "python/keywords.h"
#include "python/module_state.h"
#include "python/tensor_object.h"
#include "python/train_fields.h"
#include "python/warning.h"

namespace headrace::python {
namespace {

namespace fs = std::filesystem;
namespace py = pybind11;

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

void ModuleTrainer::check_signals() {
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

void ModuleTrainer::refuse_while_shown(const char* what) const {
  if (!shown_) return;
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
  if (rest.contains("lr_scheduler") && PyUnicode_Check(rest["lr_scheduler"].ptr()) != 0) {
    py::dict named;
    named["name"] = rest["lr_scheduler"];
    rest["lr_scheduler"] = named;
  }
  set_keywords(trainer_fields(options_, schedule_), rest);
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
  refuse_while_shown("step()");
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
  const at::Tensor loss = step_on(batch, last_of_window);
  record_.open_epoch = py::none();  // The weights are no longer those of the epoch's end.
  return object_of(loss);
}

void ModuleTrainer::finish_window() {
  refuse_while_shown("finish_window()");
  const Busy busy(*this);
  follow_optimizer();
  {
    const py::gil_scoped_release released;
    trainer_->finish_window();
  }
  optimizer_.publish(trainer_->optimizer());
  record_.open_epoch = py::none();
}

py::dict ModuleTrainer::evaluate(const py::object& loader, bool averages) {
  if (!averages) refuse_while_shown("evaluate(averages=False)");
  const Busy busy(*this);
  const AnyLoader batches(loader);
  py::iterator pass = batches.pass();
  Shown shown;
  if (averages && !shown_) shown = shown_averages();
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

void ModuleTrainer::save_by(const std::function<void(const RunState&)>& write) {
  refuse_while_shown("save()");
  const Busy busy(*this);
  follow_optimizer();
  RunState run;
  run.model = model_name();
  run.evaluation_due = !record_.open_epoch.is_none();
  run.history = py::module_::import("headrace._place")
                    .attr("to_text")(loader_, pass_began_, record_.to_dict())
                    .cast<std::string>();
  const py::gil_scoped_release released;
  write(run);
}

void ModuleTrainer::save(const fs::path& path) {
  save_by([this, &path](const RunState& run) { write_checkpoint(path, *trainer_, run); });
}

py::dict ModuleTrainer::load(const fs::path& path) {
  refuse_while_shown("load()");
  const Busy busy(*this);
  follow_optimizer();
  const std::string name = model_name();
  std::error_code ignored;
  const bool is_folder = fs::is_directory(path, ignored);
  std::optional<CheckpointInfo> info;
  std::vector<std::string> warnings;
  {
    const py::gil_scoped_release released;
    info = is_folder ? load_newest_checkpoint(path, *trainer_, name, /*weights_only=*/false, warnings)
                     : load_checkpoint(path, *trainer_, name, /*weights_only=*/false);
  }
  if (!info)
    fail(ErrorCode::not_found, "python: load: wanted a folder with a checkpoint, found none in {}", path.string());
  optimizer_.publish_all(trainer_->optimizer());
  const py::module_ place = py::module_::import("headrace._place");
  loaded_place_ = place.attr("from_text")(info->run.history);
  if (!loaded_place_.is_none()) place.attr("set_global_states")(loaded_place_["now"]);
  record_ = loaded_place_.is_none() ? FitRecord{} : FitRecord::from(loaded_place_.attr("get")("fit"));
  pass_began_ = py::none();
  resume_batch_ = trainer_->progress().batch;
  const fs::path whole = fs::absolute(path);
  run_folder_ = is_folder ? whole : whole.parent_path();
  for (const std::string& text : warnings) warn("headrace: " + text);
  return progress();
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

void ModuleTrainer::show_averages() {
  refuse_while_shown("with_averages()");
  const Busy busy(*this);
  if (!trainer_->averages().empty()) shown_ = shown_averages();
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
  return keywords_of(trainer_fields(options_, schedule_));
}

}  // namespace headrace::python
