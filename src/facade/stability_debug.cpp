#include "facade/stability_debug.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace headrace::facade {
namespace {

constexpr std::size_t kKnownMost = 50, kKnownLeast = 10;  // Steps whose median a step is compared with.

// nullopt: nothing that has statistics.
std::optional<ActivationStatistics> statistics_of(const char* operation, const at::Tensor& given) {
  if (!given.defined() || given.layout() != at::kStrided || !given.is_floating_point() || given.numel() == 0) {
    return std::nullopt;
  }
  const at::Tensor values = given.detach().to(at::kFloat).flatten();
  const at::Tensor finite = values.masked_select(values.isfinite());
  ActivationStatistics told;
  told.operation = operation;
  told.not_finite = values.numel() - finite.numel();
  told.zeros = values.eq(0).to(at::kFloat).mean().item<double>();
  if (finite.numel() == 0) return told;
  told.mean = finite.mean().item<double>();
  told.std = finite.std(/*unbiased=*/false).item<double>();
  told.abs_max = finite.abs().max().item<double>();
  return told;
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

struct ActivationWatch::Impl {
  std::vector<ActivationStatistics> found;
  std::int64_t depth = 0;  // Operators that run, one within the other.
  at::CallbackHandle handle{};

  static thread_local Impl* of_this_thread;

  static std::unique_ptr<at::ObserverContext> began(const at::RecordFunction& /*operation*/) {
    if (of_this_thread != nullptr) ++of_this_thread->depth;
    return nullptr;
  }

  static void ended(const at::RecordFunction& operation, at::ObserverContext* /*context*/) {
    Impl* my = of_this_thread;
    if (my == nullptr || --my->depth > 0) return;
    const at::DisableRecordFunctionGuard unobserved;
    const at::NoGradGuard no_graph;
    for (const c10::IValue& output : operation.outputs()) {
      if (!output.isTensor()) continue;
      if (auto told = statistics_of(operation.name(), output.toTensor())) my->found.push_back(std::move(*told));
    }
  }
};

thread_local ActivationWatch::Impl* ActivationWatch::Impl::of_this_thread = nullptr;

ActivationWatch::ActivationWatch() : impl_(std::make_unique<Impl>()) {
  if (Impl::of_this_thread != nullptr) return;
  impl_->handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(Impl::began, Impl::ended).needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
  Impl::of_this_thread = impl_.get();
}

ActivationWatch::~ActivationWatch() {
  if (Impl::of_this_thread != impl_.get()) return;
  Impl::of_this_thread = nullptr;
  at::removeCallback(impl_->handle);
}

std::vector<ActivationStatistics> ActivationWatch::take() {
  return std::exchange(impl_->found, {});
}

std::string SuspiciousSteps::look(std::int64_t step, const StabilityResult& result) {
  std::vector<std::string> reasons;
  if (result.nan_detected) reasons.push_back(result.nan_detected->text());
  reasons.push_back(compared("loss", result.loss, losses_));
  if (result.gradient_norm) reasons.push_back(compared("gradient_norm", *result.gradient_norm, norms_));
  if (result.skipped) reasons.emplace_back("its update was left out");
  std::erase(reasons, "");
  return reasons.empty() ? "" : fmt::format("step {}: {}", step, fmt::join(reasons, "; "));
}

// Empty: it is as usual, or nobody knows yet.
std::string SuspiciousSteps::compared(std::string_view name, double value, std::vector<double>& known) const {
  if (!std::isfinite(value)) return fmt::format("{} is {}", name, value);
  const std::size_t count = known.size();
  const double median = count >= kKnownLeast ? median_of(known) : 0;
  known.push_back(value);
  if (known.size() > kKnownMost) known.erase(known.begin());
  if (median <= 0 || value <= factor_ * median) return "";
  return fmt::format("{} is {:.4g}, {:.1f} times the median of the {} steps before", name, value, value / median,
                     count);
}

}  // namespace headrace::facade
