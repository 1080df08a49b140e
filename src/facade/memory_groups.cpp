#include "facade/memory_groups.h"

#include <ATen/core/Tensor.h>

#include <set>
#include <string_view>

namespace headrace::facade {

std::map<std::string, std::int64_t> memory_groups(const ModelState* model, Optimizer* optimizer, c10::DeviceType type) {
  std::set<const void*> known;
  std::map<std::string, std::int64_t> groups;
  const auto count = [&](std::string_view role, std::string_view name, const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.is_sparse() || tensor.device().type() != type) return;
    const auto& storage = tensor.storage();
    if (storage.data() == nullptr || !known.insert(storage.data()).second) return;
    const std::string group = std::string(role) + " " + std::string(name.substr(0, name.find_first_of("./")));
    groups[group] += static_cast<std::int64_t>(storage.nbytes());
  };
  if (model != nullptr) {
    for (const auto& [name, tensor] : model->parameters) count("parameters", name, tensor);
    for (const auto& [name, tensor] : model->buffers) count("buffers", name, tensor);
    for (const auto& [name, tensor] : model->parameters) count("gradients", name, tensor.grad());
  }
  if (optimizer != nullptr) {
    for (const auto& [name, tensor] : optimizer->parameters()) {
      count("parameters", name, tensor);
      count("gradients", name, tensor.grad());
    }
    for (const auto& [name, tensor] : optimizer->state()) count("optimizer", name, tensor);
  }
  return groups;
}

}  // namespace headrace::facade
