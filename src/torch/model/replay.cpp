#include "torch/model/detail/replay.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include <mutex>

namespace headrace {
namespace {

void restore(const ReplayState& given) {
  at::autocast::set_autocast_enabled(given.device.type(), given.autocast);
  at::autocast::set_autocast_dtype(given.device.type(), given.autocast_type);
  if (given.generator.defined()) {
    at::Generator generator = at::globalContext().defaultGenerator(given.device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(given.generator);
  }
}

}  // namespace

ReplayState current_state(at::Device device, bool draws) {
  ReplayState found{device, at::autocast::is_autocast_enabled(device.type()),
                    at::autocast::get_autocast_dtype(device.type()), at::Tensor()};
  if (draws) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    found.generator = generator.get_state();
  }
  return found;
}

Replayed::Replayed(const ReplayState& given) : before_(current_state(given.device, given.generator.defined())) {
  restore(given);
}

Replayed::~Replayed() {
  restore(before_);
}

NoCopiesOfWeights::NoCopiesOfWeights() : was_kept_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_cache_enabled(false);
}

NoCopiesOfWeights::~NoCopiesOfWeights() {
  at::autocast::set_autocast_cache_enabled(was_kept_);
}

}  // namespace headrace
