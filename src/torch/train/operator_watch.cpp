#include "torch/train/operator_watch.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/isnan.h>
#include <ATen/record_function.h>
#include <fmt/format.h>

#include <string_view>
#include <unordered_map>
#include <vector>

#include "torch/tensor/safetensors.h"
#include "torch/train/finite.h"

namespace headrace {
namespace {

struct Found {
  bool nan = false, infinity = false;
};

// Symbolic and wrapped tensors have no values to examine, and for those of 8 bits LibTorch has no operators.
void examine(const at::Tensor& tensor, Found& found) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.has_storage()) return;
  if ((!tensor.is_floating_point() && !tensor.is_complex()) || c10::isFloat8Type(tensor.scalar_type())) return;
  if (tensor._is_zerotensor() || at::isTensorSubclassLike(tensor) || is_finite(tensor)) return;
  found.nan = found.nan || at::isnan(tensor).any().item<bool>();
  found.infinity = found.infinity || at::isinf(tensor).any().item<bool>();
}

void examine(const c10::IValue& value, Found& found) {
  if (value.isTensor()) {
    examine(value.toTensor(), found);
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) examine(tensor, found);
  }
}

template <class Values>
Found found_in(const Values& values) {
  const at::DisableRecordFunctionGuard unobserved;
  const at::NoGradGuard no_graph;
  Found found;
  for (const c10::IValue& value : values) examine(value, found);
  return found;
}

// They give memory as they find it: whatever is in there, nobody computed it.
bool gives_raw_memory(std::string_view name) {
  return name.starts_with("aten::empty") || name.starts_with("aten::new_empty") || name.starts_with("aten::resize");
}

// What an operator was given.
struct Given final : at::ObserverContext {
  explicit Given(Found what) : found(what) {}
  Found found;
};

}  // namespace

struct OperatorWatch::Impl {
  BadResult first_nan, first_infinity;
  std::vector<std::string> backward;                             // Nodes that run, the innermost last.
  std::unordered_map<const at::TensorImpl*, std::string> names;  // Of parameters and buffers.
  std::string last_read;                                         // Of these, in the forward.
  at::CallbackHandle handle{};

  static thread_local Impl* of_this_thread;

  bool is_done() const { return !first_nan.operation.empty() && !first_infinity.operation.empty(); }

  // Of an operator with several the last argument counts, as a batch norm's running_var.
  void note_read(const c10::IValue& argument) {
    if (argument.isTensor()) {
      const auto found = names.find(argument.toTensor().unsafeGetTensorImpl());
      if (found != names.end()) last_read = found->second;
    } else if (argument.isTensorList()) {
      for (const at::Tensor& tensor : argument.toTensorVector()) note_read(c10::IValue(tensor));
    }
  }

  static std::unique_ptr<at::ObserverContext> began(const at::RecordFunction& operation) {
    Impl* my = of_this_thread;
    if (my == nullptr) return nullptr;
    if (operation.scope() == at::RecordScope::BACKWARD_FUNCTION) {
      my->backward.emplace_back(operation.name());
      return nullptr;
    }
    if (my->is_done()) return nullptr;
    if (my->backward.empty()) {
      for (const c10::IValue& argument : operation.inputs()) my->note_read(argument);
    }
    return std::make_unique<Given>(found_in(operation.inputs()));
  }

  static void ended(const at::RecordFunction& operation, at::ObserverContext* context) {
    Impl* my = of_this_thread;
    if (my == nullptr) return;
    if (operation.scope() == at::RecordScope::BACKWARD_FUNCTION) {
      if (!my->backward.empty()) my->backward.pop_back();
      return;
    }
    if (context == nullptr || my->is_done() || gives_raw_memory(operation.name())) return;
    const Found given = static_cast<Given*>(context)->found, gave = found_in(operation.outputs());
    if (gave.nan && !given.nan) my->note(my->first_nan, operation.name());
    if (gave.infinity && !given.infinity) my->note(my->first_infinity, operation.name());
  }

  void note(BadResult& first, const char* name) const {
    if (!first.operation.empty()) return;
    first = backward.empty() ? BadResult{name, last_read} : BadResult{fmt::format("{} in {}", name, backward.back())};
  }
};

thread_local OperatorWatch::Impl* OperatorWatch::Impl::of_this_thread = nullptr;

OperatorWatch::OperatorWatch(const ModelState& model) : impl_(std::make_unique<Impl>()) {
  if (Impl::of_this_thread != nullptr) return;
  for (const NamedTensors* tensors : {&model.parameters, &model.buffers}) {
    for (const auto& [name, tensor] : *tensors) impl_->names.emplace(tensor.unsafeGetTensorImpl(), name);
  }
  impl_->handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(Impl::began, Impl::ended)
                                     .needsInputs(true)
                                     .needsOutputs(true)
                                     .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  Impl::of_this_thread = impl_.get();
}

OperatorWatch::~OperatorWatch() {
  if (Impl::of_this_thread != impl_.get()) return;
  Impl::of_this_thread = nullptr;
  at::removeCallback(impl_->handle);
}

const BadResult& OperatorWatch::first_nan() const {
  return impl_->first_nan;
}

const BadResult& OperatorWatch::first_infinity() const {
  return impl_->first_infinity;
}

}  // namespace headrace
