#include "torch/train/operator_flops.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace headrace {
namespace {

template <class Values>
const at::Tensor* tensor_at(const Values& values, std::size_t at) {
  if (at >= values.size() || !values[at].isTensor()) return nullptr;
  const at::Tensor& tensor = values[at].toTensor();
  const bool has_sizes =
      tensor.defined() && !tensor.is_nested() && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
  return has_sizes ? &tensor : nullptr;
}

double elements(const at::Tensor& tensor) {
  return static_cast<double>(tensor.numel());
}

// Of [..., m, k] by [..., k, n].
double flops_of_product(c10::ArrayRef<const c10::IValue> inputs, std::size_t first) {
  const at::Tensor *a = tensor_at(inputs, first), *b = tensor_at(inputs, first + 1);
  if (a == nullptr || b == nullptr || a->dim() < 2 || b->dim() < 2) return 0;
  return 2 * elements(*a) * static_cast<double>(b->size(-1));
}

// Of each element of what a convolution gives: those of the weight that lead to it. Of a transposed one the same of
// each element that it takes.
double flops_of_pixel(const at::Tensor& weight) {
  return 2 * elements(weight) / static_cast<double>(std::max<std::int64_t>(1, weight.size(0)));
}

bool is_true(c10::ArrayRef<const c10::IValue> values, std::size_t at) {
  return at < values.size() && values[at].isBool() && values[at].toBool();
}

// What it computes, known at its beginning, and what for each element that it will have given.
struct Given final : at::ObserverContext {
  double flops = 0, flops_of_output = 0;
};

void give_convolution(c10::ArrayRef<const c10::IValue> inputs, Given& given) {
  constexpr std::size_t kTransposed = 6;
  const at::Tensor *input = tensor_at(inputs, 0), *weight = tensor_at(inputs, 1);
  if (input == nullptr || weight == nullptr || weight->dim() < 3) return;
  if (is_true(inputs, kTransposed)) {
    given.flops = elements(*input) * flops_of_pixel(*weight);
  } else {
    given.flops_of_output = flops_of_pixel(*weight);
  }
}

// As many for the gradient of the input and for that of the weight as in the forward, where both are wanted.
double flops_of_convolution_backward(c10::ArrayRef<const c10::IValue> inputs) {
  constexpr std::size_t kTransposed = 7, kMask = 10;
  const at::Tensor *gradient = tensor_at(inputs, 0), *input = tensor_at(inputs, 1), *weight = tensor_at(inputs, 2);
  if (gradient == nullptr || input == nullptr || weight == nullptr || weight->dim() < 3) return 0;
  double wanted = 2;
  if (kMask < inputs.size() && inputs[kMask].isBoolList()) {
    const auto mask = inputs[kMask].toBoolList();
    wanted = (!mask.empty() && mask.get(0) ? 1 : 0) + (mask.size() > 1 && mask.get(1) ? 1 : 0);
  }
  return wanted * elements(is_true(inputs, kTransposed) ? *input : *gradient) * flops_of_pixel(*weight);
}

void give(const at::RecordFunction& operation, Given& given) {
  const std::string_view name = operation.name();
  const c10::ArrayRef<const c10::IValue> inputs = operation.inputs();
  if (name == "aten::mm" || name == "aten::bmm") given.flops = flops_of_product(inputs, 0);
  if (name == "aten::addmm" || name == "aten::baddbmm") given.flops = flops_of_product(inputs, 1);
  if (name == "aten::convolution") give_convolution(inputs, given);
  if (name == "aten::convolution_backward") given.flops = flops_of_convolution_backward(inputs);
}

}  // namespace

struct OperatorFlops::Impl {
  double counted = 0;
  at::CallbackHandle handle{};

  static thread_local Impl* of_this_thread;

  static std::unique_ptr<at::ObserverContext> began(const at::RecordFunction& operation) {
    if (of_this_thread == nullptr) return nullptr;
    auto given = std::make_unique<Given>();
    give(operation, *given);
    if (given->flops == 0 && given->flops_of_output == 0) return nullptr;
    return given;
  }

  static void ended(const at::RecordFunction& operation, at::ObserverContext* context) {
    if (of_this_thread == nullptr || context == nullptr) return;
    const auto& given = *static_cast<Given*>(context);
    of_this_thread->counted += given.flops;
    if (given.flops_of_output == 0) return;
    if (const at::Tensor* output = tensor_at(operation.outputs(), 0)) {
      of_this_thread->counted += elements(*output) * given.flops_of_output;
    }
  }
};

thread_local OperatorFlops::Impl* OperatorFlops::Impl::of_this_thread = nullptr;

OperatorFlops::OperatorFlops() : impl_(std::make_unique<Impl>()) {
  if (Impl::of_this_thread != nullptr) return;
  impl_->handle = at::addThreadLocalCallback(at::RecordFunctionCallback(Impl::began, Impl::ended)
                                                 .needsInputs(true)
                                                 .needsOutputs(true)
                                                 .scopes({at::RecordScope::FUNCTION}));
  Impl::of_this_thread = impl_.get();
}

OperatorFlops::~OperatorFlops() {
  if (Impl::of_this_thread != impl_.get()) return;
  Impl::of_this_thread = nullptr;
  at::removeCallback(impl_->handle);
}

double OperatorFlops::counted() const {
  return impl_->counted;
}

}  // namespace headrace
