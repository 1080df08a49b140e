#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <memory>
#include <utility>

#include "python/bindings.h"
#include "python/module_trainer.h"

namespace headrace::python {

namespace py = pybind11;

void register_trainer(py::module_& module) {
  py::class_<ModuleTrainer>(module, "Trainer",
                            R"(Trains a torch.nn.Module with the native engine.

model: the module; its tensors are shared. optimizer: a torch.optim.AdamW or SGD over parameters of the model; its groups
are read at each step, its state is shared, so that optimizer.state_dict() and torch's schedulers go on working.
forward(model, batch): returns the loss, a tensor of one number, or (loss, dict of tensors).

Keywords are those of a recipe's [train] and [lr_scheduler]: gradient_accumulation_steps, max_grad_norm, precision ("fp32" or
"bf16"), loss_scale (as torch.amp.GradScaler; 0 is none), epochs, deterministic, and lr_scheduler, a name or a dict of the
keys of [lr_scheduler]; steps is the number of optimizer steps of the whole run, for a schedule without fit(). Not thread-safe. A step that raises leaves parameters, optimizer and progress as
they were; buffers that forward had changed by then, such as running statistics, stay changed.)")
      .def(py::init([](py::object model, py::object optimizer, py::object forward, const py::kwargs& options) {
             return std::make_unique<ModuleTrainer>(std::move(model), std::move(optimizer), std::move(forward),
                                                    options);
           }),
           py::arg("model"), py::arg("optimizer"), py::arg("forward"))
      .def("step", &ModuleTrainer::step, py::arg("batch"), py::arg("last_of_window") = false,
           "One batch: forward and backward, and the update when gradient_accumulation_steps batches are done or "
           "last_of_window says so. Returns the loss, detached.")
      .def("finish_window", &ModuleTrainer::finish_window, "The update of a window that is open, if one is.")
      .def(
          "fit",
          [](ModuleTrainer& trainer, const py::object& loader, std::optional<std::int64_t> epochs,
             const py::object& evaluate, py::object on_step, py::object on_epoch) {
            return trainer.fit(loader, epochs, evaluate, {std::move(on_step), std::move(on_epoch)});
          },
          py::arg("loader"), py::arg("epochs") = py::none(), py::kw_only(), py::arg("evaluate") = py::none(),
          py::arg("on_step") = py::none(), py::arg("on_epoch") = py::none(),
          "Trains until `epochs` epochs are done in all, those before a load() included. loader: a headrace.Loader, a "
          "DataLoader, a list of batches, or a function that returns an iterable. evaluate: a loader that evaluate() "
          "runs over after each epoch. Returns a dict an epoch: epoch (from 1), loss, samples, seconds, "
          "samples_per_second, optimizer_steps, skipped_updates, resident_memory and evaluation.")
      .def("evaluate", &ModuleTrainer::evaluate, py::arg("loader"),
           "Means over the samples of the loss and of each named output that is one number, in evaluation mode and "
           "without gradients; each submodule's mode is as before afterwards.")
      .def("save", &ModuleTrainer::save, py::arg("path"),
           "Writes a checkpoint, a safetensors file: parameters and buffers under model/, optimizer state under "
           "optimizer/, and the generators of torch, Python, NumPy and the last fit()'s loader. Whole or not there, "
           "whatever happens.")
      .def("load", &ModuleTrainer::load, py::arg("path"),
           "Loads a checkpoint of the same model class and optimizer; what follows has the same bits as without the "
           "break. Within an epoch, fit() loads and drops the batches that are done, unless it has a headrace.Loader, "
           "which knows its place; what a data set or a sampler counts on its own is not in the checkpoint. Returns "
           "progress. Nothing changes when the file is refused.")
      .def_property_readonly(
          "progress", &ModuleTrainer::progress,
          "epoch and batch (both from 0), optimizer_steps, skipped_updates (left out by the loss scale), "
          "window (batches waiting for an update).")
      .def_property_readonly("loss_scale", &ModuleTrainer::loss_scale, "Of the next backward; 1.0 without one.")
      .def_property_readonly("learning_rate", &ModuleTrainer::learning_rate, "Of the first group's next update.")
      .def_property_readonly("options", &ModuleTrainer::options, "Every keyword with its value in force.")
      .def("__repr__",
           [](const ModuleTrainer& trainer) {
             const py::object updates = trainer.progress()["optimizer_steps"];
             return py::str("<headrace.Trainer after {} updates>").format(updates);
           })
      .def("__reduce__", [](const ModuleTrainer& /*trainer*/) -> py::object {
        throw py::type_error(
            "a headrace.Trainer cannot be pickled or copied: it shares the tensors of its model and optimizer. Keep "
            "its "
            "place by save(), and load() it in a Trainer made of the same");
      });
}

}  // namespace headrace::python
