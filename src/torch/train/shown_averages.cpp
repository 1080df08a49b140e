#include "torch/train/shown_averages.h"

#include <vector>

namespace headrace {

ShownAverages::ShownAverages(Trainer& trainer) {
  std::vector<at::Tensor> averages;
  for (const auto& [name, average] : trainer.averages()) averages.push_back(average);
  if (averages.empty()) return;
  const NamedTensors weights = weights_of(trainer.model());
  weights_.emplace(weights);  // Copies all before the first is overwritten: two names may share memory.
  put_values(weights, averages);
}

}  // namespace headrace
