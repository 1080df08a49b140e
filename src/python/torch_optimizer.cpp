#include "python/torch_optimizer.h"

#include <c10/core/GradMode.h>

#include <algorithm>
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

// Borrowed.
PyObject* found(const py::dict& group, const py::str& key) {
  PyObject* value = find(group, key);
  if (value == nullptr) fail(ErrorCode::invalid_argument, "python: optimizer: a group without {}", std::string(key));
  return value;
}

double real(const py::dict& group, const py::str& key) {
  const double number = PyFloat_AsDouble(found(group, key));  // A tensor too.
  if (number == -1.0 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return number;
}

bool flag(const py::dict& group, const py::str& key) {
  PyObject* value = find(group, key);
  const int is_true = value == nullptr ? 0 : PyObject_IsTrue(value);
  if (is_true < 0) throw py::error_already_set();
  return is_true == 1;
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
  for (const char* name : {"_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"}) {
    const py::object hooks = py::getattr(optimizer, name, py::none());
    if (!hooks.is_none() && py::len(hooks) > 0) return true;
  }
  return false;
}

// Whether it is as it began: +0 alone.
bool is_untouched(const std::vector<std::pair<std::string, at::Tensor>>& state) {
  return std::none_of(state.begin(), state.end(), [](const std::pair<std::string, at::Tensor>& kind) {
    return kind.second.view(at::kInt).any().item<bool>();
  });
}

// Makes torch's state tensors those of `optimizer`, and says by parameter whether torch has all of them.
std::vector<bool> share_state(Optimizer& optimizer, const py::object& states,
                              const std::vector<py::object>& parameters) {
  std::vector<bool> whole(parameters.size(), false);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    PyObject* state = find(states, parameters[i]);
    if (state == nullptr || PyDict_Size(state) == 0) continue;
    whole[i] = true;
    for (const auto& [kind, ours] : optimizer.state_of(i)) {
      PyObject* tensor = find(state, py::str(kind));
      if (tensor != nullptr && is_tensor(tensor)) {
        optimizer.share_state(i, kind, tensor_of(tensor, kind));
      } else {
        whole[i] = false;
      }
    }
  }
  return whole;
}

// By the class's step(), as a scheduler puts a function of another signature in the object's.
void refuse_step_that_wants_more(const py::object& optimizer) {
  const py::object signature = py::module_::import("inspect").attr("signature")(py::type::of(optimizer).attr("step"));
  bool is_self = true;
  for (const py::handle parameter : signature.attr("parameters").attr("values")()) {
    if (std::exchange(is_self, false)) continue;
    const bool is_collected = py::str(parameter).cast<std::string>().starts_with('*');
    if (is_collected || !parameter.attr("default").is(parameter.attr("empty"))) continue;
    fail(
        ErrorCode::unsupported,
        "python: optimizer: the step() of {} wants {}, as it evaluates the model itself; wanted one that takes nothing",
        std::string(Py_TYPE(optimizer.ptr())->tp_name), std::string(py::str(parameter.attr("name"))));
  }
}

}  // namespace

// The groups' rates are the scheduled ones for its life. All are read before the first is put: groups may have one
// tensor between them.
class TorchOptimizer::ScheduledRates {
 public:
  ScheduledRates(const py::list& groups, const py::str& key, const std::function<double(double)>& scheduled)
      : key_(key) {
    for (const py::handle item : groups) {
      const auto group = py::reinterpret_borrow<py::dict>(item);
      PyObject* rate = find(group, key_);
      if (rate == nullptr || rate == Py_None) continue;  // One that finds its rates itself.
      const double base = real(group, key_), lr = scheduled(base);
      if (lr != base) rates_.push_back({group, py::reinterpret_borrow<py::object>(rate), base, lr});
    }
    try {
      for (; put_ < rates_.size(); ++put_) put(rates_[put_], rates_[put_].lr);
    } catch (...) {
      put_back();
      throw;
    }
  }
  ~ScheduledRates() { put_back(); }
  ScheduledRates(const ScheduledRates&) = delete;
  ScheduledRates& operator=(const ScheduledRates&) = delete;

 private:
  struct Rate {
    py::dict group;
    py::object kept;
    double base, lr;
  };

  // nullopt: the kept one. A rate that is a tensor stays the same tensor, which a compiled step holds.
  void put(const Rate& rate, std::optional<double> lr) const {
    if (is_tensor(rate.kept)) {
      const c10::AutoGradMode no_graph(false);
      tensor_of(rate.kept, "lr").fill_(lr.value_or(rate.base));
    } else {
      rate.group[key_] = lr ? py::object(py::float_(*lr)) : rate.kept;
    }
  }

  void put_back() const {
    for (std::size_t i = 0; i < put_; ++i) put(rates_[i], std::nullopt);
  }

  const py::str& key_;
  std::vector<Rate> rates_;
  std::size_t put_ = 0;  // How many of them are the scheduled ones.
};

