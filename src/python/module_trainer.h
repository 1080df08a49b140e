// headrace.Trainer: the C++ engine over a torch.nn.Module, a torch.optim optimizer and a forward in Python. Methods are
// called under the GIL and let go of it while C++ works; only forward, the loader and callbacks hold it.
#pragma once

#include <headrace/batch_planner.h>
#include <headrace/trainer.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "core/memory/accounts.h"
#include "python/any_loader.h"
#include "python/fit_record.h"
#include "python/live_figures.h"
#include "python/torch_optimizer.h"
#include "torch/device/accelerator.h"
#include "torch/train/checkpoint.h"
#include "torch/train/shown_averages.h"

namespace headrace::python {

// What fit() is told beside its loader and the number of epochs. Each object may be None.
struct FitArguments {
  pybind11::object evaluate;                         // A loader that is evaluated after each epoch.
  pybind11::object on_step;                          // on_step(loss) after each batch.
  pybind11::object on_epoch;                         // on_epoch(result) after each epoch, evaluation included.
  std::optional<std::filesystem::path> checkpoints;  // Their folder.
  std::string monitor;                               // As FitRecord::watch.
  std::int64_t swa_start;                            // The first epoch, from 1, whose weights SWA averages; 0: none.
  bool progress;                                     // Whether it is told on stderr how far the run is.
  pybind11::dict options;                            // Those of fit_fields().
};

class EvaluationSums;  // Of ModuleTrainer::evaluate().

// Without the GIL: the destructor copies a model's tensors.
struct EndWithoutGil {
  void operator()(ShownAverages* shown) const {
    const pybind11::gil_scoped_release released;
    delete shown;
  }
};
using Shown = std::unique_ptr<ShownAverages, EndWithoutGil>;

class ModuleTrainer {
 public:
  // `keywords`: those of TrainOptions that concern a step; lr_scheduler as a name, a dict of LrSchedulerOptions or what
  // python/headrace/_torch_scheduler.py takes; and steps, the optimizer steps of the whole run where a schedule needs
  // to know.
  ModuleTrainer(pybind11::object model, pybind11::object optimizer, pybind11::object forward,
                const pybind11::dict& keywords);
  ModuleTrainer(const ModuleTrainer&) = delete;
  ModuleTrainer& operator=(const ModuleTrainer&) = delete;

  pybind11::object step(const pybind11::object& batch, bool last_of_window);
  void finish_window();
  // `batch_of(samples)` makes a batch of that many. As a dict of BatchPlan. What is Python's own, as its generators and
  // the loader, is not put back.
  pybind11::dict plan_batch_size(const pybind11::object& batch_of, const BatchPlannerOptions& options);
  pybind11::dict set_memory_limit_mib(double mib);  // As Trainer::set_memory_limit(): requested, applied and reason.
  pybind11::list fit(const pybind11::object& loader, std::optional<std::int64_t> epochs, const FitArguments& arguments);
  // With the averages where they are kept, or with the weights that are trained.
  pybind11::dict evaluate(const pybind11::object& loader, bool averages);
  void save(const std::filesystem::path& path);
  pybind11::dict load(const std::filesystem::path& path);  // Of a folder the newest checkpoint.
  // What save() writes, as {"metadata": dict of texts, "tensors": dict of tensors}, these shared; and back.
  pybind11::dict state_dict();
  pybind11::dict load_state_dict(const pybind11::object& given);

  pybind11::dict averages() const;
  pybind11::dict swa_averages() const;
  // Between the two the model holds the averages of `kind`, "ema" or "swa", and all work but evaluate() is refused.
  // Without averages neither does anything.
  void show_averages(const std::string& kind);
  void hide_averages();

  pybind11::dict progress() const;
  pybind11::dict live() const { return live_.told(); }  // While another thread trains, too.
  // As Trainer's of these names; what is unavailable is None. The first three while another thread trains, too.
  pybind11::dict device_memory() const;
  void reset_peak_device_memory() { trainer_->reset_peak_device_memory(); }
  void save_device_memory(const std::filesystem::path& path) const;
  std::optional<std::int64_t> release_device_cache();
  pybind11::dict time_device(bool on);
  pybind11::dict device_times();
  pybind11::dict clip_report() const;
  double learning_rate();
  std::vector<double> learning_rates();
  double loss_scale() const { return trainer_->loss_scale(); }
  pybind11::dict options();
  // By part of a step, who does it: {"native": bool, "by": str, "reason": str}.
  pybind11::dict explain();

