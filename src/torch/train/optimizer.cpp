#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <headrace/optimizer.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "core/base/fail.h"
#include "torch/train/detail/update.h"
#include "torch/train/detail/update_walk.h"

namespace headrace {
namespace {

// State of parameters of at most so many elements lies in one block: an update of many of them walks through memory.
constexpr std::int64_t kSmall = 4096;
constexpr std::int64_t kCacheLine = 64 / sizeof(float);

std::vector<StateKind> state_kinds(const OptimizerOptions& options) {
  if (options.name == OptimizerName::sgd) return sgd_state(options);
  if (options.name == OptimizerName::rmsprop) return rmsprop_state(options);
  return adam_state(options);
}

bool same_state(const OptimizerOptions& a, const OptimizerOptions& b) {
  const std::vector<StateKind> of_a = state_kinds(a), of_b = state_kinds(b);
  return std::equal(
      of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
      [](const StateKind& one, const StateKind& other) { return std::string_view{one.name} == other.name; });
}

void update(UpdateLists& lists, const OptimizerOptions& options, double lr) {
  switch (options.name) {
    case OptimizerName::adamw:
    case OptimizerName::adam:
      return update_adam(lists, options, lr);
    case OptimizerName::sgd:
      return update_sgd(lists, options, lr);
    case OptimizerName::rmsprop:
      return update_rmsprop(lists, options, lr);
  }
}

// Whether they make the same of the same rate.
bool same_update(const OptimizerOptions& a, const OptimizerOptions& b) {
  // What groups differ in, before anything is copied.
  if (a.weight_decay != b.weight_decay || a.momentum != b.momentum || a.betas != b.betas) return false;
  OptimizerOptions same = b;
  same.lr = a.lr;
  same.decay_mult_1d = a.decay_mult_1d;
  same.layer_decay = a.layer_decay;
  same.group = a.group;
  return a == same;
}

void check_count(const char* what, std::size_t found, std::size_t parameters) {
  if (found == 0 || found == parameters) return;
  fail(ErrorCode::invalid_argument, "train: wanted one {} for each of {} parameters, found {}", what, parameters,
       found);
}

void check_options(const OptimizerOptions& options) {
  const bool has_betas = options.name == OptimizerName::adamw || options.name == OptimizerName::adam;
  if (has_betas && options.betas.size() != 2) {
    fail(ErrorCode::invalid_argument, "train: optimizer.betas: wanted two numbers, found {}", options.betas.size());
  }
  if (options.name == OptimizerName::sgd && options.nesterov && options.momentum == 0) {
    fail(ErrorCode::invalid_argument, "train: optimizer.momentum: wanted a number above 0 with nesterov, found 0");
  }
}

// Thread-safe.
std::uint64_t next_identity() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

// "sparse Float [3, 4] on cpu".
std::string described(const at::Tensor& tensor) {
  if (!tensor.defined()) return "none";
  return fmt::format("{}{} [{}] on {}", tensor.layout() == at::kStrided ? "" : "sparse ",
                     c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "), tensor.device().str());
}

// Of an average that lies as its parameter; else nullptr.
float* elements_beside(const at::Tensor& average, const at::Tensor& parameter) {
  if (!average.defined() || average.is_neg() || !same_layout(average, parameter)) return nullptr;
  return average.mutable_data_ptr<float>();
}

// Zeros of one kind of state for many parameters.
class StateBlock {
 public:
  // 0: its tensor has memory of its own.
  static std::int64_t floats_of(const at::Tensor& parameter, bool scalar) {
    if (scalar) return 1;
    if (parameter.numel() > kSmall || !parameter.is_non_overlapping_and_dense()) return 0;
    return (parameter.numel() + kCacheLine - 1) / kCacheLine * kCacheLine;
  }

  StateBlock(std::int64_t floats, c10::Device device)
      : memory_(at::zeros({floats}, at::TensorOptions(at::kFloat).device(device))) {}

  at::Tensor take(const at::Tensor& parameter, bool scalar) {
    const std::int64_t floats = floats_of(parameter, scalar);
    if (floats == 0) return at::zeros_like(parameter);
    const at::AutoDispatchBelowADInplaceOrView no_view;  // For autograd it is a tensor of its own.
    const at::IntArrayRef sizes = scalar ? at::IntArrayRef{} : parameter.sizes();
    const at::IntArrayRef strides = scalar ? at::IntArrayRef{} : parameter.strides();
    used_ += floats;
    return at::as_strided(memory_, sizes, strides, used_ - floats);
  }

 private:
  at::Tensor memory_;
  std::int64_t used_ = 0;
};

// Empties lists at the end of a scope, by an error too: or gradients would outlive zero_gradients().
class EmptiedLists {
 public:
  explicit EmptiedLists(UpdateLists& lists) : lists_(lists) {}
  ~EmptiedLists() {
    lists_.parameters.clear();
    lists_.gradients.clear();
    for (std::vector<at::Tensor>& tensors : lists_.state) tensors.clear();
  }
  EmptiedLists(const EmptiedLists&) = delete;
  EmptiedLists& operator=(const EmptiedLists&) = delete;

 private:
  UpdateLists& lists_;
};

}  // namespace

float count_step(const at::Tensor& step) {
  return *step.mutable_data_ptr<float>() += 1.0F;
}

void count_write(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  for (std::int64_t i = 0; i < a.dim(); ++i) {
    if (a.size(i) != 1 && a.stride(i) != b.stride(i)) return false;
  }
  return true;
}

Optimizer::Optimizer(std::vector<std::pair<std::string, at::Tensor>> parameters, OptimizerOptions options)
    : Optimizer(std::vector<ParameterGroup>{{std::move(parameters), options}}) {}

Optimizer::Optimizer(std::vector<ParameterGroup> groups) {
  if (groups.empty()) fail(ErrorCode::invalid_argument, "train: an optimizer needs a group of parameters");
  for (const ParameterGroup& group : groups) {
    if (group.parameters.empty() || !group.parameters.front().second.defined()) continue;
    const c10::Device device = group.parameters.front().second.device();
    if (device.is_cpu() || device.is_cuda()) device_ = device;
    break;
  }
  identity_ = next_identity();
  std::unordered_map<const at::TensorImpl*, std::size_t> known;  // Places in parameters_.
  for (ParameterGroup& from : groups) {
    check_options(from.options);
    check_options_for_device(from.options);
    if (from.options.name != groups.front().options.name) {
      fail(ErrorCode::invalid_argument, "train: wanted all groups of an optimizer to be of one kind");
    }
    Group group;
    group.options = from.options;
    group.lr_mult = from.lr_mult;
    group.begin = parameters_.size();
    for (auto& [name, parameter] : from.parameters) {
      check_parameter(name, parameter);
      const auto [same, is_first] = known.emplace(parameter.unsafeGetTensorImpl(), parameters_.size());
      if (!is_first) {
        fail(ErrorCode::invalid_argument, "train: parameter {}: wanted each parameter once, found it as {} before",
             name, parameters_[same->second].first);
      }
      parameters_.emplace_back(std::move(name), std::move(parameter));
    }
    group.end = parameters_.size();
    groups_.push_back(std::move(group));
  }
  add_missing_state();
}

void Optimizer::add_missing_state() {
  c10::AutoGradMode no_graph(false);
  struct Missing {
    StateKind kind;
    std::vector<Group*> groups;
    std::int64_t floats = 0;
  };
  std::vector<Missing> all;
  for (Group& group : groups_) {
    for (const StateKind& kind : state_kinds(group.options)) {
      const std::vector<std::string>& names = group.state_names;
      if (std::find(names.begin(), names.end(), kind.name) != names.end()) continue;
      auto of_kind = std::find_if(all.begin(), all.end(), [&](const Missing& missing) {
        return std::string_view{missing.kind.name} == kind.name;
      });
      if (of_kind == all.end()) of_kind = all.insert(all.end(), Missing{kind, {}});
      of_kind->groups.push_back(&group);
      for (std::size_t i = group.begin; i < group.end; ++i) {
        of_kind->floats += StateBlock::floats_of(parameters_[i].second, kind.scalar);
      }
    }
  }
  for (const Missing& missing : all) {
    StateBlock block(missing.floats, device_);
    for (Group* group : missing.groups) {
      group->state_names.emplace_back(missing.kind.name);
      std::vector<at::Tensor>& tensors = group->state.emplace_back();
      for (std::size_t i = group->begin; i < group->end; ++i) {
        tensors.push_back(block.take(parameters_[i].second, missing.kind.scalar));
      }
    }
  }
  for (Group& group : groups_) {
    group.used.clear();
    for (const StateKind& kind : state_kinds(group.options)) {
      const auto found = std::find(group.state_names.begin(), group.state_names.end(), kind.name);
      group.used.push_back(static_cast<std::size_t>(found - group.state_names.begin()));
    }
  }
}

void Optimizer::find_likes() {
  std::vector<std::size_t> firsts;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const auto first = std::find_if(firsts.begin(), firsts.end(), [&](std::size_t other) {
      return same_update(groups_[other].options, groups_[i].options);
    });
    groups_[i].like = first == firsts.end() ? i : *first;
    if (first == firsts.end()) firsts.push_back(i);
  }
  likes_known_ = true;
}

bool Optimizer::is_float32_here(const at::Tensor& tensor) const {
  return tensor.defined() && tensor.scalar_type() == at::kFloat && tensor.device() == device_;
}

void Optimizer::check_parameter(const std::string& name, const at::Tensor& parameter) const {
  if (is_float32_here(parameter) && parameter.layout() == at::kStrided) return;
  fail(ErrorCode::invalid_argument, "train: parameter {}: wanted float32 {}, found {}", name, place(),
       described(parameter));
}

void Optimizer::check_gradient(const std::string& name, const at::Tensor& gradient, const at::Tensor& parameter,
                               const OptimizerOptions& options, bool must_be_dense) const {
  const bool may_be_sparse = is_on_cpu() && !must_be_dense && options.name == OptimizerName::sgd &&
                             options.weight_decay == 0 && !options.nesterov;
  const bool is_laid = gradient.layout() == at::kStrided || (may_be_sparse && gradient.layout() == at::kSparse);
  if (is_laid && is_float32_here(gradient) && gradient.sizes() == parameter.sizes()) return;
  fail(ErrorCode::invalid_argument, "train: parameter {}: wanted a {}gradient for {}, float32 [{}] {}, found {}", name,
       may_be_sparse ? "" : "dense ", choice_name(options.name), fmt::join(parameter.sizes(), ", "), place(),
       described(gradient));
}

void Optimizer::check_average(const std::string& name, const at::Tensor& average, const at::Tensor& parameter) const {
  if (is_float32_here(average) && average.layout() == at::kStrided && average.sizes() == parameter.sizes()) return;
  fail(ErrorCode::invalid_argument, "train: parameter {}: wanted an average of it, float32 [{}] {}, found {}", name,
       fmt::join(parameter.sizes(), ", "), place(), described(average));
}

std::string Optimizer::why_not_on_device(const OptimizerOptions& options) {
  if (options.name == OptimizerName::rmsprop) return "RMSprop";
  const bool damps = options.name == OptimizerName::sgd && options.momentum != 0 && options.dampening != 0;
  return damps ? "SGD with dampening" : "";
}

void Optimizer::check_options_for_device(const OptimizerOptions& options) const {
  const std::string kind = is_on_cpu() ? "" : why_not_on_device(options);
  if (!kind.empty()) fail(ErrorCode::unsupported, "train: optimizer: {} is there for parameters on the CPU", kind);
}

void Optimizer::step(double lr, const UpdateExtras& extras) {
  step([lr](double) { return lr; }, extras);
}

void Optimizer::step(const std::function<double(double)>& scheduled, const UpdateExtras& extras) {
  c10::AutoGradMode no_graph(false);
  check_update(extras);
  if (!likes_known_) find_likes();
  UpdateWalk walk(extras, parameters_.size());
  std::vector<Pending> pending;
  std::vector<at::Tensor> averages, averaged;     // Those that the walk leaves, and their parameters.
  std::optional<std::pair<double, double>> rate;  // The last group's, before and after the schedule.
  const at::Tensor none;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    if (!rate || rate->first != group.options.lr) rate.emplace(group.options.lr, scheduled(group.options.lr));
    // Groups of equal rates are updated together. Of given ones only the device knows which are equal.
    const double lr = extras.rates.defined() ? static_cast<double>(g) : rate->second * group.lr_mult;
    const bool walks = !updates_by_operators(extras) && UpdateWalk::is_for(group.options);
    for (std::size_t i = group.begin; i < group.end; ++i) {
      const at::Tensor& parameter = parameters_[i].second;
      const at::Tensor& gradient = parameter.grad();
      const at::Tensor& average = extras.averages.empty() ? none : extras.averages[i];
      const double factor = extras.gradient_factors.empty() ? 1.0 : extras.gradient_factors[i];
      float* in_walk = walks && gradient.defined() ? elements_beside(average, parameter) : nullptr;
      Updated updated{parameter, gradient, {}, in_walk, lr, factor, group.like};
      for (std::size_t kind = 0; kind < group.used.size(); ++kind) {
        updated.state[kind] = &group.state[group.used[kind]][i - group.begin];
      }
      const bool walked = walks && gradient.defined() && walk.add(updated, group.options);
      if (gradient.defined() && !walked) pending.push_back({group.like, g, i, lr, factor});
      if (walked && in_walk != nullptr) {
        count_write(average);
      } else if (average.defined()) {
        averages.push_back(average);
        averaged.push_back(parameter);
      }
    }
  }
  walk.run();
  update_in_lists(std::move(pending), extras);
  if (averages.empty()) return;
  if (extras.average_weight.defined()) return move_averages(averages, averaged, extras.average_weight);
  at::_foreach_lerp_(averages, averaged, 1 - extras.average_decay);
}

