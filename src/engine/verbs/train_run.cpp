#include "engine/verbs/train_run.h"

#include <ATen/core/Tensor.h>
#include <headrace/option_fields.h>
#include <headrace/option_text.h>
#include <headrace/plateau.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/exec/stop.h"
#include "engine/assembly/state.h"
#include "engine/verbs/train_progress.h"
#include "insight/diagnose/json.h"
#include "torch/model/weights.h"
#include "torch/tensor/allocator.h"
#include "torch/tensor/translate.h"
#include "torch/train/checkpoint_writer.h"
#include "torch/train/loop.h"

namespace headrace {
namespace {

std::string accuracy_of(const Score& score) {
  return accuracy_text(score.accuracy, score.top5_accuracy);
}

std::string choice_text(const TrainResult& result) {
  if (!result.val) {
    return "Nothing was chosen: the data has no split val and data.val_fraction is 0; the last checkpoint is the "
           "result.";
  }
  return fmt::format("The checkpoint of epoch {} is the result: the best by val accuracy, {:.4f}.", result.epoch,
                     result.val->accuracy);
}

// One call of train_to_end.
class TrainLoop {
 public:
  TrainLoop(Training& training, const std::filesystem::path& folder, Console& console, TrainHistory history,
            OnlineRun* online)
      : training_(training),
        folder_(folder),
        console_(console),
        history_(std::move(history)),
        online_(online),
        seconds_before_(history_.seconds) {}

