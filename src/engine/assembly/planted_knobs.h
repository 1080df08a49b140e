// Fake knobs with a known effect (tune.planted), at work in a trainer's own steps: they prove that a tuner tells good
// from bad.
#pragma once

#include <headrace/job.h>
#include <headrace/options/tune.h>
#include <headrace/trainer.h>

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/random.h"

namespace headrace {

inline constexpr std::string_view kPlantedPrefix = "planted.";  // Of the keys that switch them: "planted.<name>".

// One thread. `trainer` outlives it.
class PlantedKnobs {
 public:
  PlantedKnobs(std::vector<PlantedOptions> knobs, std::uint64_t seed, Trainer& trainer);

  struct Division {
    std::vector<bool> on;  // As long as the knobs.
    Settings others;       // The settings that are none of theirs.
  };
  // Error{invalid_argument}: a planted knob that there is none of.
  Division divide(const Settings& settings) const;

  bool empty() const noexcept { return knobs_.empty(); }
  void set_on(std::vector<bool> on) { on_ = std::move(on); }
  // At StepPart::optimizer: errors on the gradients, time, exceptions.
  void before_update();
  // The errors alone, on the gradients that the parameters have now.
  void spoil_gradients();

 private:
  std::vector<PlantedOptions> knobs_;
  std::vector<bool> on_;
  SampleRandom random_;  // Goes on whatever is restored: a fault that comes now and then does not repeat itself.
  Trainer& trainer_;
};

}  // namespace headrace
