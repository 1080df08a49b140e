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
  // Samples of an update that learning_rate is meant for: it is multiplied by effective_batch_size() over this.
  std::optional<std::int64_t> base_batch_size{};
};

struct TrainingConfig {
  // Samples in a micro-batch. Must be given for accumulation and for a batch size by memory.
  std::optional<std::int64_t> batch_size{};
  std::int64_t image_size = 640;  // Pixels of a side.
  std::string weights{};          // "yolov8x.pt": tells how large the network is.
  ModelConfig model_config{};
  // One setting by three names; none given: on. Two that differ are refused by who reads it.
  std::optional<bool> enable_mixed_precision{};
  std::optional<bool> mixed_precision{};
  std::optional<bool> enable_amp{};
};

}  // namespace headrace::facade
