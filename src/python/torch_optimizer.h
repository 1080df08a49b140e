// A torch.optim.Optimizer. What headrace::Optimizer can do of AdamW, Adam, SGD and RMSprop it does: the same
// hyperparameters, the same parameters and, from the first update on, the same state tensors on both sides, so that
// state_dict() in Python is right at any time. Any other steps itself, and so do these where they ask for what ours has
// not: headrace::Optimizer then has their parameters and learning rates, and no state. Everything here runs under the
// GIL, but what says that it does not.
#pragma once

#include <headrace/model_state.h>
#include <headrace/optimizer.h>
#include <pybind11/pybind11.h>

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace headrace::python {

class TorchOptimizer {
 public:
  // TypeError: no torch.optim.Optimizer. Error{unsupported}: its step() must be given something, as LBFGS a closure.
  TorchOptimizer(pybind11::object optimizer, const ModelState& model);

  // The same groups, options and state. Error{invalid_argument}: a parameter that the model has not, or that is not
  // float32 on the CPU.
  Optimizer make();
  // Whether load_state_dict(), add_param_group() or a hand put other lists in the place of those make() saw, or who
  // does the update has changed.
  bool replaced() const;
  // As make() found it: why its own step() does the update, a sentence; empty: ours does it.
  const std::string& why_own_step() const { return why_own_step_; }
  // "torch.optim.adagrad.Adagrad".
  std::string class_name() const;

  // Its own step(), at the rates that the schedule makes of its groups'; afterwards these are as before. What it raises
  // goes on. Without the GIL.
  void step(const std::function<double(double)>& scheduled);
  // What it returns puts its state back to where it is now, as often as it is called. Both without the GIL.
  std::function<void()> keep_state();

  // Hyperparameters as they stand in the groups now: a scheduler of torch changes them between steps.
  void read_options(Optimizer& optimizer) const;

  // Called before an update, when gradients are there: whose state the next publish() shows. Without the GIL.
  void note_gradients(const Optimizer& optimizer);
  // Puts the state of the parameters noted into optimizer.state, as torch does at a parameter's first update.
  void publish(const Optimizer& optimizer);
  void publish_all(const Optimizer& optimizer);
  const pybind11::object& object() const { return optimizer_; }

 private:
  class ScheduledRates;
  OptimizerOptions read_group(const pybind11::dict& group) const;
  std::string find_why_own_step() const;
  void share_state(Optimizer& optimizer);

  // Keys of a group, made once: a step looks each of them up.
  struct Keys {
    pybind11::str lr = "lr", betas = "betas", eps = "eps", weight_decay = "weight_decay", fused = "fused";
    pybind11::str foreach_ = "foreach", momentum = "momentum", nesterov = "nesterov", dampening = "dampening";
    pybind11::str amsgrad = "amsgrad", maximize = "maximize", capturable = "capturable";
    pybind11::str alpha = "alpha", centered = "centered", decoupled_weight_decay = "decoupled_weight_decay";
    pybind11::str differentiable = "differentiable", params = "params", param_groups = "param_groups", state = "state";
  };

  pybind11::object optimizer_;
  std::optional<OptimizerName> name_;  // nullopt: ours has no such class.
  std::string why_own_step_;
  std::unordered_map<const void*, std::string> names_;  // Of the model's parameters, by TensorImpl.
  Keys keys_;
  pybind11::list groups_;
  pybind11::object state_;
  std::size_t parameters_in_groups_ = 0;
  std::vector<pybind11::object> parameters_;  // In the order of Optimizer::parameters().
  std::vector<bool> published_;
  std::vector<std::size_t> noted_;
  std::size_t published_count_ = 0;
  std::size_t entries_ = 0;  // Of state_, that are ours: less of them means that somebody cleared it.
};

}  // namespace headrace::python
