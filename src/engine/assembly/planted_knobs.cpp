#include "engine/assembly/planted_knobs.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "engine/assembly/state.h"

namespace headrace {
namespace {

// Sleeps most of the time and spins the rest: a sleep alone is 50 to 100 us too long.
void spend_ms(double milliseconds) {
  if (milliseconds <= 0) return;
  const std::int64_t end_ns = monotonic_ns() + static_cast<std::int64_t>(milliseconds * 1e6);
  constexpr std::int64_t kSpin_ns = 200'000;
  if (const std::int64_t left_ns = end_ns - monotonic_ns(); left_ns > kSpin_ns) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(left_ns - kSpin_ns));
  }
  while (monotonic_ns() < end_ns) {
  }
}

}  // namespace

PlantedKnobs::PlantedKnobs(std::vector<PlantedOptions> knobs, std::uint64_t seed, Trainer& trainer)
    : knobs_(std::move(knobs)), on_(knobs_.size(), false), random_(seed, 0, 0), trainer_(trainer) {}

PlantedKnobs::Division PlantedKnobs::divide(const Settings& settings) const {
  Division divided{std::vector<bool>(knobs_.size(), false), {}};
  for (const auto& [key, value] : settings) {
    if (!key.starts_with(kPlantedPrefix)) {
      divided.others.emplace(key, value);
      continue;
    }
    const std::string_view name = std::string_view(key).substr(kPlantedPrefix.size());
    const auto found =
        std::find_if(knobs_.begin(), knobs_.end(), [name](const PlantedOptions& knob) { return knob.name == name; });
    if (found == knobs_.end()) fail(ErrorCode::invalid_argument, "assembly: no planted knob for {}", key);
    divided.on[static_cast<std::size_t>(found - knobs_.begin())] = value == "true";
  }
  return divided;
}

void PlantedKnobs::before_update() {
  spoil_gradients();
  for (std::size_t i = 0; i < knobs_.size(); ++i) {
    const PlantedOptions& knob = knobs_[i];
    spend_ms(on_[i] ? knob.on_ms : knob.off_ms);
    if (on_[i] && knob.throw_probability > 0 && random_.uniform() < knob.throw_probability) {
      fail(ErrorCode::internal, "assembly: planted knob {} threw", knob.name);
    }
  }
}

void PlantedKnobs::spoil_gradients() {
  for (std::size_t i = 0; i < knobs_.size(); ++i) {
    const double error = knobs_[i].gradient_error;
    if (!on_[i] || error == 0) continue;
    const at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : trainer_.model().parameters) {
      // Every element off by the same share, with alternating sign: the relative L2 error is exactly `error`.
      if (!parameter.grad().defined()) continue;
      std::vector<float> values = float_values(parameter.grad());
      for (std::size_t j = 0; j < values.size(); ++j) {
        values[j] *= static_cast<float>(1.0 + (j % 2 == 0 ? error : -error));
      }
      parameter.grad().copy_(at::from_blob(values.data(), parameter.grad().sizes()));
    }
  }
}

}  // namespace headrace
