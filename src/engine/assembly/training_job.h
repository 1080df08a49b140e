// A training recipe as the tuner's Job: the real loop under other settings, always from the same state on the same
// samples.
#pragma once

#include <headrace/strategy_switch.h>
#include <headrace/tune.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/assembly/planted_knobs.h"
#include "engine/assembly/training.h"
#include "engine/assembly/trial_processes.h"
#include "insight/measure/measure.h"
#include "insight/measure/part_use_counter.h"
#include "torch/train/loop.h"

namespace headrace {

class TrainingJob final : public MeasurableJob {
 public:
  TrainingJob(const Recipe& recipe, const Machine& machine);
  ~TrainingJob() override;

  // Error{cancelled} from run() once a signal asked to stop.
  void snapshot() override;
  void restore() override;
  // Keys are those of recipe knobs (app/knobs/knob.h), "planted.<name>" for recipe.tune.planted and
  // "custom.<name>" for strategies that were registered before the job was made.
  void configure(const Settings& settings) override;
  std::vector<double> run(std::int64_t steps) override;
  Fingerprint fingerprint(std::int64_t batch) override;
  Fingerprint fingerprint_as_loaded(std::int64_t batch) override;
  // Needs memory for twice what the process has held so far at most; not where the recipe computes in bfloat16.
  ExactResult exact_fingerprint(std::int64_t batch) override;
  std::uint64_t state_hash() override;
  double update_difference(const Settings& a, const Settings& b) override;
  std::int64_t samples_per_step() const override;
  // The processes begin with the recipe's initial weights. Two more jobs like this one need as much memory again, each:
  // Error{out_of_memory} from configure() where the limit is below that. Ends the epoch at hand.
  std::unique_ptr<Job> in_processes(const Settings& first, const Settings& second) override;
  // The program and its first arguments that begin such a process, which finds the recipe at trial::kRecipe and gets
  // KEY=VALUE for each of the other settings behind them, and for trial::kIndexKey. Without, there are none.
  void set_trial_command(std::vector<std::string> command) { trial_command_ = std::move(command); }

  void set_free_data(bool free_data) override;
  std::optional<LoaderWork> loader_work() const override;
  void set_loads_aside(bool loads_aside) override;
  bool has_fused_optimizer() const override;
  // Counts in the place of whatever hears the trainer's parts, but for planted knobs; so does the thread that switches
  // it on.
  void set_counts_use(bool counts) override;
  std::optional<PartUses> part_uses(std::int64_t steps) const override;
  bool knows_run_delay() const override { return !use_ || use_->knows_run_delay(); }
  bool set_idle_compute(double seconds) override;
  std::optional<LoadingTotals> loading_totals() const override;
  // Of the last samples of the data, which a few steps rarely reach.
  std::optional<ReadTimes> read_times() override;
  // Of a forward and backward on the first batch, whose effects are put back.
  StepWork step_work() override;
  std::optional<MachinePeaks> peaks() override;

  Training& training() { return *training_; }
  const StrategySwitch& strategies() const noexcept { return strategies_; }
  void undo_strategies();
  const StrategyContext& strategy_context() const noexcept { return strategy_context_; }

 private:
  struct Saved;
  TensorBatch batch_for_checks(std::int64_t index);
  TensorBatch load_batch(std::int64_t epoch, std::int64_t index);  // By the loader in force. Ends the epoch at hand.
  Fingerprint fingerprint_of(const TensorBatch& batch);
  void begin_pass_again_where_due();
  void hear_parts();
  BatchStream counted_stream();  // Of the epoch at hand.
  std::vector<double> run_idle(std::int64_t steps);
  // Before the data is another one for a while, and when it is itself again.
  void leave_data();
  void return_to_data();
  std::unique_ptr<TrialArm> start_process(const Settings& settings) const;
  // Parameters, buffers and optimizer state; shared.
  std::vector<std::pair<std::string, at::Tensor>> trained();
  std::vector<std::pair<std::string, at::Tensor>> everything();  // With averages.

  Recipe baseline_;
  std::optional<std::int64_t> memory_limit_;  // Bytes.
  std::unique_ptr<Training> training_;
  std::int64_t pass_batches_;  // Of an epoch, those that steps take: of tune.samples_max samples, or all.
  PlantedKnobs planted_;
  StrategySwitch strategies_;
  StrategyContext strategy_context_;
  std::vector<std::string> trial_command_;
  Settings settings_;  // In force.
  std::unique_ptr<Saved> saved_;
  std::optional<Epoch> epoch_;           // The epoch in progress; the trainer's progress says where it stands.
  std::optional<Batch> cached_;          // Set while data is free.
  double idle_s_ = 0;                    // In the place of a step's compute; 0: it computes.
  std::unique_ptr<PartUseCounter> use_;  // Null: nobody counts.
  Machine machine_;
  Progress before_other_data_;
};

}  // namespace headrace