 private:
  class Busy;
  class BatchAtHand;  // Its bytes are counted while it lives.
  struct Fit;         // A call of fit().
  struct Stepped {
    at::Tensor loss{};
    std::int64_t samples = 0;
  };
  Output call_forward(const pybind11::object& batch, bool wants_named) const;
  // Of samples [begin, end) of a batch of `rows`, none of one that cannot be cut. Memory that ran out in Python is
  // c10::OutOfMemoryError, as where LibTorch ran out: Python's exception, whose frames hold the tensors of that
  // forward, is gone by then.
  Output call_part(const pybind11::object& batch, std::int64_t rows, std::int64_t begin, std::int64_t end,
                   bool wants_named = false) const;
  // Of a batch, or of parts of it within Progress::micro_batch, which the policy halve makes smaller for this batch.
  void evaluate_batch(const pybind11::object& batch, EvaluationSums& sums);
  bool halves() const { return options_.on_out_of_memory == OutOfMemoryPolicy::halve; }
  bool moves_batches() const;  // To the model's device, or to where a captured step reads them.
  MovableBatch movable(const pybind11::object& batch) const;
  bool may_cut() const;  // Whether step() may cut a batch that has rows.
  Stepped step_on(const pybind11::object& given, bool last_of_window);
  std::string device() const { return state_.parameters.front().second.device().str(); }
  void follow_optimizer();  // What Python changed of it since the last step.
  void lend_generators();
  void tell_who_updates();
  void refuse_momentum_of_own_step() const;
  void refuse_schedule_without_epochs() const;
  bool needs_run_length() const;  // The engine's own schedule, whose rates are not those of the updates alone.
  void follow_schedule(std::int64_t updates_before);
  void tell_out_of_memory(std::int64_t counted_before) const;
  pybind11::object own_optimizer() const;  // None: the engine does its update.
  using AcceptRun = std::function<void(const RunState&)>;
  // Loads what is of this model, and calls the other once it fits; nullopt: there is nothing.
  using ReadCheckpoint = std::function<std::optional<CheckpointInfo>(const std::string& model, const AcceptRun&)>;
  static void check_signals();  // Ctrl-C while C++ loops.
  void refuse_while_shown(const char* what) const;
  Shown shown_averages();  // Releases the GIL while it copies.

  // Files and dicts: module_trainer_state.cpp. `write` and `read` are called without the GIL; `what` is the method.
  std::string model_name() const;
  void save_by(const char* what, const std::function<void(const RunState&)>& write);
  void accept_run_state(const RunState& run);
  bool load_by(const char* what, const ReadCheckpoint& read);  // Whether there was something.

  // Of fit(): module_trainer_fit.cpp.
  void plan_run(const Fit& run, std::int64_t epochs);
  void check_swa_lr(const TrainOptions& swa) const;
  void open_checkpoints(Fit& run);
  void train_epochs(Fit& run, std::int64_t last, pybind11::list& results);
  void set_loaded_generators();
  pybind11::iterator begin_pass(const AnyLoader& loader);
  pybind11::iterator begin_pass_of_python(const AnyLoader& loader);
  pybind11::dict fit_epoch(Fit& run);
  void show_step(const Fit& run, const at::Tensor& loss);
  void close_epoch(Fit& run, std::int64_t last, pybind11::dict& result);
  void note_evaluation(Fit& run, const pybind11::dict& result);
  bool needs_figure() const;  // The schedule goes by the epochs' figures.
  void step_by_figure(const Fit& run, const pybind11::dict& result);
  bool has_swa_since(std::int64_t start) const;  // A mean of no epoch before this one.
  void average_epoch(const Fit& run, std::int64_t updates_before);
  void finish_swa(Fit& run, pybind11::dict& result);
  bool is_stopped(const Fit& run) const;
  void save_in_folder(Fit& run);
  void save_best_in_folder(Fit& run);

  pybind11::object model_;
  pybind11::object forward_;
  TrainOptions options_;
  LrSchedulerOptions schedule_;
  std::optional<std::int64_t> steps_;  // Of the run, when somebody said or fit() knows.
  bool knows_epochs_ = false;          // Somebody said how many epochs these are.
  std::int64_t resume_batch_ = 0;      // Where a loaded checkpoint stands in its epoch.
  // Of python/headrace/_place.py; each may be None.
  pybind11::object loaded_place_ = pybind11::none();  // Of a loaded checkpoint that no epoch has begun from yet.
  pybind11::object loader_ = pybind11::none();        // Of the last fit().
  pybind11::object pass_began_ = pybind11::none();    // Generators as they were before its epoch that is open.
  pybind11::object scheduler_ = pybind11::none();  // A TorchScheduler of python/headrace/_torch_scheduler.py, or None.
  pybind11::object swa_ = pybind11::none();        // WeightAverages of python/headrace/_weight_averages.py, or None.
  pybind11::object swa_shown_ = pybind11::none();  // What puts the weights back while the model holds those.
  FitRecord record_;
  std::filesystem::path run_folder_;  // Of the checkpoint that load() read, or where fit() wrote, last; empty: none.
  ModelState state_;
  TorchOptimizer optimizer_;
  std::unique_ptr<Trainer> trainer_;
  Accelerator* accelerator_ = nullptr;  // Of a device; nullptr: of the CPU, or there is none.
  LiveFigures live_;
  Shown shown_;
  std::atomic<bool> busy_{false};
  std::atomic<std::int64_t> batch_bytes_{0};  // Of the step that runs; a Loader counts its own batches.
  const Account batch_account_{"batches", [this] { return batch_bytes_.load(std::memory_order_relaxed); }};
};

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

// `with trainer.with_averages():`.
class AveragesBlock {
 public:
  AveragesBlock(ModuleTrainer& trainer, std::string kind) : trainer_(trainer), kind_(std::move(kind)) {}
  void enter() { trainer_.show_averages(kind_); }
  void exit() { trainer_.hide_averages(); }

 private:
  ModuleTrainer& trainer_;
  std::string kind_;
};

}  // namespace headrace::python
