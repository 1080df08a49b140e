#include <headrace/checkpoint_writer.h>
#include <headrace/plateau.h>
#include <headrace/trace.h>
#include <pybind11/stl.h>

#include <exception>
#include <limits>
#include <system_error>
#include <utility>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/hardware/machine.h"
#include "python/folder_lock.h"
#include "python/keywords.h"
#include "python/module_trainer.h"
#include "python/tensor_object.h"
#include "python/train_fields.h"
#include "python/warning.h"

namespace headrace::python {
namespace {

namespace fs = std::filesystem;
namespace py = pybind11;

std::int64_t windows_in(std::int64_t batches, std::int64_t accumulate) {
  return (batches + accumulate - 1) / accumulate;
}

bool is_sequence(const py::object& loader) {
  return PyList_Check(loader.ptr()) != 0 || PyTuple_Check(loader.ptr()) != 0;
}

// Whether the order of its samples comes from Python, where a sampler may draw from any generator.
bool draws_in_python(const py::object& loader) {
  return !is_native_loader(loader) || loader.attr("_takes_orders").cast<bool>();
}

void refuse_without_effect(const std::string& setting, const char* wanted) {
  fail(ErrorCode::invalid_argument, "python: fit: {}: wanted {} beside it, found none", setting, wanted);
}

void check_swa(const TrainOptions& swa, std::int64_t epochs, const AnyLoader& loader) {
  const TrainOptions unset;
  const std::int64_t start = swa.swa_start;
  if (swa.swa_lr > 0 && start == 0) {
    refuse_without_effect(fmt::format("swa_lr={}", swa.swa_lr), "swa_start=, the epoch behind which it begins,");
  }
  if (swa.swa_lr == 0 && swa.swa_anneal_epochs != unset.swa_anneal_epochs) {
    refuse_without_effect(fmt::format("swa_anneal_epochs={}", swa.swa_anneal_epochs), "swa_lr=");
  }
  if (swa.swa_lr == 0 && swa.swa_anneal_strategy != unset.swa_anneal_strategy) {
    refuse_without_effect(fmt::format("swa_anneal_strategy=\"{}\"", choice_name(swa.swa_anneal_strategy)), "swa_lr=");
  }
  if (start == 0) return;
  if (start < 0 || start > epochs) {
    fail(ErrorCode::invalid_argument, "python: fit: swa_start: wanted an epoch from 1 to {}, or 0 for none, found {}",
         epochs, start);
  }
  if (loader.single_pass()) {
    fail(ErrorCode::invalid_argument,
         "python: fit: swa_start={}: wanted a loader that can be gone through again, for the BatchNorm statistics of "
         "the averages, found an iterator",
         start);
  }
}

void check_arguments(const FitArguments& arguments, const TrainOptions& settings) {
  if (!arguments.evaluate.is_none()) return;
  const auto refuse = [](const std::string& setting) {
    fail(ErrorCode::invalid_argument,
         "python: fit: {}: wanted evaluate=, the loader whose figures it goes by, found none", setting);
  };
  if (settings.early_stopping_patience > 0)
    refuse(fmt::format("early_stopping_patience={}", settings.early_stopping_patience));
  if (arguments.monitor != kLoss) refuse(fmt::format("monitor=\"{}\"", arguments.monitor));
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ErrorCode::io, "python: fit: cannot make {}: {}", folder.string(), error.message());
}

// A later load() would take them for those of the run that starts.
void refuse_checkpoints_in(const fs::path& folder) {
  const std::optional<fs::path> earlier = any_checkpoint(folder);
  if (!earlier) return;
  fail(ErrorCode::invalid_argument,
       "python: fit: {} holds {} of an earlier run: go on with it by load() of the folder, or choose another one",
       folder.string(), earlier->filename().string());
}

// They come from the part of a run that was given up by loading an older file: a later load() would go on from them.
void refuse_newer_checkpoints_in(const fs::path& folder, std::int64_t updates) {
  std::optional<std::int64_t> newest;
  {
    const py::gil_scoped_release released;
    newest = newest_step(folder);
  }
  if (newest.value_or(0) <= updates) return;
  fail(ErrorCode::invalid_argument,
       "python: fit: {}: wanted no checkpoint of more than the {} updates of this Trainer, found one of {}: load() the "
       "folder, remove what is newer, or choose another folder",
       folder.string(), updates, *newest);
}

// Another exception is under way and must reach the caller: the error of a write is a warning beside it.
void finish_beside_exception(CheckpointWriter& writer) {
  try {
    const py::gil_scoped_release released;
    writer.finish();
  } catch (const std::exception& error) {
    try {
      warn(fmt::format("headrace: the last checkpoint was not written: {}", error.what()));
    } catch (py::error_already_set& raised) {
      raised.discard_as_unraisable("headrace.Trainer.fit");
    }
  }
}

}  // namespace

