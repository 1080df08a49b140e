// Stochastic weight averaging (Izmailov et al. 2018, arXiv 1803.05407): the mean of a model's weights after several
// epochs, by the arithmetic of torch.optim.swa_utils.AveragedModel.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/loader.h>
#include <headrace/model_state.h>
#include <headrace/trainer.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace headrace {

// Shares the model's tensors, to read and write them; its own are of the size of the parameters. Not thread-safe.
class SwaAverage {
 public:
  explicit SwaAverage(const ModelState& model) : model_(model) {}
  // Goes on with what tensors() of another one gave after so many epochs. Error{corrupt_data}: these are not the
  // model's parameters, and its buffers or none of them, in their shapes and dtypes; the first that is not is named.
  SwaAverage(const ModelState& model, std::int64_t epochs, const std::vector<std::pair<std::string, at::Tensor>>& kept);

  // The model's weights as they are now: mean += (weight - mean) / (epochs + 1) of floating-point ones; others are
  // copied. Buffers that belonged to the mean do not any more.
  void add();
  // The model's buffers as they are now belong to the mean.
  void keep_buffers();
  // Writes the mean over the model's tensors, with the buffers that belong to it.
  void show() const;

  std::int64_t epochs() const { return epochs_; }  // In the mean.
  bool has_buffers() const { return tensors_.size() > model_.parameters.size() || model_.buffers.empty(); }
  // "conv1.weight", ...: parameters, then the buffers that belong to the mean; shared. Empty: no epoch is in it.
  const std::vector<std::pair<std::string, at::Tensor>>& tensors() const { return tensors_; }

 private:
  ModelState model_;
  std::int64_t epochs_ = 0;
  std::vector<std::pair<std::string, at::Tensor>> tensors_;
};

// One pass over the training data, as that epoch loads it, forward alone in training mode, as many samples at once as
// steps compute: for the running statistics of batch normalisations. The CPU's generator is as before afterwards, also
// by exception. false: `stop` said true before a batch. Where memory runs out, the exception goes on.
bool forward_epoch(Trainer& trainer, Loader& loader, std::int64_t epoch, const std::function<bool()>& stop);

}  // namespace headrace