void Optimizer::check_update(const UpdateExtras& extras) const {
  check_count("gradient factor", extras.gradient_factors.size(), parameters_.size());
  check_count("average", extras.averages.size(), parameters_.size());
  if (extras.rates.defined()) {
    if (extras.rates.dim() != 1 || static_cast<std::size_t>(extras.rates.numel()) != groups_.size()) {
      fail(ErrorCode::invalid_argument, "train: wanted a rate for each of {} groups, found [{}]", groups_.size(),
           fmt::join(extras.rates.sizes(), ", "));
    }
    for (const Group& group : groups_) {
      const std::string kind = why_not_on_device(group.options);
      if (!kind.empty()) fail(ErrorCode::unsupported, "train: optimizer: {} has no update with given rates", kind);
    }
  }
  for (const Group& group : groups_) {
    for (std::size_t i = group.begin; i < group.end; ++i) {
      const auto& [name, parameter] = parameters_[i];
      const at::Tensor& gradient = parameter.grad();
      const bool has_average = !extras.averages.empty() && extras.averages[i].defined();
      if (!gradient.defined() && !has_average) continue;
      check_parameter(name, parameter);
      if (updates_by_operators(extras) && !parameter.is_non_overlapping_and_dense()) {
        fail(ErrorCode::unsupported, "train: parameter {}: wanted one that fills its memory, found strides [{}]", name,
             fmt::join(parameter.strides(), ", "));
      }
      if (has_average) check_average(name, extras.averages[i], parameter);
      if (!gradient.defined()) continue;
      check_gradient(name, gradient, parameter, group.options, /*must_be_dense=*/extras.rates.defined());
      if (group.used.empty()) continue;
      const std::size_t kind = group.used.front();  // Never the step count.
      const at::IntArrayRef sizes = group.state[kind][i - group.begin].sizes();
      if (sizes == parameter.sizes()) continue;
      fail(ErrorCode::invalid_argument, "train: parameter {}: wanted the shape [{}] of its {}, found [{}]", name,
           fmt::join(sizes, ", "), group.state_names[kind], fmt::join(parameter.sizes(), ", "));
    }
  }
}