struct ModuleTrainer::Fit {
  const FitArguments& arguments;
  const AnyLoader loader;
  TrainOptions settings{};                   // Only those of fit_fields() are set.
  fs::path folder{};                         // Of checkpoints.
  std::optional<FolderLock> lock{};          // Of the folder; before the writer, whose last write it outlives.
  std::optional<CheckpointWriter> writer{};  // Empty: no checkpoints are wanted.
  std::int64_t saved_ns = monotonic_ns();
  py::object shown = py::none();  // Of python/headrace/_progress.py; None: nobody asked for it.

  bool has_swa_lr_after(std::int64_t epochs_done) const {
    return settings.swa_lr > 0 && epochs_done >= settings.swa_start;
  }
};

void ModuleTrainer::plan_run(const Fit& run, std::int64_t epochs) {
  const auto batches = run.loader.batches();
  if (batches) steps_ = windows_in(*batches, options_.gradient_accumulation_steps) * epochs;
  if ((needs_run_length() || run.settings.swa_lr > 0) && !steps_) {
    fail(ErrorCode::invalid_argument,
         "python: a schedule spreads over the whole run: wanted a loader with a length, or steps=");
  }
  trainer_->set_run_length(steps_.value_or(1), epochs);
  trainer_->set_swa_lr(run.settings);
}

// The rates of such an object are its own.
void ModuleTrainer::check_swa_lr(const TrainOptions& swa) const {
  if (swa.swa_lr == 0 || scheduler_.is_none()) return;
  fail(ErrorCode::invalid_argument,
       "python: fit: swa_lr={}: wanted no lr_scheduler object beside it, found {}, which sets the rates itself, as "
       "torch.optim.swa_utils.SWALR can behind another one",
       swa.swa_lr, scheduler_.attr("name").cast<std::string>());
}

// Before the first step, so that a folder of no use is an error at once and not at the epoch's end.
void ModuleTrainer::open_checkpoints(Fit& run) {
  run.folder = fs::absolute(*run.arguments.checkpoints);
  make_folder(run.folder);
  run.lock.emplace(run.folder);
  std::error_code ignored;
  if (!fs::equivalent(run_folder_, run.folder, ignored)) refuse_checkpoints_in(run.folder);
  refuse_newer_checkpoints_in(run.folder, trainer_->progress().optimizer_steps);
  const bool is_other = !record_.monitor.empty() && record_.monitor != run.arguments.monitor;
  if (is_other && !run.arguments.evaluate.is_none() && any_checkpoint(run.folder)) {
    fail(ErrorCode::invalid_argument,
         "python: fit: monitor: wanted {}, by which the run in {} goes, found {}: another one needs another folder",
         record_.monitor, run.folder.string(), run.arguments.monitor);
  }
  run_folder_ = run.folder;
  run.writer.emplace(run.settings.async_checkpoints);
}

// As the loaded checkpoint has them, for an evaluation that draws before the next epoch starts.
void ModuleTrainer::set_loaded_generators() {
  const py::object loaded = std::exchange(loaded_place_, py::none());
  if (loaded.is_none() || !draws_in_python(loader_)) return;
  py::module_::import("headrace._place").attr("set_generator_states")(loaded["now"], loader_);
}

