#include "core/options/contradictions.h"

#include <fmt/format.h>

#include <utility>

namespace headrace {

std::string order_contradiction(const DataOptions& options, const std::string& prefix) {
  if (options.rank >= options.world_size) {
    return fmt::format("{0}rank is {1} and {0}world_size is {2}; wanted a rank from 0 to {3}", prefix, options.rank,
                       options.world_size, options.world_size - 1);
  }
  const bool is_weighted = options.sampler == Sampler::weighted;
  if (is_weighted && options.weights.empty()) {
    return fmt::format("{0}weights is missing; {0}sampler = \"weighted\" wants one a class or one a sample", prefix);
  }
  if (!is_weighted && !options.weights.empty()) {
    return fmt::format("{0}weights has no effect without {0}sampler = \"weighted\"", prefix);
  }
  const bool is_plain = options.sampler == Sampler::each && options.shuffle;
  if (options.sampler != Sampler::each && !options.shuffle) {
    return fmt::format("{0}shuffle is false, and {0}sampler draws at random; wanted {0}sampler = \"each\"", prefix);
  }
  if (options.shuffle_window > 0 && (!is_plain || options.buckets > 0)) {
    return fmt::format("{0}shuffle_window wants {0}shuffle = true, {0}sampler = \"each\" and no {0}buckets", prefix);
  }
  if (options.bucket_by == BucketBy::shape && options.buckets == 0) {
    return fmt::format("{0}bucket_by has no effect without {0}buckets", prefix);
  }
  if (options.buckets > 0 && !is_plain) {
    return fmt::format("{0}buckets wants {0}shuffle = true and {0}sampler = \"each\"", prefix);
  }
  return "";
}

std::string transform_contradiction(const TransformOptions& options, const std::string& prefix) {
  for (const auto& [name, pair] : {std::pair{"scale", &options.scale}, std::pair{"ratio", &options.ratio}}) {
    if (pair->size() != 2) {
      return fmt::format("{}{} has {} values; wanted 2, the least and the greatest", prefix, name, pair->size());
    }
    if (pair->front() > pair->back()) {
      return fmt::format("{}{} goes from {} to {}; wanted the least first", prefix, name, pair->front(), pair->back());
    }
  }
  const TransformOptions defaults;
  const bool drawn = options.scale != defaults.scale || options.ratio != defaults.ratio;
  if (options.size == 0 && (options.crop != defaults.crop || options.resize != 0 || drawn)) {
    return fmt::format("{0}size is 0, which leaves images as stored; {0}crop, resize, scale and ratio need a size",
                       prefix);
  }
  if (drawn && options.crop != Crop::random_resized) {
    return fmt::format("{0}scale and {0}ratio have no effect without {0}crop = \"random_resized\"", prefix);
  }
  if (options.resize > 0 && options.resize < options.size) {
    return fmt::format("{0}resize is {1}, {0}size is {2}; wanted a shorter side of at least size", prefix,
                       options.resize, options.size);
  }
  if (options.dtype == PixelType::u8 && (options.mean != defaults.mean || options.std != defaults.std)) {
    return fmt::format("{0}dtype is uint8, which leaves pixels as stored; {0}mean and std need a float", prefix);
  }
  return "";
}

}  // namespace headrace
