#include "engine/verbs/train_loop.h"

#include <fmt/format.h>
#include <headrace/plateau.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <string>
#include <utility>

#include "core/exec/stop.h"
#include "torch/tensor/translate.h"

namespace headrace {

TrainLoop::TrainLoop(Training& training, const std::filesystem::path& folder, Console& console, ResumedRun resumed,
                     OnlineRun* online)
    : training_(training),
      folder_(folder),
      console_(console),
      history_(std::move(resumed.history)),
      online_(online),
      seconds_before_(history_.seconds) {
  resume_mean(std::exchange(resumed.tensors, {}));  // A parameter lives until the caller's statement ends.
}

TrainRun TrainLoop::run() {
  try {
    train();
    progress_.end_run();
    run_.watched = progress_.watched();
    run_.steps = progress_.take_steps();
  } catch (...) {
    tell_lost_write();
    throw;
  }
  run_.epochs = history_.epochs;
  run_.result = history_.result;
  run_.checkpoints = writer_.written();
  run_.seconds = seconds();
  run_.out_of_memory = trainer().progress().out_of_memory;
  run_.micro_batch = trainer().progress().micro_batch;
  run_.class_names = training_.train_source().info().class_names;
  return run_;
}

void TrainLoop::train() {
  while (true) {
    if (history_.evaluation_due) finish_epoch();
    const bool is_whole = trainer().progress().epoch >= recipe().train.epochs;
    run_.stopped_early = !is_whole && is_out_of_patience(history_.epochs, recipe().train.early_stopping_patience);
    if (is_whole || run_.stopped_early) {
      if (run_.stopped_early && !history_.result) tell_early_stop();
      if (online_ != nullptr) online_->end("the run is over");
      if (!finish_run()) run_.stopped_by = stop_signal();
      break;
    }
    if (!train_epoch()) {
      run_.stopped_by = stop_signal();
      if (online_ != nullptr) online_->end("the run was stopped");
      break;
    }
  }
  finish_writes();
}

bool TrainLoop::train_epoch() {
  history_.result.reset();  // Of a run that had ended and now has more epochs.
  progress_.begin_epoch();
  const double epoch_seconds_before = history_.epoch_seconds;
  const LoopEnd end = run_epoch([&](const StepDone& done) { after_step(done, epoch_seconds_before); });
  console_.clear_progress();
  history_.evaluation_due = end == LoopEnd::epoch;
  save();
  if (stop_signal() == 0) return true;
  finish_writes();
  const std::int64_t place = trainer().progress().epoch + (history_.evaluation_due ? 0 : 1);
  console_.warning(fmt::format("stopped in epoch {}; a checkpoint was written, go on with --resume", place));
  return false;
}

LoopEnd TrainLoop::run_epoch(const std::function<void(const StepDone&)>& on_step) {
  if (online_ != nullptr) return online_->run_epoch(on_step);
  Epoch epoch = training_.loader().epoch(trainer().progress().epoch, trainer().progress().batch);
  return run_steps(trainer(), epoch, epoch.batches(), on_step);
}

void TrainLoop::after_step(const StepDone& done, double epoch_seconds_before) {
  progress_.step(done);
  tell_out_of_memory(done.progress.out_of_memory);
  tell_faults(done.progress.guard.faults());
  history_.epoch_seconds = epoch_seconds_before + progress_.epoch_seconds();
  if (online_ != nullptr && writer_.is_writing()) online_->taint("a checkpoint was being written");
  if (done.progress.window != 0) return;
  writer_.check();  // Not within a window: a run that tunes itself would blame the step for the error.
  if (done.progress.batch < training_.batches_per_epoch() && checkpoint_is_due()) progress_.leave_out(save());
}

void TrainLoop::tell_out_of_memory(std::int64_t count) {
  if (count > std::exchange(out_of_memory_told_, count)) console_.warning(trainer().last_out_of_memory());
}

void TrainLoop::tell_faults(std::int64_t count) {
  if (count <= std::exchange(faults_told_, count)) return;
  const std::optional<StepFault>& fault = trainer().guard().last_fault();
  if (!fault) return;
  console_.warning(fmt::format("{}; train.step_guard.policy = \"{}\"", fault->text(),
                               choice_name(recipe().train.step_guard.policy)));
}

void TrainLoop::finish_epoch() {
  const auto samples = static_cast<double>(trainer().progress().loss_samples);
  EpochResult result;
  result.epoch = trainer().progress().epoch;  // It stands at the next one, counted from 0.
  result.loss = trainer().take_mean_loss().value_or(std::numeric_limits<double>::quiet_NaN());
  result.seconds = history_.epoch_seconds;
  result.samples_per_second = samples / result.seconds;
  if (training_.val_loader() != nullptr) result.val = score(*training_.val_loader(), Weights::averages);
  result.finished_s = seconds();
  const std::string accuracy = result.val ? "  val accuracy " + accuracy_of(*result.val) : "";
  console_.info(fmt::format("epoch {}/{}  loss {:.4f}{}  {:.0f} samples/s  {}", result.epoch, recipe().train.epochs,
                            result.loss, accuracy, result.samples_per_second, duration_text(result.seconds)));
  progress_.end_epoch(result);
  for (EpochResult& earlier : history_.epochs) {
    if (earlier.val) earlier.val->classes.clear();  // Checkpoints have those of the last one.
  }
  history_.epochs.push_back(result);
  history_.evaluation_due = false;
  history_.epoch_seconds = 0;
  add_to_mean();
  if (!result.val) return;
  tell_schedule(*result.val);
  save_if_best(result.val->accuracy);
}

void TrainLoop::tell_schedule(const Score& val) {
  const LrSchedulerOptions& schedule = recipe().lr_scheduler;
  if (schedule.name != LrSchedulerName::ReduceLROnPlateau) return;
  const TrainOptions& train = recipe().train;
  const bool is_over = train.swa_lr > 0 && trainer().progress().epoch >= train.swa_start;  // The rate is SWA's.
  if (is_over) return;
  const double before = trainer().learning_rate();
  PlateauState& plateau = trainer().progress().plateau;
  plateau = after_metric(plateau, schedule, schedule.mode == SchedulerMode::max ? val.accuracy : val.loss);
  const double now = trainer().learning_rate();
  if (now < before) console_.info(fmt::format("val is on a plateau: the learning rate is {:.4g} from now on", now));
}

void TrainLoop::add_to_mean() {
  const std::int64_t epoch = trainer().progress().epoch;
  if (!mean_ || epoch < recipe().train.swa_start) return;
  if (mean_->epochs() == 0) history_.swa.first = epoch;
  mean_->add();
  history_.swa.epochs = mean_->epochs();
}

void TrainLoop::tell_early_stop() {
  const std::int64_t patience = recipe().train.early_stopping_patience;
  console_.info(
      fmt::format("stopped early: no better val accuracy in {} {}", patience, patience == 1 ? "epoch" : "epochs"));
}

bool TrainLoop::checkpoint_is_due() const {
  const double every_s = recipe().train.checkpoint_every_s;
  return every_s > 0 && seconds_since(saved_ns_) >= every_s;
}

double TrainLoop::save() {
  console_.debug(fmt::format("checkpoint after {} optimizer steps", trainer().progress().optimizer_steps));
  return saving(
      [this](const RunState& state) { writer_.save(folder_, trainer(), state, recipe().train.keep_checkpoints); });
}

void TrainLoop::save_if_best(double accuracy) {
  const bool beaten = std::any_of(history_.epochs.begin(), history_.epochs.end() - 1, [&](const EpochResult& epoch) {
    return epoch.val && epoch.val->accuracy >= accuracy;
  });
  if (beaten) return;
  saving([&](const RunState& state) { writer_.save_best(folder_, trainer(), state, accuracy); });
}

double TrainLoop::saving(const std::function<void(const RunState&)>& write) {
  const std::int64_t begin_ns = monotonic_ns();
  history_.seconds = seconds();
  RunState state = run_state(training_, history_);
  if (online_ != nullptr) state.tuning = online_->checkpoint_text();
  if (mean_) {
    for (const auto& [name, tensor] : mean_->tensors()) state.tensors.emplace_back(kSwaTensors + name, tensor);
  }
  write(state);
  if (online_ != nullptr) online_->taint("a checkpoint was written");
  saved_ns_ = monotonic_ns();
  const double took_s = seconds_since(begin_ns);
  run_.checkpoint_seconds += took_s;
  return took_s;
}

void TrainLoop::finish_writes() {
  const std::int64_t begin_ns = monotonic_ns();
  writer_.finish();
  run_.checkpoint_seconds += seconds_since(begin_ns);
}

void TrainLoop::tell_lost_write() {
  try {
    writer_.finish();
  } catch (...) {
    const Error error = translate(std::current_exception());
    console_.warning(fmt::format("the last checkpoint was not written: {}", error.what()));
  }
}

}  // namespace headrace
