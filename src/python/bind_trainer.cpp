#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "python/bindings.h"
#include "python/module_trainer.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

void bind_averages_block(py::module_& module) {
  py::class_<AveragesBlock>(module, "AveragesBlock", "What Trainer.with_averages() returns, for a with statement.")
      .def("__enter__", &AveragesBlock::enter)
      .def("__exit__", [](AveragesBlock& block, const py::args& /*error*/) { block.exit(); });
}

void bind_steps(py::class_<ModuleTrainer>& bound) {
  bound
      .def("step", &ModuleTrainer::step, py::arg("batch"), py::arg("last_of_window") = false,
           "One batch: forward and backward, and the update when gradient_accumulation_steps batches are done or "
           "last_of_window says so. Returns the loss, detached. With on_out_of_memory=\"halve\" a batch for which "
           "memory runs out is done in parts, along the first axis of its tensors, which they must have in common.")
      .def(
          "_plan_batch_size",
          [](ModuleTrainer& trainer, const py::object& batch_of, std::int64_t initial_batch_size,
             std::int64_t max_batch_size, std::int64_t memory_limit, double target_throughput,
             std::int64_t global_batch_size) {
            return trainer.plan_batch_size(batch_of, {.initial_batch_size = initial_batch_size,
                                                      .max_batch_size = max_batch_size,
                                                      .memory_limit = memory_limit,
                                                      .target_throughput = target_throughput,
                                                      .global_batch_size = global_batch_size});
          },
          py::arg("batch_of"), py::kw_only(), py::arg("initial_batch_size"), py::arg("max_batch_size"),
          py::arg("memory_limit"), py::arg("target_throughput"), py::arg("global_batch_size"),
          "Of headrace.plan_batch_size(), which see. batch_of(samples) makes a batch of that many.")
      .def("set_memory_limit_mib", &ModuleTrainer::set_memory_limit_mib, py::arg("mib"),
           "In the place of memory_limit_mib, from the next step on; 0: this Trainer has none, another one's may be in "
           "force "
           "then. After a higher one, or none, a "
           "micro-batch "
           "that on_out_of_memory made smaller doubles with each window until memory runs out again. Returns a dict of "
           "requested, applied, both in MiB, and reason: why it is not applied.")
      .def("finish_window", &ModuleTrainer::finish_window, "The update of a window that is open, if one is.")
      .def("evaluate", &ModuleTrainer::evaluate, py::arg("loader"), py::kw_only(), py::arg("averages") = true,
           "Means of the loss and of each named output that is one number, in evaluation mode and without gradients; "
           "each submodule's mode is as before afterwards. They are over the samples that count, or over the weights "
           "that forward returns; samples counts the former. With ema_decay: with the averages, or with the weights "
           "that are trained where averages=False.");
}

