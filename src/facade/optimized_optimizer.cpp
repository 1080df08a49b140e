#include <headrace/facade/gradient_accumulation.h>
#include <headrace/facade/optimized_optimizer.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/fail.h"

namespace headrace::facade {
namespace {

double scaled(double lr, const TrainingConfig& config) {
  const std::optional<std::int64_t> base = config.model_config.base_batch_size;
  if (!base) return lr;
  if (*base < 1) {
    fail(ErrorCode::invalid_argument,
         "facade: config.model_config.base_batch_size: wanted a whole number of at least 1, found {}", *base);
  }
  return lr * static_cast<double>(effective_batch_size(config)) / static_cast<double>(*base);
}

OptimizerOptions options_of(const TrainingConfig& training_config) {
  const ModelConfig& config = training_config.model_config;
  OptimizerOptions options;
  std::string kind = config.optimizer;
  std::transform(kind.begin(), kind.end(), kind.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  if (kind == "auto" || kind == "adamw") {
    options.name = OptimizerName::adamw;
    options.betas = {0.9, 0.999};
    options.eps = 1e-8;
  } else if (kind == "sgd") {
    options.name = OptimizerName::sgd;
    options.momentum = 0.937;
    options.nesterov = true;
  } else {
    fail(ErrorCode::invalid_argument, "facade: config.model_config.optimizer: wanted auto, adamw or sgd, found '{}'",
         config.optimizer);
  }
  const auto checked = [](std::string_view name, std::optional<double> value) {
    if (!value || !(*value >= 0)) {
      fail(ErrorCode::invalid_argument, "facade: config.model_config.{}: wanted a number of at least 0, found {}", name,
           value ? fmt::format("{}", *value) : "none");
    }
    return *value;
  };
  options.lr = scaled(checked("learning_rate", config.learning_rate), training_config);
  options.weight_decay = checked("weight_decay", config.weight_decay);
  return options;
}

bool is_of_backbone(const std::string& name) {
  return name.find("backbone") != std::string::npos || name.find("stem") != std::string::npos;
}

}  // namespace

Optimizer create_optimized_optimizer(const ModelState& model, const TrainingConfig& config) {
  ParameterGroup rest{{}, options_of(config)}, backbone = rest;
  backbone.lr_mult = 0.1;
  for (const auto& [name, parameter] : model.parameters) {
    if (parameter.requires_grad()) (is_of_backbone(name) ? backbone : rest).parameters.emplace_back(name, parameter);
  }
  std::vector<ParameterGroup> groups;
  for (ParameterGroup* group : {&backbone, &rest}) {
    if (!group->parameters.empty()) groups.push_back(std::move(*group));
  }
  if (groups.empty()) {
    fail(ErrorCode::invalid_argument, "facade: wanted a model with parameters that require gradients, found none");
  }
  return Optimizer(std::move(groups));
}

}  // namespace headrace::facade
