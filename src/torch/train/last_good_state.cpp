#include "torch/train/last_good_state.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>

namespace headrace {
namespace {

bool fits(const NamedTensors& copies, const NamedTensors& tensors) {
  return std::equal(copies.begin(), copies.end(), tensors.begin(), tensors.end(), [](const auto& copy, const auto& of) {
    return copy.first == of.first && copy.second.sizes() == of.second.sizes() &&
           copy.second.scalar_type() == of.second.scalar_type() && copy.second.device() == of.second.device();
  });
}

}  // namespace

void LastGoodState::keep(const NamedTensors& tensors) {
  c10::AutoGradMode no_graph(false);
  if (fits(copies_, tensors)) {
    for (std::size_t i = 0; i < tensors.size(); ++i) copies_[i].second.copy_(tensors[i].second);
    return;
  }
  copies_.clear();  // Before there is more.
  for (const auto& [name, tensor] : tensors) copies_.emplace_back(name, tensor.detach().clone());
}

void LastGoodState::restore(const NamedTensors& tensors) const {
  c10::AutoGradMode no_graph(false);
  const std::map<std::string, at::Tensor> by_name(copies_.begin(), copies_.end());
  for (const auto& [name, tensor] : tensors) {
    const auto copy = by_name.find(name);
    if (copy == by_name.end()) {
      tensor.zero_();
    } else {
      tensor.copy_(copy->second);
    }
  }
}

}  // namespace headrace