void bind_fit(py::class_<ModuleTrainer>& bound) {
  const TrainOptions defaults;
  bound.def(
      "fit",
      [](ModuleTrainer& trainer, const py::object& loader, std::optional<std::int64_t> epochs, py::object evaluate,
         py::object on_step, py::object on_epoch, std::optional<std::filesystem::path> checkpoints,
         const py::object& checkpoint_every_s, const py::object& keep_checkpoints, const py::object& async_checkpoints,
         std::string monitor, const py::object& early_stopping_patience, std::int64_t swa_start,
         const py::object& swa_lr, const py::object& swa_anneal_epochs, const py::object& swa_anneal_strategy,
         bool progress) {
        const py::dict options(
            py::arg("checkpoint_every_s") = checkpoint_every_s, py::arg("keep_checkpoints") = keep_checkpoints,
            py::arg("async_checkpoints") = async_checkpoints,
            py::arg("early_stopping_patience") = early_stopping_patience, py::arg("swa_lr") = swa_lr,
            py::arg("swa_anneal_epochs") = swa_anneal_epochs, py::arg("swa_anneal_strategy") = swa_anneal_strategy);
        return trainer.fit(loader, epochs,
                           {std::move(evaluate), std::move(on_step), std::move(on_epoch), std::move(checkpoints),
                            std::move(monitor), swa_start, progress, options});
      },
      py::arg("loader"), py::arg("epochs") = py::none(), py::kw_only(), py::arg("evaluate") = py::none(),
      py::arg("on_step") = py::none(), py::arg("on_epoch") = py::none(), py::arg("checkpoints") = py::none(),
      py::arg("checkpoint_every_s") = defaults.checkpoint_every_s,
      py::arg("keep_checkpoints") = defaults.keep_checkpoints,
      py::arg("async_checkpoints") = defaults.async_checkpoints, py::arg("monitor") = kLoss,
      py::arg("early_stopping_patience") = defaults.early_stopping_patience, py::arg("swa_start") = 0,
      py::arg("swa_lr") = defaults.swa_lr, py::arg("swa_anneal_epochs") = defaults.swa_anneal_epochs,
      py::arg("swa_anneal_strategy") = std::string(choice_name(defaults.swa_anneal_strategy)),
      py::arg("progress") = false,
      R"(Trains until `epochs` epochs are done in all, those before a load() included.

loader: a headrace.Loader, a DataLoader, a list of batches, or a function that returns an iterable. One that ends before
    its len() says gives a RuntimeWarning with both numbers, and a shorter epoch; no warning where the length is torch's
    estimate, as of an IterableDataset.
evaluate: a loader that evaluate() runs over after each epoch, with the averages where they are kept.
on_step: on_step(loss) is called after each batch.
on_epoch: on_epoch(result) is called after each epoch and its evaluation.
checkpoints: a folder, made if need be, for a checkpoint at each epoch's end, as save() writes it, and for
    checkpoint-best.safetensors, written whenever an evaluation is the best so far. A folder that already
    holds checkpoints is refused unless it is the one that this Trainer last loaded from or wrote to, none in it has more
    updates, and monitor is the same. Its file `lock` is held until fit() ends: another run in the folder is refused.
checkpoint_every_s: seconds between checkpoints within an epoch, after on_step and where no window is open; 0 writes none
    there.
keep_checkpoints: that many of the newest stay, beside the best.
async_checkpoints: another thread writes them; training waits only for a copy of the tensors, whose memory is kept until
    fit() ends, and for the previous write if it is not finished. False: training waits for each file.
monitor: the figure of an evaluation that decides which is best: "loss", of which less is better, or any other that
    forward returns, of which more is better, or less with "-" before its name, as in "-error". A difference of no more
    than a millionth of the best counts as equal: rounding makes such differences.
early_stopping_patience: ends the run after this many epochs in a row whose evaluation was not better than the best; 0
    never does. A run that it ended trains on only with a larger one, 0 or another monitor, also after a load().
swa_start: from this epoch on, counted from 1, the mean of the weights after each epoch is kept, as
    torch.optim.swa_utils.AveragedModel does (SWA); 0 keeps none. A mean that began with an epoch before it is given up.
    At the run's end the loader is gone through once more, for the BatchNorm statistics of that mean. It is kept beside
    the weights and the averages of ema_decay: see swa_averages.
swa_lr: with swa_start, the learning rate of the epochs behind that one, of each group, as torch.optim.swa_utils.SWALR
    leads there from the last rate before; 0: the schedule goes on. An lr_scheduler that is an object of torch's is
    refused beside it: a SWALR may be that object.
swa_anneal_epochs, swa_anneal_strategy: epochs after which swa_lr is reached, 0 at once, and how: "cos" or "linear".
progress: tells on stderr how far the run is: a line for each epoch that is done, and where that is a terminal or a
    notebook and tqdm is installed, a bar "Training" over the epoch's batches, with the last loss and the mean so far,
    which are read at most five times a second.

Returns a dict an epoch: epoch (from 1), loss, samples, seconds, samples_per_second, optimizer_steps, skipped_updates,
resident_memory, evaluation where there is one, stopped_early, which is True and only there where this epoch ended the
run early, and swa in the last one's: a dict of epochs, those in the mean, and its evaluation.

Every checkpoint is on the disk when fit() ends, also where an exception or Ctrl-C ends it; the error of one that could
not be written is raised after the next step. After load() of the folder the same call ends with the same bits. The
checkpoint of an epoch's end is written before the evaluation: after load() of it the call starts with that epoch's
evaluation and on_epoch, though they may have run before, and its dict is the first of those returned. They are left out
where step() or finish_window() was called in between.)");
}

