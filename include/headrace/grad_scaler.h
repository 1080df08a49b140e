// What keeps small gradients above the smallest number of a reduced type, as torch.amp.GradScaler: the loss is
// multiplied before backward, the gradients are divided before the update.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace headrace {

// The numbers of torch.amp.GradScaler.state_dict(), and its defaults.
struct GradScalerState {
  double scale = 65536.0;  // A float32 number.
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;
  std::int64_t growth_tracker = 0;  // Updates in a row without infinity or NaN, since the scale changed.

  // What it is after an update: one that found them lowers the scale, growth_interval ones in a row without raise it,
  // as far as it stays finite in float32. The scale has no lower bound, as torch's has none.
  GradScalerState after(bool found_inf) const;
};

// One iteration: scale(loss).backward(), then for each optimizer unscale_() if its gradients are looked at or clipped,
// and step(), then update() once. `Optimizer` is headrace's or torch::optim's. A call out of this order is
// Error{invalid_argument}. Not enabled: scale() returns what it is given, step() steps, the rest does nothing. Not
// thread-safe.
class GradScaler {
 public:
  // Error{invalid_argument}: a growth_factor of at most 1, or a backoff_factor of at least 1.
  explicit GradScaler(const GradScalerState& state = {}, bool enabled = true);

  at::Tensor scale(const at::Tensor& outputs) const;
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& outputs) const;

  // Divides the optimizer's gradients in place and notes whether all are finite; no host read. Once between two
  // update(). Error{invalid_argument}: gradients of float16.
  template <class Optimizer>
  void unscale_(Optimizer& optimizer) {
    if (enabled_) unscale(&optimizer, gradients_of(optimizer));
  }

  // unscale_() where that was not called, then optimizer.step(args...) where all gradients are finite. Returns whether
  // it stepped. One host read a device.
  template <class Optimizer, class... Args>
  bool step(Optimizer& optimizer, Args&&... args) {
    if (enabled_) {
      if (awaits_unscaling(&optimizer)) unscale(&optimizer, gradients_of(optimizer));
      if (found_inf(&optimizer)) {
        note_step(&optimizer);
        return false;
      }
    }
    optimizer.step(std::forward<Args>(args)...);
    if (enabled_) note_step(&optimizer);
    return true;
  }

  // Makes of what all optimizers found the next scale, or sets it.
  void update(std::optional<double> new_scale = std::nullopt);

  double get_scale() const { return enabled_ ? state_.scale : 1.0; }
  double get_growth_factor() const { return state_.growth_factor; }
  double get_backoff_factor() const { return state_.backoff_factor; }
  std::int64_t get_growth_interval() const { return state_.growth_interval; }
  void set_growth_factor(double factor) { state_.growth_factor = factor; }
  void set_backoff_factor(double factor) { state_.backoff_factor = factor; }
  void set_growth_interval(std::int64_t interval) { state_.growth_interval = interval; }
  bool is_enabled() const { return enabled_; }

  // By torch's names: scale, growth_factor, backoff_factor, growth_interval, _growth_tracker. Not enabled: empty, and
  // none is loaded. Error{invalid_argument}: a name is missing.
  std::map<std::string, double> state_dict() const;
  void load_state_dict(const std::map<std::string, double>& state);

 private:
  enum class Stage { ready, unscaled, stepped };
  struct Record {
    Stage stage = Stage::ready;
    std::vector<at::Tensor> found_inf;  // One number a device.
    std::optional<bool> found;          // What the host read of it.
  };

  template <class Optimizer>
  static std::vector<at::Tensor> gradients_of(Optimizer& optimizer) {
    std::vector<at::Tensor> gradients;
    const auto add = [&gradients](const at::Tensor& parameter) {
      if (parameter.grad().defined()) gradients.push_back(parameter.grad());
    };
    if constexpr (requires { optimizer.param_groups(); }) {
      for (const auto& group : optimizer.param_groups()) {
        for (const at::Tensor& parameter : group.params()) add(parameter);
      }
    } else {
      for (const auto& [name, parameter] : optimizer.parameters()) add(parameter);
    }
    return gradients;
  }
  void unscale(const void* optimizer, const std::vector<at::Tensor>& gradients);
  bool awaits_unscaling(const void* optimizer) const;
  bool found_inf(const void* optimizer);
  void note_step(const void* optimizer) { records_[optimizer].stage = Stage::stepped; }

  GradScalerState state_;
  bool enabled_;
  std::map<const void*, Record> records_;  // Since the last update().
};

}  // namespace headrace
