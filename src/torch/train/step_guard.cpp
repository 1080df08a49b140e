#include <ATen/ops/nan_to_num.h>
#include <c10/core/GradMode.h>
#include <headrace/step_guard.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "core/base/fail.h"
#include "torch/tensor/kept_values.h"
#include "torch/train/finite.h"
#include "torch/train/operator_watch.h"

namespace headrace {
namespace {

std::string module_of(const std::string& tensor) {
  const std::size_t dot = tensor.rfind('.');
  return dot == std::string::npos ? "" : tensor.substr(0, dot);
}

// A NaN has a sign, which says nothing.
std::string number_text(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{}", value);
}

std::int64_t& count_of(FaultKind kind, GuardCounts& counts) {
  switch (kind) {
    case FaultKind::loss:
      return counts.losses;
    case FaultKind::gradient:
      return counts.gradients;
    case FaultKind::weight:
      return counts.weights;
    case FaultKind::activation:
      break;
  }
  return counts.activations;
}

bool is_of_weights(const StepFault& fault) {
  return fault.kind == FaultKind::weight || (fault.kind != FaultKind::gradient && !fault.tensor.empty());
}

}  // namespace

std::string StepFault::text() const {
  std::string what;
  switch (kind) {
    case FaultKind::loss:
      what = "loss";
      break;
    case FaultKind::gradient:
      what = tensor.empty() ? "norm of the gradients" : "gradient of " + tensor;
      break;
    case FaultKind::weight:
      what = tensor;
      break;
    case FaultKind::activation:
      what = "result of " + operation;
      break;
  }
  std::string text = fmt::format("{} is {} in epoch {}, batch {}", what, number_text(value), epoch, batch);
  const bool is_named = kind == FaultKind::gradient || kind == FaultKind::weight;
  if (!is_named && !tensor.empty()) text += fmt::format(": {} is not finite", tensor);
  if (kind != FaultKind::activation && !operation.empty())
    text += fmt::format("; first so was a result of {}", operation);
  if (!is_named && tensor.empty() && !operation.empty() && !module.empty()) {
    text += fmt::format(", at or after module {}", module);
  }
  return text;
}

struct StepGuard::Impl {
  ModelState model;
  StepGuardOptions options;
  std::optional<StepFault> last;
  std::unique_ptr<OperatorWatch> watch;
  BadResult first_nan, first_infinity;  // Of the operators that were examined last.

  const BadResult& nan_result() const { return watch ? watch->first_nan() : first_nan; }
  const BadResult& any_result() const {
    const BadResult& nan = nan_result();
    if (!nan.operation.empty()) return nan;
    return watch ? watch->first_infinity() : first_infinity;
  }

  // The first that is not finite; null: none.
  static const std::pair<std::string, at::Tensor>* first_bad(const NamedTensors& tensors) {
    const auto bad =
        std::find_if(tensors.begin(), tensors.end(), [](const auto& named) { return !is_finite(named.second); });
    return bad == tensors.end() ? nullptr : &*bad;
  }

  static void name(StepFault& fault, const std::string& tensor) {
    fault.tensor = tensor;
    fault.module = module_of(tensor);
  }
};

StepGuard::StepGuard(ModelState model, StepGuardOptions options) : impl_(new Impl{std::move(model), options}) {}
StepGuard::~StepGuard() = default;
StepGuard::StepGuard(StepGuard&& other) noexcept = default;

std::optional<StepFault> StepGuard::check_loss(const at::Tensor& loss) {
  if (is_finite(loss)) return std::nullopt;
  const BadResult& first = impl_->any_result();
  StepFault fault{.kind = FaultKind::loss,
                  .value = value_not_finite(loss),
                  .module = module_of(first.last_read),
                  .operation = first.operation};
  // Not buffers: the forward that gave this loss has spoiled running statistics, too.
  if (const auto* parameter = Impl::first_bad(impl_->model.parameters)) Impl::name(fault, parameter->first);
  return fault;
}

std::optional<StepFault> StepGuard::check_gradients() {
  return check_gradients(impl_->model.parameters);
}

std::optional<StepFault> StepGuard::check_gradients(const NamedTensors& parameters) {
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const at::Tensor& gradient = parameters[i].second.grad();
    if (is_finite(gradient)) continue;
    StepFault fault{
        .kind = FaultKind::gradient, .value = value_not_finite(gradient), .operation = impl_->any_result().operation};
    Impl::name(fault, parameters[i].first);
    return fault;
  }
  return std::nullopt;
}

std::optional<StepFault> StepGuard::check_weights() {
  const auto* weight = Impl::first_bad(impl_->model.parameters);
  if (weight == nullptr) weight = Impl::first_bad(impl_->model.buffers);
  if (weight == nullptr) return std::nullopt;
  StepFault fault{.kind = FaultKind::weight, .value = value_not_finite(weight->second)};
  Impl::name(fault, weight->first);
  return fault;
}

void StepGuard::begin_step() {
  if (!impl_->options.detect_anomaly) return;
  impl_->watch.reset();  // One at a time.
  impl_->watch = std::make_unique<OperatorWatch>(impl_->model);
}

void StepGuard::end_step() {
  if (!impl_->watch) return;
  impl_->first_nan = impl_->watch->first_nan();
  impl_->first_infinity = impl_->watch->first_infinity();
  impl_->watch.reset();
}

std::optional<StepFault> StepGuard::check_activations() const {
  if (!impl_->options.detect_anomaly) return std::nullopt;
  const BadResult& first = impl_->nan_result();
  if (first.operation.empty()) return std::nullopt;
  return StepFault{.kind = FaultKind::activation,
                   .value = std::nan(""),
                   .module = module_of(first.last_read),
                   .operation = first.operation};
}

void StepGuard::decide(const StepFault& fault, GuardCounts& counts) {
  const StepGuardOptions& options = impl_->options;
  impl_->last = fault;
  ++count_of(fault.kind, counts);
  ++counts.in_a_row;
  if (options.policy == GuardPolicy::raise) fail(ErrorCode::numerics, "train: {}", fault.text());
  if (counts.in_a_row > options.max_in_a_row) {
    fail(ErrorCode::numerics, "train: {}; faults in a row: wanted at most {} (step_guard.max_in_a_row), found {}",
         fault.text(), options.max_in_a_row, counts.in_a_row);
  }
  if (counts.faults() > options.max_faults) {
    fail(ErrorCode::numerics, "train: {}; faults: wanted at most {} (step_guard.max_faults), found {}", fault.text(),
         options.max_faults, counts.faults());
  }
  const bool leaves_weights = options.policy == GuardPolicy::skip || options.policy == GuardPolicy::lower_lr;
  if (leaves_weights && is_of_weights(fault)) {
    fail(ErrorCode::numerics, "train: {}; step_guard.policy {} mends no weight, wanted replace or rollback",
         fault.text(), choice_name(options.policy));
  }
}

void StepGuard::replace() {
  c10::AutoGradMode no_graph(false);
  const auto mend = [](const at::Tensor& tensor) {
    at::Tensor same = tensor;
    if (!is_finite(same)) at::nan_to_num_(same, 0.0, 0.0, 0.0);
  };
  for (const auto& [name, tensor] : weights_of(impl_->model)) {
    mend(tensor);
    mend(tensor.grad());
  }
}

const std::optional<StepFault>& StepGuard::last_fault() const {
  return impl_->last;
}

const StepGuardOptions& StepGuard::options() const {
  return impl_->options;
}

}  // namespace headrace
