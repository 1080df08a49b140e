#include "core/options/contradictions.h"

#include <fmt/format.h>
#include <headrace/option_fields.h>

#include <utility>

namespace headrace {
namespace {

// Of a least and a greatest value.
std::string pair_fault(const std::string& key, const std::vector<double>& pair) {
  if (pair.size() != 2) return fmt::format("{} has {} values; wanted 2, the least and the greatest", key, pair.size());
  if (pair.front() <= pair.back()) return "";
  return fmt::format("{} goes from {} to {}; wanted the least first", key, pair.front(), pair.back());
}

// How many numbers an operation's parameters have. One name means the same wherever it stands.
template <class Operation>
std::string count_fault(const Operation& operation, const std::string& prefix) {
  if constexpr (requires { operation.size; }) {
    if (const std::size_t count = operation.size.size(); count > 2) {
      return fmt::format("{}size has {} numbers; wanted one, or height and width", prefix, count);
    }
  }
  if constexpr (requires { operation.padding; }) {
    if (const std::size_t count = operation.padding.size(); count == 3 || count > 4) {
      return fmt::format("{}padding has {} numbers; wanted 1, 2 or 4", prefix, count);
    }
  }
  std::string fault;
  if constexpr (requires { operation.scale.front(); }) fault = pair_fault(prefix + "scale", operation.scale);
  if constexpr (requires { operation.ratio.front(); }) {
    if (fault.empty()) fault = pair_fault(prefix + "ratio", operation.ratio);
  }
  if constexpr (requires { operation.mean.size() == operation.std.size(); }) {
    const std::size_t means = operation.mean.size(), deviations = operation.std.size();
    if (means != deviations && means != 1 && deviations != 1) {
      return fmt::format("{0}mean has {1} values and {0}std has {2}; each has one, or one a channel", prefix, means,
                         deviations);
    }
  }
  return fault;
}

bool is_empty(const OptionValue& value) {
  return std::visit(
      [](const auto& held) {
        if constexpr (requires { held.empty(); }) return held.empty();
        return false;
      },
      value);
}

std::string list_fault(const std::vector<TransformSpec>& list, const std::string& key) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    std::string fault = operation_contradiction(list[i], fmt::format("{}[{}].", key, i));
    if (!fault.empty()) return fault;
  }
  return "";
}

}  // namespace

std::string operation_contradiction(TransformSpec operation, const std::string& prefix) {
  for (const Field& field : fields_of(operation, prefix)) {
    if (!field.required || !is_empty(field.get())) continue;
    return fmt::format(
        "{} is missing; {}", field.key,
        field.choices.empty() ? fmt::format("{} has no default for it", name_of(operation)) : "wanted " + field.range);
  }
  return std::visit([&prefix](const auto& held) { return count_fault(held, prefix); }, operation);
}

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

std::string transforms_contradiction(const DataOptions& options, const std::string& prefix) {
  if (options.transforms.empty() && options.eval_transforms.empty()) return "";
  if (options.transforms.empty()) {
    return fmt::format("{0}eval_transforms is set without {0}transforms; wanted both, or {0}transforms alone", prefix);
  }
  TransformOptions given = options.transform, neutral;
  neutral.layout = given.layout;  // Of batches, whatever is done to a sample.
  const std::vector<Field> defaults = fields_of(neutral, prefix + "transform.");
  for (std::size_t i = 0; const Field& field : fields_of(given, prefix + "transform.")) {
    if (field.get() == defaults[i++].get()) continue;
    return fmt::format("{} is {}, and {}transforms is set, which says what is done to a sample; wanted one of them",
                       field.key, to_toml(field.get()), prefix);
  }
  std::string fault = list_fault(options.transforms, prefix + "transforms");
  return !fault.empty() ? fault : list_fault(options.eval_transforms, prefix + "eval_transforms");
}

std::string transform_contradiction(const TransformOptions& options, const std::string& prefix) {
  for (const auto& [name, pair] : {std::pair{"scale", &options.scale}, std::pair{"ratio", &options.ratio}}) {
    if (std::string fault = pair_fault(prefix + name, *pair); !fault.empty()) return fault;
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

std::string clip_contradiction(const TrainOptions& options, const std::string& prefix) {
  const std::pair<const char*, double> limits[] = {{"max_grad_norm", options.max_grad_norm},
                                                   {"clip_grad_value", options.clip_grad_value},
                                                   {"clip_grad_ratio", options.clip_grad_ratio}};
  const char* set = nullptr;
  for (const auto& [key, limit] : limits) {
    if (limit == 0) continue;
    if (set != nullptr) {
      return fmt::format("{0}{1} and {0}{2} are both set; wanted one of them: an update clips once", prefix, set, key);
    }
    set = key;
  }
  if (options.max_grad_norm > 0) return "";
  for (const auto& [key, is_set] : {std::pair{"grad_norm_type", options.grad_norm_type != GradNormType::l2},
                                    std::pair{"grad_norm_per", options.grad_norm_per != GradNormPer::model}}) {
    if (is_set)
      return fmt::format("{0}{1} has no effect with {0}max_grad_norm = 0; wanted a norm above 0", prefix, key);
  }
  return "";
}

}  // namespace headrace
