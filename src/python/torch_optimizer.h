// A torch.optim.AdamW or SGD whose arithmetic headrace::Optimizer does: the same hyperparameters, the same parameters
// and, from the first update on, the same state tensors on both sides, so that state_dict() in Python is right at any
// time. Everything here but note_gradients() runs under the GIL.
#pragma once

#include <headrace/model_state.h>
#include <headrace/optimizer.h>
#include <pybind11/pybind11.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace headrace::python {

class TorchOptimizer {
 public:
  // TypeError: another class (subclasses too, as their step may differ). Error{unsupported}: hooks around its step.
  TorchOptimizer(pybind11::object optimizer, const ModelState& model);

  // The same groups, options and state. Error{invalid_argument}: a parameter that the model has not, or that is not
  // float32 on the CPU. Error{unsupported}: amsgrad, maximize, capturable, differentiable, dampening.
  Optimizer make();
  // Whether load_state_dict(), add_param_group() or a hand put other lists in the place of those make() saw.
  bool replaced() const;
  // Hyperparameters as they stand in the groups now: a scheduler of torch changes them between steps.
  void read_options(Optimizer& optimizer) const;

  // Called before an update, when gradients are there: whose state the next publish() shows. Without the GIL.
  void note_gradients(const Optimizer& optimizer);
  // Puts the state of the parameters noted into optimizer.state, as torch does at a parameter's first update.
  void publish(const Optimizer& optimizer);
  void publish_all(const Optimizer& optimizer);
  const pybind11::object& object() const { return optimizer_; }

 private:
  OptimizerOptions read_group(const pybind11::dict& group) const;
  void refuse_flag(const pybind11::dict& group, const pybind11::str& flag) const;
  void share_state(Optimizer& optimizer);

  // Keys of a group, made once: a step looks each of them up.
  struct Keys {
    pybind11::str lr = "lr", betas = "betas", eps = "eps", weight_decay = "weight_decay", fused = "fused";
    pybind11::str foreach_ = "foreach", momentum = "momentum", nesterov = "nesterov", dampening = "dampening";
    pybind11::str amsgrad = "amsgrad", maximize = "maximize", capturable = "capturable";
    pybind11::str differentiable = "differentiable", params = "params", param_groups = "param_groups", state = "state";
  };

  pybind11::object optimizer_;
  OptimizerName name_;
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