void bind_device(py::class_<ModuleTrainer>& bound) {
  bound
      .def("device_memory", &ModuleTrainer::device_memory,
           "Memory of the model's device that torch's caching allocator holds for this process; any thread may ask, "
           "at any time: device, reason (why it is unavailable, as of a model on the CPU; else empty), all, small "
           "and large (the pools of requests up to 1 MiB and above), each a dict of allocated, requested, active, "
           "inactive_split and reserved with now and peak in bytes, retries (times that the driver refused memory "
           "and the cache was given back) and out_of_memory (times that this did not help). None: unavailable.")
      .def("reset_peak_device_memory", &ModuleTrainer::reset_peak_device_memory,
           "Each peak of device_memory() becomes what is held now. Does nothing where that is unavailable.")
      .def("release_device_cache", &ModuleTrainer::release_device_cache,
           "Gives the driver back the memory that torch's allocator keeps for later and no tensor has, so that other "
           "processes can have it. Waits for the device, and what is needed again must be got again: between steps, "
           "not at each. Returns the bytes by which what is reserved fell; None: unavailable.")
      .def("save_device_memory", &ModuleTrainer::save_device_memory, py::arg("path"),
           "Writes the segments and blocks of the device's memory as they are now, and what "
           "torch.cuda.memory._record_memory_history() has recorded, as a pickle of plain containers that "
           "https://pytorch.org/memory_viz reads. UnsupportedError where device_memory() is unavailable.")
      .def("time_device", &ModuleTrainer::time_device, py::arg("on") = true,
           "Times each phase of the steps from now on by events of the device, which are read when it has passed "
           "them, so that nothing waits; the host records one event a phase. Switched on again it starts anew. "
           "While a trace records they are timed anyway, and are its spans device_forward and so on. Returns a dict of "
           "requested, applied and reason: a model on the CPU has no such events.")
      .def("device_times", &ModuleTrainer::device_times,
           "What time_device() or a trace has timed by now: transfer, forward, backward, optimizer and replay (a "
           "step replayed from a CUDA graph, from forward to optimizer), each a dict of seconds and count; seconds, "
           "from the first phase's start to the last one's end; busy_share, the part of these in which the device "
           "was at a phase: well below 1 it waits for data or for the host; waiting, phases that it had not passed; "
           "dropped, phases not timed as too many waited; advice, what to do where busy_share is below 0.9, else "
           "empty. None: unavailable.");
}

