// What keeps small gradients above the smallest number of a reduced type, as torch.amp.GradScaler: the loss is
// multiplied before backward, the gradients are divided before the update.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
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
  // as far as it stays finite in float32. The scale has no lower bound, as torch's has none. The inverse of one beyond
  // 2^126 is no normal float32; a CPU that takes such numbers for 0 makes every gradient 0, so the Trainer stops there.
  GradScalerState after(bool found_inf) const;
};

// One iteration: scale(loss).backward(), then for each optimizer unscale_() if its gradients are looked at or clipped,
// and step(), then update() once. `Optimizer` is headrace's or torch::optim's. A call out of this order is
// Error{invalid_argument}, and so is any of the others before the first scale(). Not enabled: scale() returns what it
// is given, step() steps, the rest does nothing. Not thread-safe.
class GradScaler {
 public:
  // Error{invalid_argument}: a growth_factor of at most 1, a backoff_factor of at least 1, or a scale that float32 does
  // not hold.
  explicit GradScaler(const GradScalerState& state = {}, bool enabled = true);

  // Outputs times the scale, which is a float32 number: a float16 loss of one number becomes float32, which holds it.
  at::Tensor scale(const at::Tensor& outputs);
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& outputs);

  // Divides the optimizer's gradients in place and notes whether all are finite; no host read. Once between two
  // update(). Error{invalid_argument}: gradients of float16.
  template <class Optimizer>
  void unscale_(Optimizer& optimizer) {
    if (enabled_) unscale(&optimizer, gradients_of(optimizer));
  }

  // unscale_() where that was not called, then optimizer.step(args...) where all gradients are finite. Returns whether
  // it stepped. One host read a device. Error{invalid_argument}: a closure, which would make gradients after the check.
  template <class Optimizer, class... Args>
  bool step(Optimizer& optimizer, Args&&... args) {
    if (enabled_) {
      if constexpr ((std::is_invocable_v<Args> || ...)) refuse_closure();
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

  // Makes of what all optimizers found the next scale, or sets it. Error{invalid_argument}: one that float32 does not
  // hold.
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
  // none is loaded. Error{invalid_argument}, and the state stays: a name is missing, a scale that float32 does not
  // hold, or an interval or tracker that is no whole number.
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
  [[noreturn]] static void refuse_closure();
  void check_scaled(const char* call) const;
  void unscale(const void* optimizer, const std::vector<at::Tensor>& gradients);
  bool awaits_unscaling(const void* optimizer) const;
  bool found_inf(const void* optimizer);
  void note_step(const void* optimizer) { records_[optimizer].stage = Stage::stepped; }

  GradScalerState state_;
  bool enabled_;
  bool has_scaled_ = false;                // Ever.
  std::map<const void*, Record> records_;  // Since the last update().
};

}  // namespace headrace
