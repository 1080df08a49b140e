// A training run's settings under the names that published examples of YOLO training give them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace headrace::facade {

struct ModelConfig {
  std::optional<double> learning_rate{};  // Must be given for an optimizer.
  double weight_decay = 0.0005;
  std::string optimizer = "auto";  // "adamw", "sgd" or "auto", which is AdamW; in upper or lower case.
};

struct TrainingConfig {
  std::optional<std::int64_t> batch_size{};  // Samples in a micro-batch. Must be given for accumulation.
  ModelConfig model_config{};
};

}  // namespace headrace::facade
