#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <headrace/swa_average.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "core/base/fail.h"
#include "torch/tensor/kept_values.h"
#include "torch/train/micro_batch.h"
#include "torch/train/training_state.h"

namespace headrace {
namespace {

[[noreturn]] void fail_kept(const std::string& name, const std::string& wanted, const std::string& found) {
  fail(ErrorCode::corrupt_data, "train: swa: {}: wanted {}, found {}", name, wanted, found);
}

std::string described(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

const at::Tensor* find(const NamedTensors& tensors, const std::string& name) {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](const auto& entry) { return entry.first == name; });
  return found == tensors.end() ? nullptr : &found->second;
}

class KeptGenerator {
 public:
  KeptGenerator() : state_(generator_state()) {}
  ~KeptGenerator() { set_generator_state(state_); }
  KeptGenerator(const KeptGenerator&) = delete;
  KeptGenerator& operator=(const KeptGenerator&) = delete;

 private:
  at::Tensor state_;
};

}  // namespace

SwaAverage::SwaAverage(const ModelState& model, std::int64_t epochs, const NamedTensors& kept)
    : model_(model), epochs_(epochs) {
  const NamedTensors weights = weights_of(model);
  const bool has_all = kept.size() == weights.size();
  if (epochs < 1) fail_kept("epochs", "at least 1", std::to_string(epochs));
  if (!has_all && kept.size() != model.parameters.size()) {
    fail_kept("tensors", fmt::format("{} or {}", model.parameters.size(), weights.size()), std::to_string(kept.size()));
  }
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const auto& [name, weight] = weights[i];
    const at::Tensor* value = find(kept, name);
    if (value == nullptr) fail_kept(name, described(weight), "none");
    if (value->sizes() != weight.sizes() || value->scalar_type() != weight.scalar_type()) {
      fail_kept(name, described(weight), described(*value));
    }
    tensors_.emplace_back(name, at::empty_like(weight.detach()).copy_(*value));
  }
}

void SwaAverage::add() {
  c10::AutoGradMode no_graph(false);
  tensors_.resize(std::min(tensors_.size(), model_.parameters.size()));
  if (epochs_++ == 0) {
    for (const auto& [name, parameter] : model_.parameters) tensors_.emplace_back(name, parameter.detach().clone());
    return;
  }
  std::vector<at::Tensor> means, weights;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    at::Tensor& mean = tensors_[i].second;
    const at::Tensor weight = model_.parameters[i].second.detach();
    // After a change of the memory format: a run that is resumed has its means in the new one, too.
    if (mean.strides() != weight.strides()) mean = at::empty_like(weight).copy_(mean);
    if (mean.is_floating_point()) {
      means.push_back(mean);
      weights.push_back(weight);
    } else {
      mean.copy_(weight);
    }
  }
  if (!means.empty()) at::_foreach_lerp_(means, weights, 1.0 / static_cast<double>(epochs_));
}

void SwaAverage::keep_buffers() {
  c10::AutoGradMode no_graph(false);
  tensors_.resize(model_.parameters.size());
  for (const auto& [name, buffer] : model_.buffers) tensors_.emplace_back(name, buffer.detach().clone());
}

void SwaAverage::show() const {
  NamedTensors shown = weights_of(model_);
  shown.resize(tensors_.size());
  std::vector<at::Tensor> values;
  for (const auto& [name, value] : tensors_) values.push_back(value);
  put_values(shown, values);
}

bool forward_epoch(Trainer& trainer, Loader& loader, std::int64_t epoch, const std::function<bool()>& stop) {
  const KeptGenerator generator;
  Epoch batches = loader.epoch(epoch);
  while (const std::optional<Batch> host = batches.next()) {
    if (stop && stop()) return false;
    const TensorBatch batch = trainer.transfer(*host);
    const std::int64_t size = batch.size();
    for (std::int64_t begin = 0; begin < size;) {
      const std::int64_t end = begin + part_size(size - begin, trainer.progress().micro_batch);
      trainer.forward_without_graph(end - begin == size ? batch : batch.part(begin, end));
      begin = end;
    }
  }
  return true;
}

}  // namespace headrace