// Stands at resume_batch_, or refuses.
py::iterator ModuleTrainer::begin_pass(const AnyLoader& loader) {
  Progress& progress = trainer_->progress();
  progress.batch = std::exchange(resume_batch_, 0);
  if (draws_in_python(loader_)) {
    if (is_native_loader(loader_)) loader_.attr("start_at")(progress.epoch, 0);
    return begin_pass_of_python(loader);
  }
  loaded_place_ = pass_began_ = py::none();  // It needs no generator.
  loader_.attr("start_at")(progress.epoch, progress.batch);
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

py::dict ModuleTrainer::fit_epoch(Fit& run) {
  Progress& progress = trainer_->progress();
  const std::int64_t begin_ns = monotonic_ns(), skipped_before = progress.skipped_updates;
  const std::int64_t updates_before = progress.optimizer_steps;
  const std::optional<std::int64_t> batches = run.loader.batches();
  py::iterator pass = begin_pass(run.loader);
  if (!run.shown.is_none()) run.shown.attr("begin_epoch")(progress.epoch + 1, batches, progress.batch);
  const auto checkpoint_is_due = [&] {
    const bool is_resting = progress.window == 0 && progress.batch != batches;
    const double every_s = run.settings.checkpoint_every_s;
    return run.writer && is_resting && every_s > 0 && seconds_since(run.saved_ns) >= every_s;
  };
  std::int64_t samples = 0;
  while (!batches || progress.batch < *batches) {
    begin_traced_step(progress.batch);
    const Span span{step::kStep, progress.batch};
    std::optional<py::object> batch;
    {
      const Span wait{step::kDataWait};
      batch = next_batch(pass);
    }
    if (!batch) break;
    const Stepped stepped = step_on(*batch, batches && progress.batch + 1 == *batches);
    samples += stepped.samples;
    show_step(run, stepped.loss);
    if (!run.arguments.on_step.is_none()) run.arguments.on_step(object_of(stepped.loss));
    check_signals();
    if (run.writer) run.writer->check();
    if (checkpoint_is_due()) save_in_folder(run);
  }
  if (progress.batch == 0) {
    fail(ErrorCode::invalid_argument, "python: loader: gave no batch in epoch {}{}", progress.epoch + 1,
         run.loader.single_pass() ? "; an iterator or generator is used up by one epoch: give a function that makes one"
                                  : "");
  }
  finish_window();
  if (batches && progress.batch < *batches && !run.loader.has_estimated_length()) {
    warn(
        fmt::format("headrace: fit: the loader ended after {} batches, and its len() says {}; the epoch ends there, "
                    "and a schedule over the run counts on its len()",
                    progress.batch, *batches));
  }
  {
    const py::gil_scoped_release released;
    trainer_->mean_loss();  // Reads what waits on a device: a fault of the epoch's last steps, before it is closed.
  }
  ++progress.epoch;
  progress.batch = 0;
  live_.note_place(progress);
  pass_began_ = py::none();
  if (!scheduler_.is_none()) scheduler_.attr("after_epoch")();
  average_epoch(run, updates_before);
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

// The loss and its mean are read only where it is time to show them: on a device that waits.
void ModuleTrainer::show_step(const Fit& run, const at::Tensor& loss) {
  if (run.shown.is_none() || !run.shown.attr("is_due")().cast<bool>()) return;
  std::optional<double> mean;
  {
    const py::gil_scoped_release released;
    mean = trainer_->mean_loss();
  }
  run.shown.attr("show")(trainer_->progress().batch, object_of(loss), mean);
}

// An epoch without an update adds nothing.
void ModuleTrainer::average_epoch(const Fit& run, std::int64_t updates_before) {
  const Progress& progress = trainer_->progress();
  const std::int64_t start = run.arguments.swa_start;
  if (start == 0 || progress.epoch < start || progress.optimizer_steps == updates_before) return;
  if (!has_swa_since(start)) {
    swa_ = py::module_::import("headrace._weight_averages").attr("WeightAverages")(progress.epoch);
  }
  swa_.attr("add")(model_);
}

// false: there is none, or it began with an epoch before, as that of an earlier run.
bool ModuleTrainer::has_swa_since(std::int64_t start) const {
  return !swa_.is_none() && swa_.attr("first").cast<std::int64_t>() >= start;
}

// Statistics and figures of the averages at a run's end. The generators are as before afterwards, also by exception of
// the former, and training would go on to the same bits.
void ModuleTrainer::finish_swa(Fit& run, py::dict& result) {
  if (run.arguments.swa_start == 0 || !has_swa_since(run.arguments.swa_start)) return;
  const py::module_ place = py::module_::import("headrace._place");
  const py::object generators = place.attr("generator_states")(loader_);
  if (is_native_loader(loader_)) loader_.attr("start_at")(trainer_->progress().epoch, 0);
  const py::object count = py::cast(run.loader.batches());
  const std::string precision(choice_name(options_.precision));
  try {
    // Shows the mean meanwhile, so that forward can save no checkpoint with it as the weights.
    const Busy busy(*this);
    swa_.attr("renew")(model_, forward_, run.loader.pass(), count, precision);
  } catch (...) {
    place.attr("set_generator_states")(generators, loader_);
    throw;
  }
  place.attr("set_generator_states")(generators, loader_);
  py::dict told(py::arg("epochs") = swa_.attr("epochs"));
  if (!run.arguments.evaluate.is_none()) {
    show_averages("swa");
    try {
      told["evaluation"] = evaluate(run.arguments.evaluate, /*averages=*/true);  // The model holds those of SWA.
    } catch (...) {
      hide_averages();
      throw;
    }
    hide_averages();
  }
  result["swa"] = told;
}

// The figure that the run goes by, for a schedule that wants one. An epoch without a loss that counted has none.
void ModuleTrainer::step_by_figure(const Fit& run, const py::dict& result) {
  if (!needs_figure() || run.has_swa_lr_after(trainer_->progress().epoch)) return;
  const std::string& monitor = run.arguments.monitor;
  const py::str name(monitor.substr(monitor.starts_with('-') ? 1 : 0));
  const py::object figure =
      run.arguments.evaluate.is_none() ? py::object(result[kLoss]) : py::object(result["evaluation"][name]);
  const double number = figure.is_none() ? std::numeric_limits<double>::quiet_NaN() : figure.cast<double>();
  if (!scheduler_.is_none()) {
    scheduler_.attr("after_figure")(number);
    return;
  }
  LrSchedulerOptions schedule = schedule_;
  const bool is_more_better = monitor != kLoss && !monitor.starts_with('-');
  if (schedule.mode == SchedulerMode::automatic && is_more_better) schedule.mode = SchedulerMode::max;
  PlateauState& plateau = trainer_->progress().plateau;
  plateau = after_metric(plateau, schedule, number);
}

void ModuleTrainer::save_in_folder(Fit& run) {
  save_by("save()", [this, &run](const RunState& state) {
    run.writer->save(run.folder, *trainer_, state, run.settings.keep_checkpoints);
  });
  run.saved_ns = monotonic_ns();
}

void ModuleTrainer::save_best_in_folder(Fit& run) {
  save_by("save()", [this, &run](const RunState& state) {
    run.writer->save_best(run.folder, *trainer_, state, record_.best_score.value());
  });
}

// Closes the epoch, unless it throws: a run that goes on then evaluates the epoch again.
void ModuleTrainer::note_evaluation(Fit& run, const py::dict& result) {
  const FitRecord before = record_;
  const PlateauState plateau_before = trainer_->progress().plateau;
  const py::object scheduler_before = scheduler_.is_none() ? scheduler_ : py::object(scheduler_.attr("keep")());
  const auto evaluation = py::reinterpret_borrow<py::dict>(result["evaluation"]);
  bool is_better = false;
  try {
    is_better = record_.note(evaluation);
  } catch (const Error&) {
    if (record_.best_score) throw;
    record_.monitor.clear();  // It chose nothing: another may take its place, also after a load().
    if (run.writer) save_in_folder(run);
    throw;
  }
  record_.open_epoch = py::none();
  try {
    step_by_figure(run, result);
    if (is_better && run.writer) save_best_in_folder(run);
  } catch (...) {
    record_ = before;
    trainer_->progress().plateau = plateau_before;
    if (!scheduler_before.is_none()) scheduler_before();
    throw;
  }
}

bool ModuleTrainer::is_stopped(const Fit& run) const {
  const std::int64_t patience = run.settings.early_stopping_patience;
  return patience > 0 && record_.epochs_without_better >= patience;
}

// The epoch's checkpoint comes first, so that it is written beside the evaluation. It says that the epoch is open,
// as on_epoch has not run: a run that goes on from it closes the epoch again.
void ModuleTrainer::close_epoch(Fit& run, std::int64_t last, py::dict& result) {
  const FitArguments& arguments = run.arguments;
  const bool is_more_to_do =
      !arguments.evaluate.is_none() || !arguments.on_epoch.is_none() || needs_figure() || arguments.swa_start > 0;
  if (run.writer && record_.open_epoch.is_none()) {
    if (is_more_to_do) record_.open_epoch = result;
    save_in_folder(run);
  }
  if (!arguments.evaluate.is_none()) {
    const py::dict evaluation = evaluate(arguments.evaluate, /*averages=*/true);
    result["evaluation"] = evaluation;
    note_evaluation(run, result);
  } else {
    step_by_figure(run, result);
  }
  record_.open_epoch = py::none();
  if (is_stopped(run) && trainer_->progress().epoch < last) result["stopped_early"] = true;
  if (is_stopped(run) || trainer_->progress().epoch >= last) finish_swa(run, result);
  if (!run.shown.is_none()) run.shown.attr("end_epoch")(result);
  if (!arguments.on_epoch.is_none()) arguments.on_epoch(result);
  const bool is_over = is_stopped(run) || trainer_->progress().epoch >= last;
  if (run.writer && is_more_to_do && is_over) save_in_folder(run);
}

void ModuleTrainer::train_epochs(Fit& run, std::int64_t last, py::list& results) {
  while (true) {
    const bool is_open = !record_.open_epoch.is_none();
    if (!is_open && (trainer_->progress().epoch >= last || is_stopped(run))) return;
    if (is_open) set_loaded_generators();
    py::dict result = is_open ? py::reinterpret_borrow<py::dict>(record_.open_epoch) : fit_epoch(run);
    close_epoch(run, last, result);
    results.append(result);
  }
}

py::list ModuleTrainer::fit(const py::object& loader, std::optional<std::int64_t> epochs,
                            const FitArguments& arguments) {
  refuse_while_shown("fit()");
  Fit run{arguments, AnyLoader(loader)};
  set_keywords(fit_fields(run.settings), arguments.options);
  check_arguments(arguments, run.settings);
  run.settings.swa_start = arguments.swa_start;
  const std::int64_t last = epochs.value_or(options_.epochs);
  check_swa(run.settings, last, run.loader);
  check_swa_lr(run.settings);
  plan_run(run, last);
  if (arguments.checkpoints) open_checkpoints(run);
  if (!arguments.evaluate.is_none()) record_.watch(arguments.monitor);  // Checkpoints from now on name it.
  loader_ = loader;
  if (arguments.progress) run.shown = py::module_::import("headrace._progress").attr("TrainingProgress")(last);
  py::list results;
  try {
    train_epochs(run, last, results);
  } catch (...) {
    if (!run.shown.is_none()) run.shown.attr("close")();
    if (run.writer) finish_beside_exception(*run.writer);
    throw;
  }
  if (run.writer) {
    const py::gil_scoped_release released;
    run.writer->finish();
  }
  return results;
}

}  // namespace headrace::python