void bind_state(py::class_<ModuleTrainer>& bound) {
  bound
      .def("save", &ModuleTrainer::save, py::arg("path"),
           "Writes a checkpoint, a safetensors file: parameters and buffers under model/, averages of them under ema/, "
           "optimizer state under optimizer/, and the generators of torch, Python, NumPy and the last fit()'s loader. "
           "Whole or not there, whatever happens.")
      .def("load", &ModuleTrainer::load, py::arg("path"),
           "Loads a checkpoint of the same model class and optimizer, with averages where this Trainer keeps them and "
           "else without; of a folder the newest that is whole, with a RuntimeWarning for each that is not. What "
           "follows has the same bits as without the break. "
           "Within an epoch, fit() loads and drops the batches that are done, unless it has a headrace.Loader, "
           "which knows its place; what a data set or a sampler counts on its own is not in the checkpoint. Returns "
           "progress. Nothing changes when the file is refused. FileNotFoundError where there is no such file or no "
           "checkpoint in the folder.")
      .def("state_dict", &ModuleTrainer::state_dict,
           "What save() writes, for a file of your own: \"metadata\", a dict of texts, and \"tensors\", a dict of "
           "tensors, with weights, averages, SWA, optimizer, schedule, counts and generators. torch.save() takes it, "
           "and torch.load(weights_only=True) gives it back. The tensors share the memory of model and optimizer, as "
           "those of torch's state_dict() do: write them, or copy.deepcopy() them, before the next step. "
           "InvalidArgumentError within a window, whose gradients it has not.")
      .def("load_state_dict", &ModuleTrainer::load_state_dict, py::arg("state_dict"),
           "Puts back what state_dict() returned, also on another device: copies of it, so that it may be loaded "
           "again. As load() of a file that save() wrote at that moment, bit for bit; returns progress. It names no "
           "folder: a later fit() with checkpoints= wants one without any. Nothing changes when it is refused.")
      .def_property_readonly(
          "averages", &ModuleTrainer::averages,
          "With ema_decay the moving averages by the names of parameters and buffers, of the same shapes and dtypes; "
          "shared, not copies. Without it an empty dict.")
      .def_property_readonly("swa_averages", &ModuleTrainer::swa_averages,
                             "The mean of the weights that fit(swa_start=...) keeps, by the names of parameters and, "
                             "after the run's end, of buffers, of the same shapes and dtypes; shared, not copies. "
                             "Else an empty dict.")
      .def(
          "with_averages",
          [](ModuleTrainer& trainer, std::string kind) { return AveragesBlock(trainer, std::move(kind)); },
          py::arg("kind") = "ema", py::keep_alive<0, 1>(),
          "In `with trainer.with_averages():` the model's tensors hold the averages, to be saved or exported; "
          "afterwards, "
          "also after an exception, their own values again, bit for bit. Within the block the Trainer evaluates, and "
          "refuses to train, to save and to load. kind: \"ema\" for those of ema_decay, \"swa\" for the mean that "
          "fit(swa_start=...) keeps. Without such averages the model stays as it is, and nothing is refused.")
      .def_property_readonly(
          "progress", &ModuleTrainer::progress,
          "epoch and batch (both from 0), optimizer_steps, skipped_updates (left out by loss scale or step guard, or "
          "of weight 0), window (batches waiting for an update), clipped_updates, micro_batch (samples computed at "
          "once since memory ran out; 0: whole batches), out_of_memory (how often it ran out), and step_guard, a dict "
          "of how often what was found and done: losses, gradients, weights, activations; skipped, replaced, "
          "lowered_lr, rolled_back; in_a_row, and lr_factor, what lower_lr has left of the learning rate.")
      .def("live", &ModuleTrainer::live,
           "Figures of a run that goes on, for a second thread, which may call this at any time, as every 100 ms; the "
           "other methods and properties are for the thread that trains. epoch and batch (both from 0), "
           "optimizer_steps and skipped_updates as progress has them, at the end of the last step; steps and samples "
           "(since this Trainer was made); loss, of the last step; samples_per_second, over the last one to two "
           "seconds of steps, waiting for data and evaluations included; and seconds_since_step, which grows where "
           "training stands still. None: unavailable yet, as the rate before the second step. It waits only for a loss "
           "that a device has not computed, while training goes on.")
      .def_property_readonly(
          "clip_report", &ModuleTrainer::clip_report,
          "norm_before and norm_after of the gradients of the last window, and clipped, how many parts, tensors or "
          "units were above their limit. Zeros where neither a clip nor a loss scale is set.")
      .def_property_readonly("loss_scale", &ModuleTrainer::loss_scale, "Of the next backward; 1.0 without one.")
      .def_property_readonly("learning_rate", &ModuleTrainer::learning_rate, "Of the first group's next update.")
      .def_property_readonly("learning_rates", &ModuleTrainer::learning_rates, "Of each group's next update.")
      .def_property_readonly("options", &ModuleTrainer::options,
                             "Every keyword with its value in force; a scheduler of torch as a dict of scheduler and "
                             "interval.")
      .def("explain", &ModuleTrainer::explain,
           "Who does each part of a step: a dict by part, as \"optimizer\", of {native, by, reason}. reason says why "
           "what is "
           "not native is not.");
}

}  // namespace