void Optimizer::update_in_lists(std::vector<Pending> pending, const UpdateExtras& extras) {
  const auto key = [](const Pending& one) { return std::pair{one.like, std::bit_cast<std::uint64_t>(one.lr)}; };
  if (groups_.size() > 1) {
    std::stable_sort(pending.begin(), pending.end(),
                     [&](const Pending& a, const Pending& b) { return key(a) < key(b); });
  }
  for (std::size_t begin = 0, end = 0; begin < pending.size(); begin = end) {
    const Pending& first = pending[begin];
    const std::size_t kinds = groups_[first.group].used.size();
    const EmptiedLists emptied(lists_);
    lists_.state.resize(kinds);
    std::vector<at::Scalar> factors;
    for (; end < pending.size() && key(pending[end]) == key(first); ++end) {
      const Group& group = groups_[pending[end].group];
      const std::size_t i = pending[end].parameter;
      lists_.parameters.push_back(parameters_[i].second);
      lists_.gradients.push_back(parameters_[i].second.grad());
      if (!extras.gradient_factors.empty()) factors.emplace_back(pending[end].gradient_factor);
      for (std::size_t kind = 0; kind < kinds; ++kind) {
        lists_.state[kind].push_back(group.state[group.used[kind]][i - group.begin]);
      }
    }
    const std::vector<at::Tensor> given = extras.zero_gradients ? lists_.gradients : std::vector<at::Tensor>{};
    if (!factors.empty()) lists_.gradients = at::_foreach_mul(lists_.gradients, factors);
    if (updates_by_operators(extras)) {
      const at::Tensor rate = extras.rates.defined()
                                  ? extras.rates.select(0, static_cast<std::int64_t>(first.group))
                                  : at::full({}, first.lr, at::TensorOptions(at::kFloat).device(device_));
      update_by_operators(lists_, groups_[first.group].options, rate, extras.found_inf);
    } else {
      update(lists_, groups_[first.group].options, first.lr);
    }
    if (!given.empty()) at::_foreach_zero_(given);
  }
}

