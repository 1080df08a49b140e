#include "python/torch_optimizer.h"

#include <utility>

#include "core/base/fail.h"
#include "python/tensor_object.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

// Borrowed; nullptr: not there.
PyObject* find(const py::handle& dict, const py::handle& key) {
  PyObject* value = PyDict_GetItemWithError(dict.ptr(), key.ptr());
  if (value == nullptr && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return value;
}

double real(const py::dict& group, const py::str& key) {
  PyObject* value = find(group, key);
  if (value == nullptr) fail(ErrorCode::invalid_argument, "python: optimizer: a group without {}", std::string(key));
  const double number = PyFloat_AsDouble(value);  // A tensor too.
  if (number == -1.0 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return number;
}

bool flag(const py::dict& group, const py::str& key) {
  PyObject* value = find(group, key);
  return value != nullptr && PyObject_IsTrue(value) == 1;
}

std::size_t parameters_in(const py::list& groups, const py::str& key) {
  std::size_t count = 0;
  for (const py::handle group : groups) count += py::len(group[key]);
  return count;
}

OptimizerName name_of(const py::object& optimizer) {
  const py::object optim = py::module_::import("torch").attr("optim");
  if (py::type::of(optimizer).is(optim.attr("AdamW"))) return OptimizerName::adamw;
  if (py::type::of(optimizer).is(optim.attr("SGD"))) return OptimizerName::sgd;
  throw py::type_error(fmt::format("optimizer: wanted a torch.optim.AdamW or torch.optim.SGD, found {}",
                                   Py_TYPE(optimizer.ptr())->tp_name));
}

}  // namespace

TorchOptimizer::TorchOptimizer(py::object optimizer, const ModelState& model)
    : optimizer_(std::move(optimizer)), name_(name_of(optimizer_)) {
  for (const auto& [name, tensor] : model.parameters) names_.emplace(tensor.unsafeGetTensorImpl(), name);
  for (const char* hooks : {"_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"}) {
    if (py::len(optimizer_.attr(hooks)) > 0) {
      fail(ErrorCode::unsupported, "python: optimizer: has step hooks, which an update in C++ would not call");
    }
  }
}

void TorchOptimizer::refuse_flag(const py::dict& group, const py::str& key) const {
  if (!flag(group, key)) return;
  fail(ErrorCode::unsupported, "python: optimizer: {} with {}={} is not supported",
       name_ == OptimizerName::adamw ? "AdamW" : "SGD", std::string(key),
       std::string(py::str(py::handle(find(group, key)))));
}

OptimizerOptions TorchOptimizer::read_group(const py::dict& group) const {
  refuse_flag(group, keys_.maximize);
  refuse_flag(group, keys_.differentiable);
  OptimizerOptions options;
  options.name = name_;
  options.lr = real(group, keys_.lr);
  options.weight_decay = real(group, keys_.weight_decay);
  if (name_ == OptimizerName::adamw) {
    refuse_flag(group, keys_.amsgrad);
    refuse_flag(group, keys_.capturable);
    const auto betas = py::reinterpret_borrow<py::sequence>(find(group, keys_.betas));
    options.betas = {py::float_(betas[0]), py::float_(betas[1])};
    options.eps = real(group, keys_.eps);
  } else {
    refuse_flag(group, keys_.dampening);
    options.momentum = real(group, keys_.momentum);
    options.nesterov = flag(group, keys_.nesterov);
  }
  // Where neither is set, one tensor after the other, as torch does on a CPU.
  options.fused = flag(group, keys_.fused) ? Switch::on : Switch::off;
  options.foreach = flag(group, keys_.foreach_) ? Switch::on : Switch::off;
  return options;
}

Optimizer TorchOptimizer::make() {
  const auto groups = py::reinterpret_borrow<py::list>(optimizer_.attr(keys_.param_groups));
  std::vector<py::object> parameters;
  std::vector<ParameterGroup> made;
  for (const py::handle item : groups) {
    const auto group = py::reinterpret_borrow<py::dict>(item);
    ParameterGroup& to = made.emplace_back(ParameterGroup{{}, read_group(group)});
    for (const py::handle object : group[keys_.params]) {
      const at::Tensor parameter = tensor_of(object, "optimizer");
      const auto name = names_.find(parameter.unsafeGetTensorImpl());
      if (name == names_.end()) {
        fail(ErrorCode::invalid_argument,
             "python: optimizer: parameter {} of group {}, of shape [{}], is not a parameter of the model",
             to.parameters.size(), made.size() - 1, fmt::join(parameter.sizes(), ", "));
      }
      to.parameters.emplace_back(name->second, parameter);
      parameters.push_back(py::reinterpret_borrow<py::object>(object));
    }
  }
  Optimizer optimizer(std::move(made));
  groups_ = groups;
  state_ = optimizer_.attr(keys_.state);
  parameters_in_groups_ = parameters.size();
  parameters_ = std::move(parameters);
  share_state(optimizer);
  noted_.clear();
  return optimizer;
}

void TorchOptimizer::share_state(Optimizer& optimizer) {
  published_.assign(parameters_.size(), false);
  published_count_ = 0;
  entries_ = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    PyObject* state = find(state_, parameters_[i]);
    if (state == nullptr || PyDict_Size(state) == 0) continue;
    bool whole = true;
    for (const auto& [kind, tensor] : optimizer.state_of(i)) {
      PyObject* there = find(state, py::str(kind));
      whole = whole && there != nullptr && is_tensor(there);
      if (there != nullptr && is_tensor(there)) optimizer.share_state(i, kind, tensor_of(there, kind));
    }
    published_[i] = whole;
    if (!whole) continue;
    ++published_count_;
    ++entries_;
  }
}

bool TorchOptimizer::replaced() const {
  if (!groups_.is(optimizer_.attr(keys_.param_groups)) || !state_.is(optimizer_.attr(keys_.state))) return true;
  if (PyDict_GET_SIZE(state_.ptr()) < static_cast<Py_ssize_t>(entries_)) return true;
  return parameters_in(groups_, keys_.params) != parameters_in_groups_;
}

void TorchOptimizer::read_options(Optimizer& optimizer) const {
  for (std::size_t i = 0; i < optimizer.groups(); ++i) {
    optimizer.set_options(read_group(py::reinterpret_borrow<py::dict>(PyList_GET_ITEM(groups_.ptr(), i))), i);
  }
}

void TorchOptimizer::note_gradients(const Optimizer& optimizer) {
  if (published_count_ == published_.size()) return;
  noted_.clear();
  for (std::size_t i = 0; i < published_.size(); ++i) {
    if (!published_[i] && optimizer.parameters()[i].second.grad().defined()) noted_.push_back(i);
  }
}

void TorchOptimizer::publish(const Optimizer& optimizer) {
  if (noted_.empty()) return;
  for (const std::size_t i : noted_) {
    published_[i] = true;
    ++published_count_;
    const auto state = optimizer.state_of(i);
    if (state.empty()) continue;
    ++entries_;
    const py::object entry = state_[parameters_[i]];
    for (const auto& [kind, tensor] : state) entry[py::str(kind)] = object_of(tensor);
  }
  noted_.clear();
  // What torch.optim.lr_scheduler looks at to warn of a scheduler that steps before the optimizer.
  optimizer_.attr("_opt_called") = true;
}

void TorchOptimizer::publish_all(const Optimizer& optimizer) {
  noted_.clear();
  for (std::size_t i = 0; i < published_.size(); ++i) {
    if (!published_[i]) noted_.push_back(i);
  }
  publish(optimizer);
}

}  // namespace headrace::python
