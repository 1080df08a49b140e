#include <headrace/autocast.h>
#include <headrace/clip_gradients.h>
#include <headrace/facade/model_optimizer.h>
#include <headrace/facade/numerical_stability.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/fail.h"
#include "core/hardware/machine.h"
#include "facade/stability_debug.h"
#include "torch/device/accelerator.h"
#include "torch/train/finite.h"
#include "torch/train/last_good_state.h"
#include "torch/train/training_state.h"

namespace headrace::facade {
namespace {

constexpr double kWeightNormMin = 1e-3;

double at_own_rate(double lr) {
  return lr;
}

void check_limit(std::string_view name, double value) {
  if (value > 0 && std::isfinite(value)) return;
  fail(ErrorCode::invalid_argument, "facade: {}: wanted a number above 0, and finite, found {}", name, value);
}

void check_count(std::string_view name, std::int64_t value) {
  if (value > 0) return;
  fail(ErrorCode::invalid_argument, "facade: {}: wanted a whole number above 0, found {}", name, value);
}

StabilityConfigs checked(const StabilityConfigs& configs) {
  if (const auto& clipping = configs.clipping_config) {
    check_limit("ClippingConfig.max_grad_norm", clipping->max_grad_norm);
    check_limit("ClippingConfig.clip_grad_value", clipping->clip_grad_value);
    check_limit("ClippingConfig.clip_factor", clipping->clip_factor);
  }
  if (const auto& nan = configs.nan_config) {
    check_count("NanConfig.max_in_a_row", nan->max_in_a_row);
    check_count("NanConfig.keep_every", nan->keep_every);
    if (!(nan->lr_factor > 0 && nan->lr_factor < 1)) {
      fail(ErrorCode::invalid_argument, "facade: NanConfig.lr_factor: wanted a number above 0 and below 1, found {}",
           nan->lr_factor);
    }
  }
  if (const auto& debug = configs.debug_config) {
    if (!(debug->suspicious_factor > 1 && std::isfinite(debug->suspicious_factor))) {
      fail(ErrorCode::invalid_argument,
           "facade: DebugConfig.suspicious_factor: wanted a number above 1, and finite, found {}",
           debug->suspicious_factor);
    }
  }
  if (configs.performance_config) configs.performance_config->performance_config();  // Which checks it.
  return configs;
}

Accelerator* cuda(std::string& reason) {
  return accelerator_of(c10::Device(c10::kCUDA, 0), reason);
}

PerformanceMetrics measured() {
  PerformanceMetrics metrics;
  const long pages = ::sysconf(_SC_PHYS_PAGES), page_bytes = ::sysconf(_SC_PAGE_SIZE);
  const std::optional<std::int64_t> resident = resident_memory();
  if (resident && pages > 0 && page_bytes > 0) {
    metrics.memory_usage_percent =
        100 * static_cast<double>(*resident) / (static_cast<double>(pages) * static_cast<double>(page_bytes));
  }
  std::string ignored;
  const Accelerator* const device = cuda(ignored);
  const std::optional<DeviceMemory> memory = device == nullptr ? std::nullopt : device->memory();
  if (memory) metrics.gpu_memory_mb = static_cast<double>(memory->all.allocated.now) / (1 << 20);
  return metrics;
}

// Of a training wrapper's forward.
Applied mixed_precision_row() {
  std::string reason;
  if (cuda(reason) != nullptr) return {"enable_amp", "true", "true", ""};
  return {"enable_amp", "true", "none", fmt::format("wanted CUDA, found none: {}", reason)};
}

StepGuardOptions guard_options(const StabilityConfigs& configs) {
  StepGuardOptions options;
  options.max_faults = std::numeric_limits<std::int64_t>::max();
  options.detect_anomaly = configs.debug_config && configs.debug_config->detect_anomaly;
  if (!configs.nan_config) return options;
  options.policy = configs.nan_config->policy;
  options.max_in_a_row = configs.nan_config->max_in_a_row;
  return options;
}

std::vector<at::Tensor> stepped_by(const Optimizer& optimizer) {
  std::vector<at::Tensor> stepped;
  for (const auto& [name, parameter] : optimizer.parameters()) stepped.push_back(parameter);
  return stepped;
}

void release_gradients(const ModelState& model, Optimizer& optimizer) {
  for (const auto& [name, parameter] : model.parameters) parameter.mutable_grad().reset();
  optimizer.zero_gradients();
}

bool has_gradients(const Optimizer& optimizer) {
  const auto& parameters = optimizer.parameters();
  return std::any_of(parameters.begin(), parameters.end(), [](const auto& named) {
    const at::Tensor& gradient = named.second.grad();
    return gradient.defined() && gradient.count_nonzero().item<std::int64_t>() > 0;  // NaN counts.
  });
}

ClipReport clip_adaptively(const std::vector<at::Tensor>& parameters, double clip_factor) {
  ClipReport all;
  double before = 0, after = 0;
  for (const at::Tensor& parameter : parameters) {
    const double weights = parameter.detach().norm().item<double>();
    const ClipOptions options{.max_norm = clip_factor * std::max(weights, kWeightNormMin)};
    const ClipReport one = clip_gradients({&parameter, 1}, {}, options);
    before += one.norm_before * one.norm_before;
    after += one.norm_after * one.norm_after;
    all.clipped += one.clipped;
    all.finite = all.finite && one.finite;
  }
  all.norm_before = std::sqrt(before);
  all.norm_after = std::sqrt(after);
  return all;
}

ClipReport clip(const std::vector<at::Tensor>& parameters, const std::optional<ClippingConfig>& config) {
  if (!config) return clip_gradients(parameters, {}, {});
  switch (config->mode) {
    case ClippingMode::norm:
      return clip_gradients(parameters, {}, {.max_norm = config->max_grad_norm});
    case ClippingMode::value:
      return clip_gradients(parameters, {}, {.value = config->clip_grad_value});
    case ClippingMode::adaptive:
      return clip_adaptively(parameters, config->clip_factor);
    case ClippingMode::layer:
      break;
  }
  std::vector<std::size_t> each(parameters.size());
  std::iota(each.begin(), each.end(), std::size_t{0});
  return clip_gradients(parameters, each, {.max_norm = config->max_grad_norm});
}

}  // namespace

struct NumericalStabilityManager::Impl {
  StabilityConfigs configs;
  StabilitySummary counts{};
  GuardCounts faults{};
  std::int64_t good_steps = 0;
  LastGoodState last_good{};
  std::optional<SuspiciousSteps> suspicious{};
  std::optional<ModelOptimizer> model_optimizer{};  // That set a model up.
  // What a LastGoodState has beside model and optimizer, and this has not.
  NamedTensors no_averages{};
  ExternalOptimizer no_external{};
  OtherGenerators no_generators{};
  Progress no_progress{};

