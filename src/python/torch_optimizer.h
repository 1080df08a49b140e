// A torch.optim.Optimizer. What headrace::Optimizer can do of AdamW, Adam, SGD and RMSprop it does: the same
// hyperparameters, the same parameters and, from the first update on, the same state tensors on both sides, so that
// state_dict() in Python is right at any time. Any other steps itself, and so do these where they ask for what ours has
// not: headrace::Optimizer then has their parameters and learning rates, and no state. Everything here runs under the
// GIL, but what says that it does not.
//
// What is put in the place of a parameter's state by hand, `optimizer.state[p] = {}` or another tensor in it, is not
// seen: change state in place, or by load_state_dict(). Hooks that torch.optim keeps for all optimizers see the steps
// that an optimizer makes itself, and no others.
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
  // float32 on the CPU; state of another shape. It is then asked for again: replaced() stays as it was.
  Optimizer make();
  // Whether groups or parameters are others than make() saw, or stand elsewhere, or load_state_dict() put other lists
  // in their place, or who does the update has changed.
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

  // Hyperparameters as they stand in the groups now, which must not be replaced(): a scheduler of torch changes them
  // between steps. State that they switch on begins with what torch's optimizer has of it.
  void read_options(Optimizer& optimizer);

  // Called before an update, when gradients are there: whose state the next publish() shows. Without the GIL.
  void note_gradients(const Optimizer& optimizer);
  // Puts the state of the parameters noted into optimizer.state, as torch does at a parameter's first update; not that
  // of which no update has touched anything.
  void publish(const Optimizer& optimizer);
  void publish_all(const Optimizer& optimizer);
  const pybind11::object& object() const { return optimizer_; }

 private:
  class ScheduledRates;
  OptimizerOptions read_group(const pybind11::dict& group, bool own_step) const;
  std::string find_why_own_step() const;
  bool parameters_replaced() const;
  void note_published(std::vector<bool> published);

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
  bool on_cpu_;                        // Where the model's parameters lie.
  std::string why_own_step_;
  std::unordered_map<const void*, std::string> names_;  // Of the model's parameters, by TensorImpl.
  Keys keys_;
  pybind11::list groups_;
  pybind11::object state_;
  std::vector<pybind11::object> parameters_;  // In the order of Optimizer::parameters().
  std::vector<std::size_t> group_ends_;       // Of parameters_.
  std::size_t state_count_ = 0;               // Of the optimizer, when state was shared last.
  std::vector<bool> published_;
  std::vector<std::size_t> noted_;
  bool update_begun_ = false;  // Since the last publish().
  bool update_told_ = false;   // Whether torch's schedulers know that there was one.
  std::size_t published_count_ = 0;
  std::size_t entries_ = 0;  // Of state_, that are ours: less of them means that somebody cleared it.
};

}  // namespace headrace::python