void register_trainer(py::module_& module) {
  bind_averages_block(module);
  py::class_<ModuleTrainer> bound(module, "Trainer",
                                  R"(Trains a torch.nn.Module with the native engine.

model: the module; its tensors are shared. optimizer: a torch.optim.Optimizer over parameters of the model; its groups
are read at each step. AdamW, Adam, SGD and RMSprop are done natively, with state that is shared, so that
optimizer.state_dict() and torch's schedulers go on working; any other steps itself within ours, and so do these where
they have step hooks, which are called then, or ask for what the engine has not: explain() says which and why. Where
such a step() raises, what it had changed stays changed. One whose step() needs a closure, as LBFGS, is refused.
forward(model, batch): returns the loss, a tensor of one number, (loss, dict of tensors), as headrace.accuracy makes it,
or (loss, dict of tensors, weight), where weight says of how many tokens or boxes the loss is the mean, for a window of
several batches.

Keywords are those of a recipe's [train] and [lr_scheduler]: gradient_accumulation_steps; at most one of max_grad_norm
(of the norm that grad_norm_type names, "l2" or "inf", grad_norm_per "model", "group" or "layer"), clip_grad_value and
clip_grad_ratio; precision ("fp32", "bf16" or "fp16"), loss_scale (as torch.amp.GradScaler; 0 is none), ema_decay,
ema_warmup, epochs, deterministic, loss_interval (steps on a CUDA device whose losses are read together),
memory_limit_mib (that tensors on the CPU may hold, of the whole process; 0: any),
on_out_of_memory ("raise", or "halve": where memory runs out, by that limit or by the machine's, the micro-batch is
halved and the step done anew in parts, with the gradients of the whole batch; the smaller size stays until
set_memory_limit_mib() sets a higher limit), step_guard, a dict of what follows a number that is not finite ({"policy": "raise",
"skip", "replace", "lower_lr" or "rollback", ...}, of the keys of [train.step_guard]), and lr_scheduler, a name, a dict
of the keys of [lr_scheduler], an object of torch.optim.lr_scheduler, or {"scheduler": object, "interval": "step" or
"epoch"}, stepped after each update that is not left out, or after each epoch of fit(); where no interval is told
CyclicLR and OneCycleLR go by update and the others by epoch, ReduceLROnPlateau by the figure that monitor names, or
else the loss. The engine's own ReduceLROnPlateau takes a figure of which more is better, as monitor has it, for mode
"max" where none is told. steps is the number of optimizer steps of the whole run, for a schedule without fit(), and
epochs how many epochs these are, for one that goes by epoch. Not thread-safe. A step that raises leaves parameters,
optimizer and progress as they were; buffers that forward had changed by then, such as running statistics, stay changed.

With ema_decay, of which 0.999 to 0.9999 are usual, exponential moving averages of parameters and buffers are kept: after
each update average = ema_decay * average + (1 - ema_decay) * weight. With ema_warmup, the default, the decay of update n, from
1, is min(ema_decay, (1 + n) / (10 + n)), so that the averages forget the initial weights. Training goes on with the weights
themselves; evaluate(), and so the choice of the best epoch, takes the averages.)");
  bound
      .def(py::init([](py::object model, py::object optimizer, py::object forward, const py::kwargs& options) {
             return std::make_unique<ModuleTrainer>(std::move(model), std::move(optimizer), std::move(forward),
                                                    options);
           }),
           py::arg("model"), py::arg("optimizer"), py::arg("forward"))
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
  bind_steps(bound);
  bind_fit(bound);
  bind_device(bound);
  bind_state(bound);
}

}  // namespace headrace::python