  bool is_measured() const {
    const auto& config = configs.performance_config;
    return config && config->enable_performance_optimization && config->integrate_with_stability;
  }
  void tell_if_suspicious(const StabilityResult& result);
  bool has_policy(GuardPolicy policy) const { return configs.nan_config && configs.nan_config->policy == policy; }
  RolledBack training_state(const ModelState& model, Optimizer& optimizer) {
    return {model, no_averages, optimizer, no_external, no_progress, no_generators};
  }

  StepGuard begun_guard(const Optimizer& optimizer) const;
  StabilityResult step(StepGuard& guard, const ModelState& model, const at::Tensor& loss, Optimizer& optimizer,
                       GradScaler* scaler);
  // Returns the fault.
  std::optional<StepFault> update(StepGuard& guard, const at::Tensor& loss, Optimizer& optimizer, GradScaler* scaler,
                                  StabilityResult& result);
  void measure_and_clip(const Optimizer& optimizer, StabilityResult& result);
  void react(StepGuard& guard, const StepFault& fault, const ModelState& model, Optimizer& optimizer);
  void keep_good(const ModelState& model, Optimizer& optimizer);
  void roll_back(const ModelState& model, Optimizer& optimizer);
};

StepGuard NumericalStabilityManager::Impl::begun_guard(const Optimizer& optimizer) const {
  StepGuard guard(ModelState{optimizer.parameters(), {}, {}}, guard_options(configs));
  guard.begin_step();
  return guard;
}

StabilityResult NumericalStabilityManager::Impl::step(StepGuard& guard, const ModelState& model, const at::Tensor& loss,
                                                      Optimizer& optimizer, GradScaler* scaler) {
  if (has_policy(GuardPolicy::rollback) && last_good.copies().empty()) keep_good(model, optimizer);
  StabilityResult result;
  result.loss = loss.item<double>();
  std::optional<StepFault> fault;
  if (configs.nan_config) fault = guard.check_loss(loss);
  if (!fault) fault = update(guard, loss, optimizer, scaler, result);
  guard.end_step();
  release_gradients(model, optimizer);
  if (result.skipped) ++counts.skipped_steps;
  if (fault) fault->batch = counts.steps;
  ++counts.steps;
  result.nan_detected = fault;
  tell_if_suspicious(result);
  if (fault) {
    react(guard, *fault, model, optimizer);
  } else if (!result.skipped) {
    faults.in_a_row = 0;
    ++good_steps;
    const bool keeps = has_policy(GuardPolicy::rollback) && good_steps % configs.nan_config->keep_every == 0;
    if (keeps) keep_good(model, optimizer);
  }
  result.nan_count = faults.faults();
  result.clip_count = counts.clip_count;
  if (is_measured()) result.performance_metrics = measured();
  return result;
}

void NumericalStabilityManager::Impl::tell_if_suspicious(const StabilityResult& result) {
  if (!suspicious) return;
  const std::string sentence = suspicious->look(counts.steps, result);
  if (sentence.empty()) return;
  if (configs.debug_config->log) {
    configs.debug_config->log(sentence);
  } else {
    std::fprintf(stderr, "headrace: facade: %s\n", sentence.c_str());
  }
}

std::optional<StepFault> NumericalStabilityManager::Impl::update(StepGuard& guard, const at::Tensor& loss,
                                                                 Optimizer& optimizer, GradScaler* scaler,
                                                                 StabilityResult& result) {
  if (!has_gradients(optimizer)) (scaler == nullptr ? loss : scaler->scale(loss)).backward();
  guard.end_step();
  if (scaler != nullptr) scaler->unscale_(optimizer);
  const bool is_scaled = scaler != nullptr && scaler->is_enabled();
  if (is_scaled && guard.check_gradients()) {
    ++counts.scaler_overflows;
    scaler->update();
    return std::nullopt;
  }
  std::optional<StepFault> fault = guard.check_activations();
  if (!fault && configs.nan_config && !is_scaled) fault = guard.check_gradients();
  const bool replaces = has_policy(GuardPolicy::replace);
  if (fault && !replaces) {
    if (scaler != nullptr) scaler->update();
    return fault;
  }
  if (fault) guard.replace();
  measure_and_clip(optimizer, result);
  if (scaler == nullptr) {
    optimizer.step(at_own_rate);
  } else {
    scaler->step(optimizer, at_own_rate);
    scaler->update();
  }
  const std::optional<StepFault> of_weights = configs.nan_config ? guard.check_weights() : std::nullopt;
  if (of_weights && replaces) guard.replace();
  result.skipped = of_weights && !replaces;
  return fault ? fault : of_weights;
}

void NumericalStabilityManager::Impl::measure_and_clip(const Optimizer& optimizer, StabilityResult& result) {
  if (configs.debug_config && configs.debug_config->gradient_statistics) {
    for (const auto& [name, parameter] : optimizer.parameters()) {
      if (!parameter.grad().defined()) continue;
      result.gradient_norms.emplace_back(name, clip_gradients({&parameter, 1}, {}, {}).norm_before);
    }
  }
  const ClipReport report = clip(stepped_by(optimizer), configs.clipping_config);
  result.gradient_norm = report.norm_before;
  result.gradient_norm_clipped = report.norm_after;
  result.clipped = report.clipped > 0;
  if (result.clipped) ++counts.clip_count;
}

void NumericalStabilityManager::Impl::react(StepGuard& guard, const StepFault& fault, const ModelState& model,
                                            Optimizer& optimizer) {
  guard.decide(fault, faults);
  if (has_policy(GuardPolicy::replace) && fault.kind == FaultKind::loss) guard.replace();
  if (has_policy(GuardPolicy::rollback)) roll_back(model, optimizer);
  if (!has_policy(GuardPolicy::lower_lr)) return;
  for (std::size_t group = 0; group < optimizer.groups(); ++group) {
    OptimizerOptions options = optimizer.options(group);
    options.lr *= configs.nan_config->lr_factor;
    optimizer.set_options(options, group);
  }
}

// Without what is not finite: the forward before the first step may have spoilt a buffer already.
void NumericalStabilityManager::Impl::keep_good(const ModelState& model, Optimizer& optimizer) {
  last_good.keep(training_state(model, optimizer));
  NamedTensors finite;
  for (const auto& [name, copy] : last_good.copies()) {
    if (is_finite(copy)) finite.emplace_back(name, copy);
  }
  if (finite.size() < last_good.copies().size()) last_good.set(std::move(finite));
}

// The generator goes on, or a loop that draws its batches would draw the bad one again.
void NumericalStabilityManager::Impl::roll_back(const ModelState& model, Optimizer& optimizer) {
  const at::Tensor generator = generator_state();
  last_good.restore(training_state(model, optimizer));
  set_generator_state(generator);
}

NumericalStabilityManager::NumericalStabilityManager(const StabilityConfigs& configs)
    : impl_(new Impl{checked(configs)}) {
  const auto& debug = impl_->configs.debug_config;
  if (debug && debug->log_suspicious_steps) impl_->suspicious.emplace(debug->suspicious_factor);
}
NumericalStabilityManager::~NumericalStabilityManager() = default;
NumericalStabilityManager::NumericalStabilityManager(NumericalStabilityManager&& other) noexcept = default;

StabilityResult NumericalStabilityManager::step(const ModelState& model, const at::Tensor& loss, Optimizer& optimizer,
                                                GradScaler* scaler) {
  StepGuard guard = impl_->begun_guard(optimizer);
  return impl_->step(guard, model, loss, optimizer, scaler);
}

StabilityResult NumericalStabilityManager::step(const ModelState& model,
                                                const std::function<at::Tensor()>& compute_loss, Optimizer& optimizer,
                                                GradScaler* scaler) {
  StepGuard guard = impl_->begun_guard(optimizer);
  release_gradients(model, optimizer);
  if (!impl_->configs.debug_config || !impl_->configs.debug_config->activation_statistics) {
    return impl_->step(guard, model, compute_loss(), optimizer, scaler);
  }
  at::Tensor loss;
  std::vector<ActivationStatistics> found;
  {
    ActivationWatch watch;
    loss = compute_loss();
    found = watch.take();
  }
  StabilityResult result = impl_->step(guard, model, loss, optimizer, scaler);
  result.activation_statistics = std::move(found);
  return result;
}

ModelState NumericalStabilityManager::optimize_model(ModelState model) {
  const auto& config = impl_->configs.performance_config;
  if (!config || !config->enable_performance_optimization) return model;
  if (!impl_->model_optimizer) impl_->model_optimizer.emplace(config->performance_config());
  return impl_->model_optimizer->optimize_model(std::move(model));
}

StabilitySummary NumericalStabilityManager::get_performance_summary() const {
  StabilitySummary summary = impl_->counts;
  summary.nan_count = impl_->faults.faults();
  if (impl_->is_measured()) summary.performance_metrics = measured();
  if (!impl_->configs.performance_config) return summary;
  std::vector<Applied> status{mixed_precision_row()};
  if (impl_->model_optimizer) {
    for (Applied& row : impl_->model_optimizer->report()) status.push_back(std::move(row));
  }
  summary.optimizations = impl_->configs.performance_config->report(status);
  return summary;
}

const StabilityConfigs& NumericalStabilityManager::configs() const {
  return impl_->configs;
}

StabilityResult TrainingWrapper::step(const ModelState& model, const Forward& forward, const TensorBatch& batch,
                                      Optimizer& optimizer, GradScaler* scaler) {
  const auto& config = manager.configs().performance_config;
  const bool is_on_cuda = !model.parameters.empty() && model.parameters.front().second.is_cuda();
  const bool autocasts = is_on_cuda && config && config->performance_config()->enable_amp;
  const auto compute_loss = [&] {
    std::optional<Autocast> autocast;
    if (autocasts) autocast.emplace(at::kCUDA, scaler != nullptr && scaler->is_enabled() ? at::kHalf : at::kBFloat16);
    return forward(batch).loss;
  };
  return manager.step(model, compute_loss, optimizer, scaler);
}

TrainingWrapper create_training_wrapper(const StabilityConfigs& configs) {
  return TrainingWrapper(NumericalStabilityManager(configs));
}

}  // namespace headrace::facade