void Optimizer::zero_gradients() {
  for (const auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
}

void Optimizer::set_implementation(OptimizerImplementation implementation) {
  for (Group& group : groups_) group.options.set_implementation(implementation);
  likes_known_ = false;
}

void Optimizer::set_options(const OptimizerOptions& options, std::size_t group) {
  HEADRACE_CHECK(group < groups_.size(), "group {} of {}", group, groups_.size());
  if (options.name != groups_[group].options.name) {
    fail(ErrorCode::invalid_argument, "train: an optimizer cannot change its kind");
  }
  check_options(options);
  check_options_for_device(options);
  OptimizerOptions& known = groups_[group].options;
  if (known == options) return;
  likes_known_ = likes_known_ && same_update(known, options);
  const bool state_changes = !same_state(known, options);
  known = options;
  if (state_changes) add_missing_state();
}

void Optimizer::set_momentum(double momentum, std::size_t group) {
  HEADRACE_CHECK(group < groups_.size(), "group {} of {}", group, groups_.size());
  OptimizerOptions& options = groups_[group].options;
  const bool has_betas = options.name == OptimizerName::adamw || options.name == OptimizerName::adam;
  double& known = has_betas ? options.betas[0] : options.momentum;
  if (known == momentum) return;
  const bool state_changes = !has_betas && (known == 0) != (momentum == 0);
  known = momentum;
  likes_known_ = false;
  if (state_changes) add_missing_state();
}

std::int64_t Optimizer::state_bytes() const {
  std::int64_t bytes = 0;
  std::unordered_set<const void*> pieces;
  const void* last = nullptr;  // Small tensors that follow each other lie in one.
  for (const Group& group : groups_) {
    for (const std::vector<at::Tensor>& tensors : group.state) {
      for (const at::Tensor& tensor : tensors) {
        const at::Storage& storage = tensor.storage();
        const void* piece = storage.unsafeGetStorageImpl();
        if (piece != last && pieces.insert(piece).second) bytes += static_cast<std::int64_t>(storage.nbytes());
        last = piece;
      }
    }
  }
  return bytes;
}

std::size_t Optimizer::state_count() const {
  std::size_t count = 0;
  for (const Group& group : groups_) count += group.state.size() * (group.end - group.begin);
  return count;
}

std::vector<std::pair<std::string, at::Tensor>> Optimizer::state() {
  std::vector<std::pair<std::string, at::Tensor>> state;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    for (const auto& [kind, tensor] : state_of(i)) {
      state.emplace_back(fmt::format("{}/{}", parameters_[i].first, kind), tensor);
    }
  }
  return state;
}

