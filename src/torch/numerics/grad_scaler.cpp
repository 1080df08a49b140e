#include <ATen/ops/scalar_tensor.h>
#include <headrace/grad_scaler.h>

#include <cmath>
#include <limits>

#include "core/base/fail.h"
#include "torch/numerics/unscale.h"

namespace headrace {
namespace {

double as_float32(double value) {
  return static_cast<double>(static_cast<float>(value));
}

double checked_scale(double scale) {
  if (std::abs(scale) <= std::numeric_limits<float>::max()) return as_float32(scale);
  fail(ErrorCode::invalid_argument, "numerics: scale: wanted a number that float32 holds, found {}", scale);
}

void check(const GradScalerState& state) {
  if (!(state.growth_factor > 1.0)) {
    fail(ErrorCode::invalid_argument, "numerics: GradScaler wants a growth_factor above 1, found {}",
         state.growth_factor);
  }
  if (!(state.backoff_factor < 1.0)) {
    fail(ErrorCode::invalid_argument, "numerics: GradScaler wants a backoff_factor below 1, found {}",
         state.backoff_factor);
  }
}

}  // namespace

GradScalerState GradScalerState::after(bool found_inf) const {
  GradScalerState next = *this;
  if (found_inf) {
    next.scale = as_float32(scale * backoff_factor);
    next.growth_tracker = 0;
  } else if (++next.growth_tracker == growth_interval) {
    const double grown = scale * growth_factor;
    if (grown <= std::numeric_limits<float>::max()) next.scale = as_float32(grown);
    next.growth_tracker = 0;
  }
  return next;
}

GradScaler::GradScaler(const GradScalerState& state, bool enabled) : state_(state), enabled_(enabled) {
  if (!enabled) return;
  check(state);
  state_.scale = checked_scale(state.scale);
}

at::Tensor GradScaler::scale(const at::Tensor& outputs) {
  if (!enabled_) return outputs;
  has_scaled_ = true;
  // A tensor, as torch's: a plain number would take the type of the outputs, and 65536 is infinite in float16.
  return outputs.mul(at::scalar_tensor(state_.scale, at::kFloat));
}

std::vector<at::Tensor> GradScaler::scale(const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> scaled;
  for (const at::Tensor& output : outputs) scaled.push_back(scale(output));
  return scaled;
}

void GradScaler::refuse_closure() {
  fail(ErrorCode::invalid_argument, "numerics: wanted step() without a closure under a loss scale, found one");
}

void GradScaler::check_scaled(const char* call) const {
  if (has_scaled_) return;
  fail(ErrorCode::invalid_argument, "numerics: wanted scale() of a loss before {}, found none so far", call);
}

void GradScaler::unscale(const void* optimizer, const std::vector<at::Tensor>& gradients) {
  check_scaled("unscale_()");
  Record& record = records_[optimizer];
  if (record.stage == Stage::unscaled) {
    fail(ErrorCode::invalid_argument,
         "numerics: wanted one unscale_() of an optimizer between two update(), found a second");
  }
  if (record.stage == Stage::stepped) {
    fail(ErrorCode::invalid_argument, "numerics: wanted unscale_() before step(), found it after");
  }
  record.found_inf = unscale_gradients(gradients, state_.scale);
  record.stage = Stage::unscaled;
}

bool GradScaler::awaits_unscaling(const void* optimizer) const {
  check_scaled("step()");
  const auto record = records_.find(optimizer);
  if (record == records_.end()) return true;
  if (record->second.stage == Stage::stepped) {
    fail(ErrorCode::invalid_argument,
         "numerics: wanted one step() of an optimizer between two update(), found a second");
  }
  return record->second.stage == Stage::ready;
}

bool GradScaler::found_inf(const void* optimizer) {
  Record& record = records_[optimizer];
  if (record.found_inf.empty()) {
    fail(ErrorCode::invalid_argument,
         "numerics: wanted gradients to take the loss scale off before step(), found none; scale(loss).backward() "
         "makes them");
  }
  if (!record.found) record.found = any_found(record.found_inf);
  return *record.found;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!enabled_) return;
  check_scaled("update()");
  if (new_scale) {
    state_.scale = checked_scale(*new_scale);
  } else {
    bool was_checked = false, found = false;
    for (const auto& [optimizer, record] : records_) {
      if (record.found_inf.empty()) continue;
      was_checked = true;
      found = found_inf(optimizer) || found;
    }
    if (!was_checked) {
      fail(ErrorCode::invalid_argument,
           "numerics: wanted step() or unscale_() of an optimizer before update(), found neither");
    }
    state_ = state_.after(found);
  }
  records_.clear();
}

std::map<std::string, double> GradScaler::state_dict() const {
  if (!enabled_) return {};
  return {{"scale", state_.scale},
          {"growth_factor", state_.growth_factor},
          {"backoff_factor", state_.backoff_factor},
          {"growth_interval", static_cast<double>(state_.growth_interval)},
          {"_growth_tracker", static_cast<double>(state_.growth_tracker)}};
}

void GradScaler::load_state_dict(const std::map<std::string, double>& state) {
  if (!enabled_) return;
  const auto value = [&state](const char* name) {
    const auto found = state.find(name);
    if (found == state.end()) {
      fail(ErrorCode::invalid_argument,
           "numerics: wanted {} in the state of a GradScaler, found {} names without it; one that is not enabled has "
           "no state",
           name, state.size());
    }
    return found->second;
  };
  const auto count = [&value](const char* name) {
    const double number = value(name);
    if (!(std::abs(number) <= 0x1p53) || number != std::trunc(number)) {
      fail(ErrorCode::invalid_argument, "numerics: {}: wanted a whole number, found {}", name, number);
    }
    return static_cast<std::int64_t>(number);
  };
  state_ = {checked_scale(value("scale")), value("growth_factor"), value("backoff_factor"), count("growth_interval"),
            count("_growth_tracker")};
}

}  // namespace headrace
