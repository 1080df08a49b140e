#include "python/torch_optimizer.h"

#include <c10/core/GradMode.h>

#include <memory>
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

// A subclass is another class: its step may differ.
std::optional<OptimizerName> name_of(const py::object& optimizer) {
  const py::object optim = py::module_::import("torch").attr("optim");
  if (!py::isinstance(optimizer, optim.attr("Optimizer"))) {
    throw py::type_error(
        fmt::format("optimizer: wanted a torch.optim.Optimizer, found {}", Py_TYPE(optimizer.ptr())->tp_name));
  }
  const py::type type = py::type::of(optimizer);
  if (type.is(optim.attr("AdamW"))) return OptimizerName::adamw;
  if (type.is(optim.attr("Adam"))) return OptimizerName::adam;
  if (type.is(optim.attr("SGD"))) return OptimizerName::sgd;
  if (type.is(optim.attr("RMSprop"))) return OptimizerName::rmsprop;
  return std::nullopt;
}

// Those of one optimizer; torch has hooks of all optimizers besides, which are none of this one's.
bool has_step_hooks(const py::object& optimizer) {
  for (const char* hooks : {"_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"}) {
    const py::object found = py::getattr(optimizer, hooks, py::none());
    if (!found.is_none() && py::len(found) > 0) return true;
  }
  return false;
}

void refuse_step_that_wants_more(const py::object& optimizer) {
  const py::object signature = py::module_::import("inspect").attr("signature")(optimizer.attr("step"));
  for (const py::handle parameter : signature.attr("parameters").attr("values")()) {
    const bool is_collected = py::str(parameter).cast<std::string>().starts_with('*');
    if (is_collected || !parameter.attr("default").is(parameter.attr("empty"))) continue;
    fail(
        ErrorCode::unsupported,
        "python: optimizer: the step() of {} wants {}, as it evaluates the model itself; wanted one that takes nothing",
        std::string(Py_TYPE(optimizer.ptr())->tp_name), std::string(py::str(parameter.attr("name"))));
  }
}

}  // namespace

// The groups' rates are the scheduled ones for its life.
class TorchOptimizer::ScheduledRates {
 public:
  ScheduledRates(const py::list& groups, const py::str& key, const std::function<double(double)>& scheduled)
      : key_(key) {
    for (const py::handle group : groups) {
      PyObject* found = find(group, key_);
      if (found == nullptr || found == Py_None) continue;  // One that finds its rates itself.
      const double base = real(py::reinterpret_borrow<py::dict>(group), key_), lr = scheduled(base);
      if (lr == base) continue;
      kept_.push_back({py::reinterpret_borrow<py::dict>(group), py::reinterpret_borrow<py::object>(found), base});
      put(kept_.back(), lr);
    }
  }
  ~ScheduledRates() {
    for (const Kept& kept : kept_) put(kept, std::nullopt);
  }
  ScheduledRates(const ScheduledRates&) = delete;
  ScheduledRates& operator=(const ScheduledRates&) = delete;

 private:
  struct Kept {
    py::dict group;
    py::object rate;
    double base;
  };

  // nullopt: the kept one. A rate that is a tensor stays the same tensor, which a compiled step holds.
  void put(const Kept& kept, std::optional<double> lr) const {
    if (is_tensor(kept.rate)) {
      const c10::AutoGradMode no_graph(false);
      tensor_of(kept.rate, "lr").fill_(lr.value_or(kept.base));
    } else {
      kept.group[key_] = lr ? py::object(py::float_(*lr)) : kept.rate;
    }
  }

  const py::str& key_;
  std::vector<Kept> kept_;
};

TorchOptimizer::TorchOptimizer(py::object optimizer, const ModelState& model)
    : optimizer_(std::move(optimizer)), name_(name_of(optimizer_)) {
  for (const auto& [name, tensor] : model.parameters) names_.emplace(tensor.unsafeGetTensorImpl(), name);
  refuse_step_that_wants_more(optimizer_);
}

std::string TorchOptimizer::class_name() const {
  const py::object type = py::type::of(optimizer_);
  return fmt::format("{}.{}", type.attr("__module__").cast<std::string>(),
                     type.attr("__qualname__").cast<std::string>());
}