TorchOptimizer::TorchOptimizer(py::object optimizer, const ModelState& model)
    : optimizer_(std::move(optimizer)),
      name_(name_of(optimizer_)),
      on_cpu_(model.parameters.empty() || model.parameters.front().second.is_cpu()) {
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
  if (!on_cpu_ && name_ == OptimizerName::rmsprop) return "the engine's RMSprop is for parameters on the CPU";
  for (const py::handle item : groups) {
    const auto group = py::reinterpret_borrow<py::dict>(item);
    if (!on_cpu_ && name_ == OptimizerName::sgd && real(group, keys_.dampening) != 0) {
      return "the engine's dampening is for parameters on the CPU";
    }
    for (const py::str* key : {&keys_.differentiable, &keys_.capturable, &keys_.decoupled_weight_decay}) {
      const bool is_meant = (key == &keys_.decoupled_weight_decay && name_ == OptimizerName::adamw) ||
                            (key == &keys_.capturable && !on_cpu_);
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
    const py::error_scope raised;  // By a hook of the backward that this undoes: torch has set it.
    (*kept)();
  };
}

OptimizerOptions TorchOptimizer::read_group(const py::dict& group, bool own_step) const {
  OptimizerOptions options;
  if (own_step) {  // Plain gradient descent, which keeps no state, and is never asked to step.
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
      const auto betas = py::reinterpret_borrow<py::sequence>(found(group, keys_.betas));
      options.betas = {py::float_(betas[0]), py::float_(betas[1])};
      options.eps = real(group, keys_.eps);
      options.amsgrad = flag(group, keys_.amsgrad);
      break;
    }
    case OptimizerName::sgd:
      options.momentum = real(group, keys_.momentum);
      options.dampening = real(group, keys_.dampening);
      options.nesterov = flag(group, keys_.nesterov) && options.momentum != 0;  // As torch, where momentum ends later.
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
  std::string why_own_step = find_why_own_step();
  const bool own_step = !why_own_step.empty();
  std::vector<py::object> parameters;
  std::vector<std::size_t> group_ends;
  std::vector<ParameterGroup> made;
  for (const py::handle item : groups) {
    const auto group = py::reinterpret_borrow<py::dict>(item);
    ParameterGroup& to = made.emplace_back(ParameterGroup{{}, read_group(group, own_step)});
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
    group_ends.push_back(parameters.size());
  }
  Optimizer optimizer(std::move(made));
  py::object state = optimizer_.attr(keys_.state);
  std::vector<bool> published;  // Of none, where torch's has its state and ours none.
  if (!own_step) published = share_state(optimizer, state, parameters);
  // Nothing throws from here on: what did before leaves this as it was.
  why_own_step_ = std::move(why_own_step);
  groups_ = groups;
  state_ = std::move(state);
  parameters_ = std::move(parameters);
  group_ends_ = std::move(group_ends);
  state_count_ = optimizer.state_count();
  note_published(std::move(published));
  noted_.clear();
  update_begun_ = update_told_ = false;
  return optimizer;
}

void TorchOptimizer::note_published(std::vector<bool> published) {
  published_ = std::move(published);
  published_count_ = static_cast<std::size_t>(std::count(published_.begin(), published_.end(), true));
  entries_ = published_count_;
}

bool TorchOptimizer::replaced() const {
  if (why_own_step_ != find_why_own_step()) return true;
  if (!groups_.is(optimizer_.attr(keys_.param_groups)) || parameters_replaced()) return true;
  if (!why_own_step_.empty()) return false;
  if (!state_.is(optimizer_.attr(keys_.state))) return true;
  return PyDict_GET_SIZE(state_.ptr()) < static_cast<Py_ssize_t>(entries_);
}

bool TorchOptimizer::parameters_replaced() const {
  if (py::len(groups_) != group_ends_.size()) return true;
  std::size_t place = 0;
  for (std::size_t g = 0; g < group_ends_.size(); ++g) {
    const auto group = py::reinterpret_borrow<py::dict>(PyList_GET_ITEM(groups_.ptr(), g));
    for (const py::handle parameter : group[keys_.params]) {
      if (place == group_ends_[g] || !parameters_[place].is(parameter)) return true;
      ++place;
    }
    if (place != group_ends_[g]) return true;
  }
  return false;
}

void TorchOptimizer::read_options(Optimizer& optimizer) {
  const bool own_step = !why_own_step_.empty();
  for (std::size_t i = 0; i < optimizer.groups(); ++i) {
    const auto group = py::reinterpret_borrow<py::dict>(PyList_GET_ITEM(groups_.ptr(), i));
    optimizer.set_options(read_group(group, own_step), i);
  }
  if (optimizer.state_count() == state_count_) return;
  note_published(share_state(optimizer, state_, parameters_));
  state_count_ = optimizer.state_count();
}

void TorchOptimizer::note_gradients(const Optimizer& optimizer) {
  update_begun_ = true;
  noted_.clear();
  if (published_count_ == published_.size()) return;
  for (std::size_t i = 0; i < published_.size(); ++i) {
    if (!published_[i] && optimizer.parameters()[i].second.grad().defined()) noted_.push_back(i);
  }
}

void TorchOptimizer::publish(const Optimizer& optimizer) {
  for (const std::size_t i : noted_) {
    const auto state = optimizer.state_of(i);
    if (!state.empty() && is_untouched(state)) continue;
    published_[i] = true;
    ++published_count_;
    if (state.empty()) continue;
    ++entries_;
    const py::object entry = state_[parameters_[i]];
    for (const auto& [kind, tensor] : state) entry[py::str(kind)] = object_of(tensor);
  }
  noted_.clear();
  if (!std::exchange(update_begun_, false) || update_told_ || !why_own_step_.empty()) return;
  // What torch.optim.lr_scheduler looks at to warn of a scheduler that steps before the optimizer.
  optimizer_.attr("_opt_called") = true;
  update_told_ = true;
}

void TorchOptimizer::publish_all(const Optimizer& optimizer) {
  noted_.clear();
  for (std::size_t i = 0; i < published_.size(); ++i) {
    if (!published_[i]) noted_.push_back(i);
  }
  publish(optimizer);
}

}  // namespace headrace::python
