// One call of train_to_end(): the epochs, what is done between them, and the result.
#pragma once

#include <headrace/checkpoint_writer.h>
#include <headrace/swa_average.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "app/cli/console.h"
#include "core/base/clock.h"
#include "engine/assembly/online_run.h"
#include "engine/assembly/training.h"
#include "engine/verbs/train_progress.h"
#include "engine/verbs/train_run.h"
#include "torch/train/loop.h"

namespace headrace {

class TrainLoop {
 public:
  // Error{corrupt_data}: the mean of train.swa_start that a checkpoint holds does not fit the model.
  TrainLoop(Training& training, const std::filesystem::path& folder, Console& console, ResumedRun resumed,
            OnlineRun* online);

  // As train_to_end(). Once.
  TrainRun run();

 private:
  // Those that the model holds, or the trainer's averages, where it keeps some.
  enum class Weights { of_model, averages };

  const Recipe& recipe() const { return training_.recipe(); }
  Trainer& trainer() { return training_.trainer(); }
  double seconds() const { return seconds_before_ + seconds_since(begin_ns_); }

  // ---- Epochs (train_loop.cpp) ----
  // To the run's end or a stop request; all checkpoints are on the disk then.
  void train();
  // From where the trainer stands to the epoch's end or a stop request; false: stopped. Leaves a checkpoint.
  bool train_epoch();
  LoopEnd run_epoch(const std::function<void(const StepDone&)>& on_step);
  void after_step(const StepDone& done, double epoch_seconds_before);
  // Of several within one step, the last.
  void tell_out_of_memory(std::int64_t count);
  void tell_faults(std::int64_t count);  // What the step guard bore with.
  void finish_epoch();
  // Once an epoch: a checkpoint says that the evaluation is due and holds the state before it, or says neither.
  void tell_schedule(const Score& val);
  void add_to_mean();  // Likewise.
  void tell_early_stop();

  bool checkpoint_is_due() const;
  double save();
  // history_ ends with the epoch in question.
  void save_if_best(double accuracy);
  // Returns the seconds that training stood still for it.
  double saving(const std::function<void(const RunState&)>& write);
  void finish_writes();
  void tell_lost_write();  // Or the error of the last write would be lost.

  // ---- The result (train_loop_result.cpp) ----
  void resume_mean(const NamedTensors& kept);
  // With recipe settings, whatever a run that tunes itself has switched.
  void as_written(const std::function<void()>& work);
  void with(Weights weights, const std::function<void()>& work);
  Score score(Loader& loader, Weights weights);
  // Test is read here alone, once: where a checkpoint records the result, an earlier process has done it. false: a stop
  // request came before there was one.
  bool finish_run();
  void finish_with_chosen();
  bool finish_with_mean();
  void read_test(TrainResult& result, Weights weights);
  // Puts the weights of the best checkpoint, its averages where it has some, into the model. Its own history tells what
  // it is.
  TrainResult load_best();
  void write_weights();

  Training& training_;
  const std::filesystem::path& folder_;
  Console& console_;
  TrainProgress progress_{console_, training_};
  TrainHistory history_;
  std::optional<SwaAverage> mean_;  // nullopt: train.swa_start is 0.
  OnlineRun* const online_;         // Null: the recipe's settings hold.
  const double seconds_before_;
  const std::int64_t begin_ns_ = monotonic_ns();
  std::int64_t saved_ns_ = begin_ns_;
  std::int64_t out_of_memory_told_ = trainer().progress().out_of_memory;
  std::int64_t faults_told_ = trainer().progress().guard.faults();
  TrainRun run_;
  // Last: where an error ends the run, its write is over before all else goes.
  CheckpointWriter writer_{recipe().train.async_checkpoints};
};

}  // namespace headrace
