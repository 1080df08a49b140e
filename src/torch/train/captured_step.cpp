#include "torch/train/captured_step.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr std::int64_t kRows = 64;  // Of figures in one block: memory is taken once for so many steps.

// Read by the step from memory, so that they may change.
OptimizerOptions without_rate(OptimizerOptions options) {
  options.lr = 0;
  return options;
}

}  // namespace

CaptureState::Seen CaptureState::seen_of(const at::Tensor& tensor) {
  return {tensor.has_storage() ? tensor.const_data_ptr() : nullptr, tensor.requires_grad()};
}

CaptureState::CaptureState(const ModelState& model, const Optimizer& optimizer, std::uint64_t settings)
    : optimizer_(optimizer.identity()), settings_(settings) {
  for (const auto& [name, tensor] : model.parameters) tensors_.push_back(seen_of(tensor));
  for (const auto& [name, tensor] : model.buffers) tensors_.push_back(seen_of(tensor));
  for (std::size_t i = 0; i < optimizer.groups(); ++i) options_.push_back(without_rate(optimizer.options(i)));
}

bool CaptureState::is_of(const ModelState& model, const Optimizer& optimizer, std::uint64_t settings) const {
  if (settings_ != settings || optimizer_ != optimizer.identity() || options_.size() != optimizer.groups())
    return false;
  std::size_t place = 0;
  const auto lies_there = [&](const auto& named) { return tensors_[place++] == seen_of(named.second); };
  if (tensors_.size() != model.parameters.size() + model.buffers.size() ||
      !std::all_of(model.parameters.begin(), model.parameters.end(), lies_there) ||
      !std::all_of(model.buffers.begin(), model.buffers.end(), lies_there)) {
    return false;
  }
  for (std::size_t i = 0; i < options_.size(); ++i) {
    if (!(options_[i] == without_rate(optimizer.options(i)))) return false;
  }
  return true;
}

StepForm::StepForm(const std::vector<at::Tensor>& tensors, std::string structure, c10::Device device,
                   Accelerator* accelerator)
    : structure_(std::move(structure)), device_(device), accelerator_(accelerator) {
  for (const at::Tensor& tensor : tensors) parts_.push_back({tensor.sizes().vec(), tensor.scalar_type()});
}

bool StepForm::is_of(const std::vector<at::Tensor>& tensors, const std::string& structure) const {
  return structure == structure_ && std::equal(parts_.begin(), parts_.end(), tensors.begin(), tensors.end(),
                                               [](const Part& part, const at::Tensor& tensor) {
                                                 return tensor.scalar_type() == part.type &&
                                                        tensor.sizes() == at::IntArrayRef(part.sizes);
                                               });
}

std::vector<at::Tensor> StepForm::moved(const std::vector<at::Tensor>& tensors) {
  const auto is_there = [this](const at::Tensor& tensor) { return tensor.device() == device_; };
  if (std::all_of(tensors.begin(), tensors.end(), is_there)) return tensors;
  c10::AutoGradMode no_graph(false);
  std::vector<at::Tensor> there;
  if (accelerator_ == nullptr) {
    for (const at::Tensor& tensor : tensors) there.push_back(tensor.to(device_));
    return there;
  }
  std::vector<at::Tensor> from, to;
  for (const at::Tensor& tensor : tensors) {
    there.push_back(is_there(tensor) ? tensor : at::empty_like(tensor, tensor.options().device(device_)));
    if (is_there(tensor)) continue;
    from.push_back(tensor);
    to.push_back(there.back());
  }
  if (transfer_ == nullptr) transfer_ = accelerator_->batch_transfer();
  transfer_->copy(from, to);
  return there;
}

void StepForm::forget_capture() {
  work_.reset();
  reads_.clear();
  replays = 0;
  inputs_.clear();
  figures_.reset();
  block_.reset();
}

void StepForm::capture(const std::vector<at::Tensor>& tensors, CaptureState state, std::vector<at::Tensor> reads,
                       const std::function<at::Tensor(const std::vector<at::Tensor>&)>& work) {
  HEADRACE_CHECK(work_ == nullptr, "a step that is captured already");
  c10::AutoGradMode no_graph(false);
  try {
    for (const at::Tensor& tensor : tensors) {
      inputs_.push_back(at::empty_like(tensor, tensor.options().device(device_)));
    }
    transfer_ = accelerator_->batch_transfer();  // The sets of the other steps' may have another order.
    transfer_->copy(tensors, inputs_);
    work_ = accelerator_->capture([this, work] {
      c10::AutoGradMode with_graph(true);
      figures_ = work(inputs_);
    });
  } catch (...) {
    forget_capture();
    throw;
  }
  captured_with_ = std::move(state);
  reads_ = std::move(reads);
  ++captures;
}

StepForm::Figures StepForm::replay(const std::vector<at::Tensor>& tensors, const std::function<void()>& copied) {
  c10::AutoGradMode no_graph(false);
  transfer_->copy(tensors, inputs_);
  copied();
  work_->replay();
  ++replays;
  if (!block_.defined() || rows_used_ == kRows) {
    block_ = at::empty({kRows, figures_.numel()}, figures_.options());
    rows_used_ = 0;
  }
  accelerator_->copy_elements(figures_, block_, rows_used_ * figures_.numel());
  return {block_, rows_used_++};
}

}  // namespace headrace
