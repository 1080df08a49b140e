#include "torch/model/activation_checkpointing.h"

#include <algorithm>
#include <cstddef>

#include "core/base/fail.h"
#include "core/base/nearest_name.h"

namespace headrace {
namespace {

constexpr double kBudgetMibMax = 16777216;  // As recipes have it.

// The keys that ask for something, as a recipe has them: `checkpoint_every = 2`.
std::vector<std::string> choices_of_blocks(const CheckpointingRequest& request) {
  std::vector<std::string> found;
  if (request.every != 1) found.push_back(fmt::format("checkpoint_every = {}", request.every));
  if (!request.blocks.empty()) {
    found.push_back(fmt::format("checkpoint_blocks = [\"{}\"]", fmt::join(request.blocks, "\", \"")));
  }
  if (request.budget_mib != 0) found.push_back(fmt::format("checkpoint_budget_mib = {}", request.budget_mib));
  return found;
}

// The blocks, and all that they lie in: layer1.0 and layer1.
std::vector<std::string> names_that_hold(const std::vector<std::string>& blocks) {
  std::vector<std::string> names;
  for (const std::string& block : blocks) {
    for (std::size_t dot = block.find('.'); dot != std::string::npos; dot = block.find('.', dot + 1)) {
      names.push_back(block.substr(0, dot));
    }
    names.push_back(block);
  }
  return names;
}

[[noreturn]] void fail_unknown(const std::vector<std::string>& names, const std::string& wanted) {
  const std::string nearest = nearest_name(names_that_hold(names), wanted);
  fail(ErrorCode::invalid_argument,
       "model: model.checkpoint_blocks: wanted blocks of the network, {} to {}, or what they lie in, found \"{}\"{}",
       names.front(), names.back(), wanted,
       nearest.empty() ? std::string{} : fmt::format(", did you mean {}?", nearest));
}

}  // namespace

CheckpointingRequest checkpointing_request(const ModelOptions& options) {
  const CheckpointingRequest request{options.activation_checkpointing, options.checkpoint_every,
                                     options.checkpoint_blocks, options.checkpoint_budget_mib,
                                     options.checkpoint_offload};
  if (request.every < 1) {
    fail(ErrorCode::invalid_argument, "model: model.checkpoint_every: wanted at least 1, found {}", request.every);
  }
  if (!(request.budget_mib >= 0 && request.budget_mib <= kBudgetMibMax)) {
    fail(ErrorCode::invalid_argument, "model: model.checkpoint_budget_mib: wanted 0 to {}, found {}", kBudgetMibMax,
         request.budget_mib);
  }
  std::vector<std::string> asked = choices_of_blocks(request);
  if (asked.size() > 1) {
    fail(ErrorCode::invalid_argument,
         "model: wanted one of model.checkpoint_every, checkpoint_blocks and checkpoint_budget_mib, found {}",
         fmt::join(asked, " and "));
  }
  if (request.offload != CheckpointOffload::none) {
    asked.push_back(fmt::format("checkpoint_offload = \"{}\"", choice_name(request.offload)));
  }
  if (!asked.empty() && request.kind != ActivationCheckpointing::blocks) {
    fail(ErrorCode::invalid_argument,
         "model: model.{} is for model.activation_checkpointing = \"blocks\", found \"{}\"", asked.front(),
         choice_name(request.kind));
  }
  return request;
}

std::vector<bool> requested_blocks(const std::vector<std::string>& names, const CheckpointingRequest& request) {
  std::vector<bool> chosen(names.size(), false);
  if (request.blocks.empty()) {
    for (std::size_t i = 0; i < names.size(); i += static_cast<std::size_t>(request.every)) chosen[i] = true;
    return chosen;
  }
  for (const std::string& wanted : request.blocks) {
    bool is_known = false;
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (names[i] != wanted && !names[i].starts_with(wanted + ".")) continue;
      chosen[i] = is_known = true;
    }
    if (!is_known) fail_unknown(names, wanted);
  }
  return chosen;
}

}  // namespace headrace
