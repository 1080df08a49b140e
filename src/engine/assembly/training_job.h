// A training recipe as the tuner's Job: the real loop under other settings, always from the same state on the same
// samples.
#pragma once

#include <headrace/tune.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/random.h"
#include "engine/assembly/training.h"
#include "insight/measure/measure.h"

namespace headrace {

class TrainingJob final : public MeasurableJob {
 public:
  TrainingJob(const Recipe& recipe, const Machine& machine);
  ~TrainingJob() override;

  // Error{cancelled} from run() once a signal asked to stop.
  void snapshot() override;
  void restore() override;
  // Keys are those of recipe knobs (engine/assembly/knob.h) and "planted.<name>" = "true" for recipe.tune.planted.
  void configure(const Settings& settings) override;
  std::vector<double> run(std::int64_t steps) override;
  Fingerprint fingerprint(std::int64_t batch) override;
  Fingerprint fingerprint_as_loaded(std::int64_t batch) override;
  // Needs memory for twice what the process has held so far at most; not where the recipe computes in bfloat16.
  ExactResult exact_fingerprint(std::int64_t batch) override;
  std::uint64_t state_hash() override;
  double update_difference(const Settings& a, const Settings& b) override;
  std::int64_t samples_per_step() const override;

  void set_free_data(bool free_data) override;
  std::optional<LoaderWork> loader_work() const override;
  void set_loads_aside(bool loads_aside) override;
  bool has_fused_optimizer() const override;

  Training& training() { return *training_; }

 private:
  struct Saved;
  TensorBatch batch_for_checks(std::int64_t index);
  TensorBatch load_batch(std::int64_t epoch, std::int64_t index);  // By the loader in force. Ends the pass in progress.
  Fingerprint fingerprint_of(const TensorBatch& batch);
  void apply_planted();  // Before each update: the time, errors and exceptions of planted knobs.
  void apply_planted_gradient_error();
  std::vector<std::pair<std::string, at::Tensor>> everything();  // Parameters, buffers, optimizer state; shared.

  Recipe baseline_;
  std::optional<std::int64_t> memory_limit_;  // Bytes.
  std::vector<bool> planted_on_;              // As long as baseline_.tune.planted.
  SampleRandom planted_random_;  // Goes on over restores: a fault that comes now and then does not repeat itself.
  std::unique_ptr<Training> training_;
  std::unique_ptr<Saved> saved_;
  std::optional<Epoch> epoch_;   // The pass in progress; the trainer's progress says where it stands.
  std::optional<Batch> cached_;  // Set while data is free.
  Progress before_free_data_;
};

}  // namespace headrace