  TrainRun run() {
    try {
      train();
      progress_.end_run();
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
    return run_;
  }

 private:
  // Those that the model holds, or the trainer's averages, where it keeps some.
  enum class Weights { of_model, averages };

  const Recipe& recipe() const { return training_.recipe(); }
  Trainer& trainer() { return training_.trainer(); }
  double seconds() const { return seconds_before_ + seconds_since(begin_ns_); }

  // To the run's end or a stop request; all checkpoints are on the disk then.
  void train() {
    while (true) {
      if (history_.evaluation_due) finish_epoch();
      const bool is_whole = trainer().progress().epoch >= recipe().train.epochs;
      run_.stopped_early = !is_whole && is_out_of_patience(history_.epochs, recipe().train.early_stopping_patience);
      if (is_whole || run_.stopped_early) {
        if (run_.stopped_early && !history_.result) tell_early_stop();
        if (online_ != nullptr) online_->end("the run is over");
        finish_run();
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

  // From where the trainer stands to the epoch's end or a stop request; false: stopped. Leaves a checkpoint.
  bool train_epoch() {
    history_.result.reset();  // Of a run that had ended and now has more epochs.
    const std::int64_t batches = training_.batches_per_epoch();
    progress_.begin_epoch();
    const double epoch_seconds_before = history_.epoch_seconds;
    const auto on_step = [&](const StepDone& done) {
      progress_.step(done);
      tell_out_of_memory(done.progress.out_of_memory);
      tell_faults(done.progress.guard.faults());
      history_.epoch_seconds = epoch_seconds_before + progress_.epoch_seconds();
      if (online_ != nullptr && writer_.is_writing()) online_->taint("a checkpoint was being written");
      if (done.progress.window != 0) return;
      writer_.check();  // Not within a window: a run that tunes itself would blame the step for the error.
      if (done.progress.batch < batches && checkpoint_is_due()) progress_.leave_out(save());
    };
    const LoopEnd end = run_epoch(on_step);
    console_.clear_progress();
    history_.evaluation_due = end == LoopEnd::epoch;
    save();
    if (stop_signal() == 0) return true;
    finish_writes();
    const std::int64_t place = trainer().progress().epoch + (history_.evaluation_due ? 0 : 1);
    console_.warning(fmt::format("stopped in epoch {}; a checkpoint was written, go on with --resume", place));
    return false;
  }

  LoopEnd run_epoch(const std::function<void(const StepDone&)>& on_step) {
    if (online_ != nullptr) return online_->run_epoch(on_step);
    Epoch epoch = training_.loader().epoch(trainer().progress().epoch, trainer().progress().batch);
    return run_steps(trainer(), epoch, epoch.batches(), on_step);
  }

  // Of several within one step, the last.
  void tell_out_of_memory(std::int64_t count) {
    if (count > std::exchange(out_of_memory_told_, count)) console_.warning(trainer().last_out_of_memory());
  }

  // What the step guard bore with; of several within one step, the last.
  void tell_faults(std::int64_t count) {
    if (count <= std::exchange(faults_told_, count)) return;
    const std::optional<StepFault>& fault = trainer().guard().last_fault();
    if (!fault) return;
    console_.warning(fmt::format("{}; train.step_guard.policy = \"{}\"", fault->text(),
                                 choice_name(recipe().train.step_guard.policy)));
  }

  void finish_epoch() {
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
    history_.epochs.push_back(result);
    history_.evaluation_due = false;
    history_.epoch_seconds = 0;
    if (!result.val) return;
    tell_schedule(*result.val);
    save_if_best(result.val->accuracy);
  }

  // Once an epoch: a checkpoint says that the evaluation is due and holds the state before it, or says neither.
  void tell_schedule(const Score& val) {
    const LrSchedulerOptions& schedule = recipe().lr_scheduler;
    if (schedule.name != LrSchedulerName::ReduceLROnPlateau) return;
    const double before = trainer().learning_rate();
    PlateauState& plateau = trainer().progress().plateau;
    plateau = after_metric(plateau, schedule, schedule.mode == SchedulerMode::max ? val.accuracy : val.loss);
    const double now = trainer().learning_rate();
    if (now < before) console_.info(fmt::format("val is on a plateau: the learning rate is {:.4g} from now on", now));
  }

  void tell_early_stop() {
    const std::int64_t patience = recipe().train.early_stopping_patience;
    console_.info(
        fmt::format("stopped early: no better val accuracy in {} {}", patience, patience == 1 ? "epoch" : "epochs"));
  }

  void with(Weights weights, const std::function<void()>& work) {
    weights == Weights::averages ? trainer().with_averages(work) : work();
  }

  Score score(Loader& loader, Weights weights) {
    give_freed_memory_back();  // Or what the steps have used stays beside what the evaluation uses.
    const std::int64_t begin_ns = monotonic_ns();
    Evaluation evaluation;
    const auto work = [&] { with(weights, [&] { evaluation = evaluate(trainer(), loader); }); };
    online_ != nullptr ? online_->as_written(work) : work();
    const double took_s = seconds_since(begin_ns);
    give_freed_memory_back();  // Or each later epoch would peak higher than the first.
    return {evaluation.loss, evaluation.accuracy, evaluation.top5_accuracy, took_s};
  }

  // Test is read here alone, once: where a checkpoint records the result, an earlier process has done it.
  void finish_run() {
    finish_writes();
    const bool chosen = std::any_of(history_.epochs.begin(), history_.epochs.end(),
                                    [](const EpochResult& epoch) { return epoch.val.has_value(); });
    const bool recorded = history_.result.has_value();
    {
      const auto kept = chosen ? std::make_unique<KeptValues>(weights_of(trainer().model())) : nullptr;
      TrainResult result = chosen ? load_best() : TrainResult{.epoch = trainer().progress().epoch};
      // The best checkpoint's averages are in the model then; the trainer's own are the last epoch's.
      const Weights weights = chosen ? Weights::of_model : Weights::averages;
      if (!recorded) {
        if (training_.test_loader() != nullptr) {
          result.test = score(*training_.test_loader(), weights);
          console_.info(fmt::format("test, read once: accuracy {} with the weights of epoch {}",
                                    accuracy_of(*result.test), result.epoch));
        }
        history_.result = result;
      }
      with(weights, [this] { write_weights(); });
    }
    console_.info(choice_text(*history_.result));
    if (!recorded) save();
  }

  // Puts the weights of the best checkpoint, its averages where it has some, into the model. Its own history tells what
  // it is.
  TrainResult load_best() {
    const std::filesystem::path path = folder_ / kBestCheckpoint;
    const CheckpointInfo info = load_checkpoint(path, trainer(), recipe().model.name, /*weights_only=*/true);
    const TrainHistory then = parse_history(info.run.history, false, tests_were_val(training_), path);
    if (then.epochs.empty() || !then.epochs.back().val) {
      fail(ErrorCode::corrupt_data, "train: {}: it says no val accuracy, by which the best was chosen", path.string());
    }
    return {.epoch = then.epochs.back().epoch, .val = then.epochs.back().val};
  }

  void write_weights() {
    save_weights(folder_ / "model.safetensors", trainer().model(),
                 {{"headrace", "weights"}, {"version", "1"}, {"model", recipe().model.name}});
  }

  bool checkpoint_is_due() const {
    const double every_s = recipe().train.checkpoint_every_s;
    return every_s > 0 && seconds_since(saved_ns_) >= every_s;
  }

  double save() {
    console_.debug(fmt::format("checkpoint after {} optimizer steps", trainer().progress().optimizer_steps));
    return saving(
        [this](const RunState& state) { writer_.save(folder_, trainer(), state, recipe().train.keep_checkpoints); });
  }

  // history_ ends with the epoch in question.
  void save_if_best(double accuracy) {
    const bool beaten = std::any_of(history_.epochs.begin(), history_.epochs.end() - 1, [&](const EpochResult& epoch) {
      return epoch.val && epoch.val->accuracy >= accuracy;
    });
    if (beaten) return;
    saving([&](const RunState& state) { writer_.save_best(folder_, trainer(), state, accuracy); });
  }

  // Returns the seconds that training stood still for it.
  double saving(const std::function<void(const RunState&)>& write) {
    const std::int64_t begin_ns = monotonic_ns();
    history_.seconds = seconds();
    RunState state = run_state(training_, history_);
    if (online_ != nullptr) state.tuning = online_->checkpoint_text();
    write(state);
    if (online_ != nullptr) online_->taint("a checkpoint was written");
    saved_ns_ = monotonic_ns();
    const double took_s = seconds_since(begin_ns);
    run_.checkpoint_seconds += took_s;
    return took_s;
  }

  void finish_writes() {
    const std::int64_t begin_ns = monotonic_ns();
    writer_.finish();
    run_.checkpoint_seconds += seconds_since(begin_ns);
  }

  // Or the error of the last write would be lost.
  void tell_lost_write() {
    try {
      writer_.finish();
    } catch (...) {
      const Error error = translate(std::current_exception());
      console_.warning(fmt::format("the last checkpoint was not written: {}", error.what()));
    }
  }

  Training& training_;
  const std::filesystem::path& folder_;
  Console& console_;
  TrainProgress progress_{console_, training_};
  TrainHistory history_;
  OnlineRun* const online_;  // Null: the recipe's settings hold.
  const double seconds_before_;
  const std::int64_t begin_ns_ = monotonic_ns();
  std::int64_t saved_ns_ = begin_ns_;
  std::int64_t out_of_memory_told_ = trainer().progress().out_of_memory;
  std::int64_t faults_told_ = trainer().progress().guard.faults();
  TrainRun run_;
  // Last: where an error ends the run, its write is over before all else goes.
  CheckpointWriter writer_{recipe().train.async_checkpoints};
};

}  // namespace

void refuse_earlier_checkpoints(const std::filesystem::path& folder) {
  const std::optional<std::filesystem::path> earlier = any_checkpoint(folder);
  if (!earlier) return;
  fail(ErrorCode::invalid_argument,
       "train: {} holds {} of an earlier run: go on with train --resume, or choose another --out", folder.string(),
       earlier->filename().string());
}

void require_val(const Training& training) {
  if (training.val_loader() != nullptr) return;
  const Recipe& recipe = training.recipe();
  constexpr const char* kWanted =
      "the data has no split val to judge by; wanted data.val_fraction above 0, which holds one out of train, or";
  if (const std::int64_t patience = recipe.train.early_stopping_patience; patience > 0) {
    fail(ErrorCode::invalid_argument, "train: train.early_stopping_patience is {} and {} a patience of 0", patience,
         kWanted);
  }
  if (recipe.lr_scheduler.name == LrSchedulerName::ReduceLROnPlateau) {
    fail(ErrorCode::invalid_argument, "train: lr_scheduler.name is \"{}\" and {} another schedule",
         choice_name(recipe.lr_scheduler.name), kWanted);
  }
}

RunState run_state(const Training& training, const TrainHistory& history) {
  RunState state;
  state.model = training.recipe().model.name;
  state.seed = static_cast<std::uint64_t>(training.recipe().seed);
  state.data = training.data_fingerprint();
  state.batches_per_epoch = training.batches_per_epoch();
  state.evaluation_due = history.evaluation_due;
  state.history = history_text(history);
  return state;
}

bool tests_were_val(const Training& training) {
  return training.val_loader() != nullptr && training.test_loader() == nullptr &&
         training.recipe().data.val_fraction == 0;
}

namespace {

// Where the loader was to find its settings: the recipe with those that it has now, each with why, and nothing left to
// decide.
void write_fixed_recipe(const Training& training, const std::filesystem::path& folder) {
  const DataOptions& data = training.recipe().data;
  const bool is_automatic =
      data.num_workers == AUTOTUNE || data.prefetch_batches == AUTOTUNE || data.cache == Cache::automatic;
  if (!is_automatic || !data.auto_tune) return;
  const Loader& loader = training.loader();
  const Applied cache = loader.applied_cache();
  std::map<std::string, std::string> settings{
      {"data.auto_tune", "false"}, {"tune.online", "false"}, {cache.key, '"' + cache.applied + '"'}};
  std::map<std::string, std::string> reasons{{cache.key, cache.reason}};
  for (const Applied& found : {loader.applied_num_workers(), loader.applied_prefetch()}) {
    settings[found.key] = found.applied;
    reasons[found.key] = found.reason;
  }
  Recipe fixed = training.recipe();
  apply_settings(fixed, settings);
  write_file(folder / "fixed.toml", write_toml(fields_of(fixed), [&](const std::string& key) {
               const auto found = reasons.find(key);
               return found == reasons.end() ? "" : found->second;
             }));
}

}  // namespace

TrainRun train_to_end(Training& training, const std::filesystem::path& folder, Console& console, TrainHistory history,
                      OnlineRun* online) {
  require_val(training);
  training.write_eval_transform(folder);
  TrainRun run = TrainLoop{training, folder, console, std::move(history), online}.run();
  write_fixed_recipe(training, folder);
  return run;
}

nlohmann::ordered_json to_json(const TrainRun& run) {
  nlohmann::ordered_json document{{"seconds", run.seconds},
                                  {"stopped_by", run.stopped_by},
                                  {"stopped_early", run.stopped_early},
                                  {"checkpoints", run.checkpoints},
                                  {"checkpoint_seconds", run.checkpoint_seconds},
                                  {"out_of_memory", run.out_of_memory},
                                  {"micro_batch", run.micro_batch}};
  document["epochs"] = nlohmann::ordered_json::array();
  for (const EpochResult& epoch : run.epochs) document["epochs"].push_back(to_json(epoch));
  document["result"] = run.result ? to_json(*run.result) : nullptr;
  return document;
}

void add_outcome(nlohmann::ordered_json& document, const TrainRun& run) {
  const auto accuracy = [&](std::optional<Score> TrainResult::*split) -> nlohmann::ordered_json {
    if (!run.result || !((*run.result).*split)) return nullptr;
    return ((*run.result).*split)->accuracy;
  };
  const auto add_top5 = [&](const char* key, std::optional<Score> TrainResult::*split) {
    if (!run.result || !((*run.result).*split) || !((*run.result).*split)->top5_accuracy) return;
    document[key] = *((*run.result).*split)->top5_accuracy;
  };
  document["val_accuracy"] = accuracy(&TrainResult::val);
  add_top5("val_top5_accuracy", &TrainResult::val);
  document["test_accuracy"] = accuracy(&TrainResult::test);
  add_top5("test_top5_accuracy", &TrainResult::test);
  document["choice"] = run.result ? nlohmann::ordered_json(choice_text(*run.result)) : nullptr;
}

std::string outcome_text(const TrainRun& run) {
  if (run.epochs.empty()) return "nothing was trained";
  const EpochResult& last = run.epochs.back();
  const std::optional<Score> test = run.result ? run.result->test : std::nullopt;
  const std::optional<Score> val = run.result ? run.result->val : last.val;
  std::string text;
  if (test) text += "test accuracy " + accuracy_of(*test);
  if (val) text += fmt::format("{}val accuracy {}", text.empty() ? "" : ", ", accuracy_of(*val));
  if (text.empty()) text = "no accuracy";
  const std::int64_t epoch = run.result ? run.result->epoch : last.epoch;
  if (epoch == last.epoch) return text + fmt::format(" after {} epochs", epoch);
  return text +
         fmt::format(" of epoch {}, the best of {}{}", epoch, last.epoch, run.stopped_early ? ", stopped early" : "");
}

void show_training(Report& report, const TrainRun& run) {
  if (run.epochs.empty()) return;
  Report::Curve accuracy{"Val accuracy", "", {}, {}}, top5{"Val accuracy, top 5", "", {}, {}},
      loss{"Training loss", "", {}, {}};
  for (const EpochResult& epoch : run.epochs) {
    loss.x.push_back(static_cast<double>(epoch.epoch));
    loss.y.push_back(epoch.loss);
    if (!epoch.val) continue;
    accuracy.x.push_back(static_cast<double>(epoch.epoch));
    accuracy.y.push_back(epoch.val->accuracy);
    if (!epoch.val->top5_accuracy) continue;
    top5.x.push_back(static_cast<double>(epoch.epoch));
    top5.y.push_back(*epoch.val->top5_accuracy);
  }
  for (const Report::Curve& curve : {accuracy, top5}) {
    if (!curve.x.empty()) report.curves.push_back(curve);
  }
  report.curves.push_back(loss);
  const std::optional<Score> val = run.result ? run.result->val : run.epochs.back().val;
  if (val) report.val_accuracy = val->accuracy, report.val_loss = val->loss;
  if (!run.result) return;
  report.choice = choice_text(*run.result);
  if (run.result->test) {
    report.test_accuracy = run.result->test->accuracy;
    report.test_loss = run.result->test->loss;
  }
}

}  // namespace headrace
