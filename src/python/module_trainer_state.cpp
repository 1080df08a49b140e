// What a Trainer goes on from: a checkpoint's file, or the same in memory as plain dicts of texts and tensors.
#include <string_view>
#include <system_error>
#include <utility>

#include "core/base/fail.h"
#include "python/module_trainer.h"
#include "python/tensor_object.h"
#include "python/warning.h"
#include "torch/train/checkpoint.h"

namespace headrace::python {
namespace {

namespace fs = std::filesystem;
namespace py = pybind11;

constexpr const char* kMetadata = "metadata";
constexpr const char* kTensors = "tensors";
constexpr const char* kInMemory = "state_dict";  // In errors, in the place of a file's path.

[[noreturn]] void refuse_state(const std::string& found) {
  fail(ErrorCode::invalid_argument,
       "python: load_state_dict: wanted what state_dict() returned, a dict of metadata and tensors, found {}", found);
}

py::dict part_of(const py::object& state, const char* name) {
  if (PyDict_Check(state.ptr()) == 0) refuse_state(Py_TYPE(state.ptr())->tp_name);
  const auto parts = py::reinterpret_borrow<py::dict>(state);
  if (!parts.contains(name) || PyDict_Check(py::object(parts[name]).ptr()) == 0) {
    refuse_state(fmt::format("one without the dict {}", name));
  }
  return py::reinterpret_borrow<py::dict>(parts[name]);
}

std::string text_of(py::handle text, const std::string& what) {
  if (PyUnicode_Check(text.ptr()) == 0) {
    refuse_state(fmt::format("{} of type {}", what, Py_TYPE(text.ptr())->tp_name));
  }
  return text.cast<std::string>();
}

// Of the trainer, or of what a rollback returns to.
bool is_generator(std::string_view name) {
  constexpr std::string_view kLastGood = "last_good/";
  if (name.starts_with(kLastGood)) name.remove_prefix(kLastGood.size());
  return name.starts_with("generator/");
}

SafetensorsFile file_of(const py::object& state) {
  SafetensorsFile file;
  for (const auto& [key, text] : part_of(state, kMetadata)) {
    const std::string name = text_of(key, "a key of metadata");
    file.metadata[name] = text_of(text, "metadata[\"" + name + "\"]");
  }
  for (const auto& [key, value] : part_of(state, kTensors)) {
    const std::string name = text_of(key, "a key of tensors");
    at::Tensor tensor = tensor_of(value, "load_state_dict: " + name);
    // torch.load(map_location="cuda") moves these, too, which lie on the CPU, whatever generator they are of.
    if (is_generator(name)) tensor = tensor.cpu();
    file.tensors.emplace_back(name, std::move(tensor));
  }
  return file;
}

}  // namespace

std::string ModuleTrainer::model_name() const {
  return py::type::of(model_).attr("__qualname__").cast<std::string>();
}

void ModuleTrainer::save_by(const char* what, const std::function<void(const RunState&)>& write) {
  refuse_while_shown(what);
  const Busy busy(*this);
  follow_optimizer();
  RunState run;
  run.model = model_name();
  run.evaluation_due = !record_.open_epoch.is_none();
  const py::tuple state = py::module_::import("headrace._run_state").attr("save")(own_optimizer(), scheduler_, swa_);
  for (const auto& [name, tensor] : py::reinterpret_borrow<py::dict>(state[1])) {
    const auto key = name.cast<std::string>();
    run.tensors.emplace_back(key, tensor_of(tensor, key));
  }
  run.history = py::module_::import("headrace._place")
                    .attr("to_text")(loader_, pass_began_, record_.to_dict(), state[0])
                    .cast<std::string>();
  const py::gil_scoped_release released;
  write(run);
}

void ModuleTrainer::save(const fs::path& path) {
  save_by("save()", [this, &path](const RunState& run) { write_checkpoint(path, *trainer_, run); });
}

py::dict ModuleTrainer::state_dict() {
  SafetensorsFile state;
  save_by("state_dict()", [this, &state](const RunState& run) { state = checkpoint_state(*trainer_, run); });
  py::dict metadata, tensors;
  for (const auto& [key, text] : state.metadata) metadata[py::str(key)] = text;
  for (const auto& [name, tensor] : state.tensors) tensors[py::str(name)] = object_of(tensor.detach());
  return py::dict(py::arg(kMetadata) = metadata, py::arg(kTensors) = tensors);
}

// Of a checkpoint that fits, before anything else of it is loaded.
void ModuleTrainer::accept_run_state(const RunState& run) {
  const py::gil_scoped_acquire gil;
  const py::object place = py::module_::import("headrace._place").attr("from_text")(run.history);
  const py::object state = place.is_none() ? place : py::object(place.attr("get")("state"));
  py::dict tensors;  // Copies: the optimizer goes on with them.
  for (const auto& [name, tensor] : run.tensors) tensors[py::str(name)] = object_of(tensor.clone());
  try {
    swa_ = py::module_::import("headrace._run_state").attr("load")(state, tensors, own_optimizer(), scheduler_);
  } catch (const py::error_already_set& error) {  // As C++ tells of such a file: a folder may hold another one.
    if (!error.matches(py::module_::import("headrace.errors").attr("CorruptDataError"))) throw;
    fail(ErrorCode::corrupt_data, "{}", py::str(error.value()).cast<std::string>());
  }
}

bool ModuleTrainer::load_by(const char* what, const ReadCheckpoint& read) {
  refuse_while_shown(what);
  const Busy busy(*this);
  follow_optimizer();
  const std::string name = model_name();
  std::optional<CheckpointInfo> info;
  {
    const py::gil_scoped_release released;
    info = read(name, [this](const RunState& run) { accept_run_state(run); });
  }
  if (!info) return false;
  optimizer_.publish_all(trainer_->optimizer());
  const py::module_ place = py::module_::import("headrace._place");
  loaded_place_ = place.attr("from_text")(info->run.history);
  if (!loaded_place_.is_none()) place.attr("set_global_states")(loaded_place_["now"]);
  record_ = loaded_place_.is_none() ? FitRecord{} : FitRecord::from(loaded_place_.attr("get")("fit"));
  pass_began_ = py::none();
  resume_batch_ = trainer_->progress().batch;
  live_.note_place(trainer_->progress());
  return true;
}

py::dict ModuleTrainer::load(const fs::path& path) {
  std::error_code ignored;
  const bool is_folder = fs::is_directory(path, ignored);
  std::vector<std::string> warnings;
  const bool is_loaded = load_by("load()", [&](const std::string& model, const AcceptRun& accept) {
    if (is_folder) return load_newest_checkpoint(path, *trainer_, model, /*weights_only=*/false, warnings, accept);
    return std::optional(load_checkpoint(path, *trainer_, model, /*weights_only=*/false, accept));
  });
  if (!is_loaded) {
    fail(ErrorCode::not_found, "python: load: wanted a folder with a checkpoint, found none in {}", path.string());
  }
  const fs::path whole = fs::absolute(path);
  run_folder_ = is_folder ? whole : whole.parent_path();
  for (const std::string& text : warnings) warn("headrace: " + text);
  return progress();
}

py::dict ModuleTrainer::load_state_dict(const py::object& given) {
  SafetensorsFile state = file_of(given);
  load_by("load_state_dict()", [&](const std::string& model, const AcceptRun& accept) {
    return std::optional(load_checkpoint_state(kInMemory, std::move(state), *trainer_, model, accept));
  });
  run_folder_.clear();  // No folder of checkpoints is known to be this run's.
  return progress();
}

}  // namespace headrace::python