// Asked at each step: it makes no text where ours does the update.
std::string TorchOptimizer::find_why_own_step() const {
  if (!name_) return fmt::format("the engine has AdamW, Adam, SGD and RMSprop, not {}", class_name());
  if (has_step_hooks(optimizer_)) return "it has step hooks, which its own step() calls";
  const auto groups = py::reinterpret_borrow<py::list>(optimizer_.attr(keys_.param_groups));
  for (const py::handle item : groups) {
    const auto group = py::reinterpret_borrow<py::dict>(item);
    for (const py::str* key : {&keys_.differentiable, &keys_.capturable, &keys_.decoupled_weight_decay}) {
      const bool is_meant = key == &keys_.decoupled_weight_decay && name_ == OptimizerName::adamw;
      if (is_meant || !flag(group, *key)) continue;
      return fmt::format("the engine's {} has no {}={}", Py_TYPE(optimizer_.ptr())->tp_name, std::string(*key),
                         std::string(py::str(py::handle(find(group, *key)))));
    }
  }
  return {};
}

void TorchOptimizer::step(const std::function<double(double)>& scheduled) {
  const py::gil_scoped_acquire gil;
  const ScheduledRates rates(groups_, keys_.lr, scheduled);
  optimizer_.attr("step")();
}

std::function<void()> TorchOptimizer::keep_state() {
  const py::gil_scoped_acquire gil;
  const py::object put_back = py::module_::import("headrace._run_state").attr("keep")(optimizer_);
  // Owners: the copies of what is returned, which may end without the GIL.
  const std::shared_ptr<py::object> kept(new py::object(put_back), [](const py::object* held) {
    const py::gil_scoped_acquire again;
    delete held;
  });
  return [kept] {
    const py::gil_scoped_acquire again;
    (*kept)();
  };
}

OptimizerOptions TorchOptimizer::read_group(const py::dict& group) const {
  OptimizerOptions options;
  if (!why_own_step_.empty()) {  // Plain gradient descent, which keeps no state, and is never asked to step.
    options.name = OptimizerName::sgd;
    options.momentum = 0.0;
    PyObject* lr = find(group, keys_.lr);
    options.lr = lr == nullptr || lr == Py_None ? 0.0 : real(group, keys_.lr);
    return options;
  }
  options.name = name_.value();
  options.lr = real(group, keys_.lr);
  options.weight_decay = real(group, keys_.weight_decay);
  options.maximize = flag(group, keys_.maximize);
  switch (*name_) {
    case OptimizerName::adamw:
    case OptimizerName::adam: {
      const auto betas = py::reinterpret_borrow<py::sequence>(find(group, keys_.betas));
      options.betas = {py::float_(betas[0]), py::float_(betas[1])};
      options.eps = real(group, keys_.eps);
      options.amsgrad = flag(group, keys_.amsgrad);
      break;
    }
    case OptimizerName::sgd:
      options.momentum = real(group, keys_.momentum);
      options.dampening = real(group, keys_.dampening);
      options.nesterov = flag(group, keys_.nesterov);
      break;
    case OptimizerName::rmsprop:
      options.momentum = real(group, keys_.momentum);
      options.alpha = real(group, keys_.alpha);
      options.eps = real(group, keys_.eps);
      options.centered = flag(group, keys_.centered);
      break;
  }
  // Where neither is set, one tensor after the other, as torch does on a CPU.
  options.fused = flag(group, keys_.fused) ? Switch::on : Switch::off;
  options.foreach = flag(group, keys_.foreach_) ? Switch::on : Switch::off;
  return options;
}

Optimizer TorchOptimizer::make() {
  const auto groups = py::reinterpret_borrow<py::list>(optimizer_.attr(keys_.param_groups));
  why_own_step_ = find_why_own_step();
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
  if (!why_own_step_.empty()) {  // It has its state, and ours none.
    published_.clear();
    return;
  }
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
  if (why_own_step_ != find_why_own_step()) return true;
  if (!groups_.is(optimizer_.attr(keys_.param_groups))) return true;
  if (!why_own_step_.empty()) return parameters_in(groups_, keys_.params) != parameters_in_groups_;
  if (!state_.is(optimizer_.attr(keys_.state))) return true;
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
