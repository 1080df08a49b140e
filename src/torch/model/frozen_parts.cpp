#include "torch/model/frozen_parts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>
#include <utility>

#include "core/base/fail.h"
#include "core/base/parameter_pattern.h"

namespace headrace {
namespace {

using Named = std::vector<std::pair<std::string, at::Tensor>>;

// Buffers of this name, by whether the parameters beside them require no gradients.
struct BatchCounts {
  std::vector<at::Tensor> moving;
  std::int64_t frozen = 0;
};

BatchCounts batch_counts(const ModelState& model) {
  constexpr std::string_view kCount = ".num_batches_tracked";
  std::set<std::string> trained;  // Modules with a parameter of their own that requires gradients.
  for (const auto& [name, parameter] : model.parameters) {
    if (parameter.requires_grad()) trained.insert(name.substr(0, name.rfind('.')));
  }
  BatchCounts counts;
  for (const auto& [name, buffer] : model.buffers) {
    if (!name.ends_with(kCount)) continue;
    if (trained.count(name.substr(0, name.size() - kCount.size())) == 0) {
      ++counts.frozen;
    } else {
      counts.moving.push_back(buffer);
    }
  }
  return counts;
}

[[noreturn]] void fail_unknown(const std::string& pattern, const Named& parameters) {
  std::vector<std::string> names;
  for (const auto& [name, parameter] : parameters) names.push_back(name);
  fail(ErrorCode::invalid_argument, "model: model.frozen: \"{}\" names no parameter and no module{}", pattern,
       advice_on_pattern(pattern, names));
}

}  // namespace

void freeze(const ModelState& model, const std::vector<std::string>& patterns) {
  if (patterns.empty()) return;
  std::vector<bool> is_frozen(model.parameters.size(), false);
  for (const std::string& pattern : patterns) {
    bool is_known = false;
    for (std::size_t i = 0; i < model.parameters.size(); ++i) {
      if (!names_parameter(pattern, model.parameters[i].first)) continue;
      is_frozen[i] = is_known = true;
    }
    if (!is_known) fail_unknown(pattern, model.parameters);
  }
  if (std::find(is_frozen.begin(), is_frozen.end(), false) == is_frozen.end()) {
    fail(ErrorCode::invalid_argument,
         "model: model.frozen: wanted a parameter that is left to train, found all {} of them frozen",
         model.parameters.size());
  }
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    if (is_frozen[i]) model.parameters[i].second.requires_grad_(false);
  }
}

std::vector<at::Tensor> moving_batch_counts(const ModelState& model) {
  return batch_counts(model).moving;
}

std::string frozen_text(const ModelState& model) {
  std::int64_t frozen = 0, numbers = 0, all_numbers = 0;
  for (const auto& [name, parameter] : model.parameters) {
    all_numbers += parameter.numel();
    if (parameter.requires_grad()) continue;
    ++frozen;
    numbers += parameter.numel();
  }
  std::string text = fmt::format("{} of {} parameters ({} of {} numbers) get no gradients and no updates", frozen,
                                 model.parameters.size(), numbers, all_numbers);
  if (const std::int64_t norms = batch_counts(model).frozen; norms > 0) {
    text += fmt::format("; {} batch {} running statistics", norms, norms == 1 ? "norm keeps its" : "norms keep their");
  }
  return text;
}

}  // namespace headrace
