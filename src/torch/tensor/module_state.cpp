#include <headrace/model_state.h>
#include <torch/nn/module.h>

#include <unordered_set>

#include "core/base/fail.h"

namespace headrace {
namespace {

class ModeSwitch {
 public:
  explicit ModeSwitch(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {}

  void set_training(bool training) {
    if (training) {
      for (const auto& [part, mode] : modes_) part->train(mode);  // Of its children, too, whose turn comes later.
      modes_.clear();
      return;
    }
    modes_.clear();
    for (auto& part : module_->modules()) modes_.emplace_back(part, part->is_training());
    module_->eval();
  }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;  // A module before its children.
};

}  // namespace

ModelState module_state(std::shared_ptr<torch::nn::Module> module) {
  if (module == nullptr) fail(ErrorCode::invalid_argument, "model: wanted a torch::nn module, found none");
  ModelState state;
  std::unordered_set<const at::TensorImpl*> known;  // Tied weights stand there once, by their first name.
  const auto is_first = [&known](const at::Tensor& tensor) {
    return known.insert(tensor.unsafeGetTensorImpl()).second;
  };
  for (const auto& item : module->named_parameters()) {
    if (is_first(item.value())) state.parameters.emplace_back(item.key(), item.value());
  }
  for (const auto& item : module->named_buffers()) {
    if (is_first(item.value())) state.buffers.emplace_back(item.key(), item.value());
  }
  if (state.parameters.empty()) {
    fail(ErrorCode::invalid_argument, "model: {} has no parameters to train", module->name());
  }
  // Owners: the copies of the switch.
  auto mode = std::make_shared<ModeSwitch>(std::move(module));
  state.set_training = [mode](bool training) { mode->set_training(training); };
  return state;
}

}  // namespace headrace
