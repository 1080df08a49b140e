// headrace.Trainer: the C++ engine over a torch.nn.Module, a torch.optim optimizer and a forward in Python. Methods are
// called under the GIL and let go of it while C++ works; only forward, the loader and callbacks hold it.
#pragma once

#include <headrace/trainer.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/memory/accounts.h"
#include "python/any_loader.h"
#include "python/torch_optimizer.h"

namespace headrace::python {

// What fit() calls; each may be None.
struct FitCallbacks {
  pybind11::object on_step;   // on_step(loss) after each batch.
  pybind11::object on_epoch;  // on_epoch(result) after each epoch, evaluation included.
};

class ModuleTrainer {
 public:
  // `keywords`: those of TrainOptions that concern a step, schedule as a name or a dict of LrSchedulerOptions, and
  // steps, the optimizer steps of the whole run where a schedule needs to know.
  ModuleTrainer(pybind11::object model, pybind11::object optimizer, pybind11::object forward,
                const pybind11::dict& keywords);
  ModuleTrainer(const ModuleTrainer&) = delete;
  ModuleTrainer& operator=(const ModuleTrainer&) = delete;

  pybind11::object step(const pybind11::object& batch, bool last_of_window);
  void finish_window();
  pybind11::list fit(const pybind11::object& loader, std::optional<std::int64_t> epochs,
                     const pybind11::object& evaluate_on, const FitCallbacks& callbacks);
  pybind11::dict evaluate(const pybind11::object& loader);
  void save(const std::filesystem::path& path);
  pybind11::dict load(const std::filesystem::path& path);

  pybind11::dict progress() const;
  double learning_rate();
  double loss_scale() const { return trainer_->loss_scale(); }
  pybind11::dict options();

 private:
  class Busy;
  class BatchAtHand;  // Its bytes are counted while it lives.
  Output call_forward(const pybind11::object& batch) const;
  at::Tensor step_on(const pybind11::object& batch, bool last_of_window);
  void follow_optimizer();  // What Python changed of it since the last step.
  void plan_run(const AnyLoader& loader, std::int64_t epochs);
  pybind11::iterator begin_pass(const AnyLoader& loader);
  pybind11::iterator begin_pass_of_python(const AnyLoader& loader);
  pybind11::dict fit_epoch(const AnyLoader& loader, const FitCallbacks& callbacks);
  std::string model_name() const;

  pybind11::object model_;
  pybind11::object forward_;
  TrainOptions options_;
  LrSchedulerOptions schedule_;
  std::optional<std::int64_t> steps_;  // Of the run, when somebody said or fit() knows.
  std::int64_t resume_batch_ = 0;      // Where a loaded checkpoint stands in its epoch.
  // Of python/headrace/_place.py; each may be None.
  pybind11::object loaded_place_ = pybind11::none();  // Of a loaded checkpoint that no epoch has begun from yet.
  pybind11::object loader_ = pybind11::none();        // Of the last fit().
  pybind11::object pass_began_ = pybind11::none();    // Generators as they were before its epoch that is open.
  ModelState state_;
  TorchOptimizer optimizer_;
  std::unique_ptr<Trainer> trainer_;
  std::atomic<bool> busy_{false};
  std::atomic<std::int64_t> batch_bytes_{0};  // Of the step that runs; a Loader counts its own batches.
  const Account batch_account_{"batches", [this] { return batch_bytes_.load(std::memory_order_relaxed); }};
};

}  // namespace headrace::python