std::size_t Optimizer::group_of(std::size_t parameter) const {
  HEADRACE_CHECK(parameter < parameters_.size(), "parameter {} of {}", parameter, parameters_.size());
  std::size_t group = 0;
  while (groups_[group].end <= parameter) ++group;
  return group;
}

std::vector<std::pair<std::string, at::Tensor>> Optimizer::state_of(std::size_t parameter) const {
  const Group& group = groups_[group_of(parameter)];
  std::vector<std::pair<std::string, at::Tensor>> state;
  for (std::size_t kind = 0; kind < group.state.size(); ++kind) {
    state.emplace_back(group.state_names[kind], group.state[kind][parameter - group.begin]);
  }
  return state;
}

void Optimizer::share_state(std::size_t parameter, const std::string& kind, const at::Tensor& tensor) {
  c10::AutoGradMode no_graph(false);
  Group& group = groups_[group_of(parameter)];
  const auto& [name, of] = parameters_[parameter];
  const auto found = std::find(group.state_names.begin(), group.state_names.end(), kind);
  if (found == group.state_names.end()) {
    fail(ErrorCode::invalid_argument, "train: parameter {}: this optimizer keeps no {}", name, kind);
  }
  at::Tensor& state = group.state[static_cast<std::size_t>(found - group.state_names.begin())][parameter - group.begin];
  const bool has_type =
      tensor.defined() && (tensor.scalar_type() == at::kFloat || (state.dim() == 0 && tensor.is_floating_point()));
  // torch.optim keeps step counts on the CPU unless it is fused.
  const bool is_here = tensor.defined() && (tensor.device() == device_ || (state.dim() == 0 && tensor.is_cpu()));
  if (!has_type || !is_here || tensor.layout() != at::kStrided || tensor.sizes() != state.sizes()) {
    fail(ErrorCode::invalid_argument, "train: parameter {}: wanted {}, float32 [{}] {}, found {}", name, kind,
         fmt::join(state.sizes(), ", "), place(), described(tensor));
  }
  if (tensor.scalar_type() != at::kFloat || tensor.device() != device_) {
    tensor.set_data(tensor.to(state.options().dtype(at::kFloat)));
  }
  if (tensor.dim() > 0 && !same_layout(tensor, of)) tensor.set_data(at::empty_like(of).copy_(tensor));
  state = tensor;
  identity_ = next_identity();
}

}  // namespace headrace
