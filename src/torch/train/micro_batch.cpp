#include "torch/train/micro_batch.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/base/fail.h"
#include "torch/tensor/kept_values.h"
#include "torch/tensor/tensor_memory.h"
#include "torch/tensor/translate.h"

namespace headrace {
namespace {

std::string mib_text(std::int64_t bytes) {
  return fmt::format("{}", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

std::int64_t part_size(std::int64_t left, std::int64_t micro_batch) {
  if (micro_batch <= 0 || left <= micro_batch) return left;
  const std::int64_t parts = (left + micro_batch - 1) / micro_batch;
  return (left + parts - 1) / parts;
}

std::optional<std::string> out_of_memory_reason(const std::exception_ptr& exception) {
  const Error error = translate(exception);
  if (error.code() != ErrorCode::out_of_memory) return std::nullopt;
  return error.what();
}

bool has_running_statistics(const ModelState& model) {
  return std::any_of(model.buffers.begin(), model.buffers.end(),
                     [](const auto& named) { return named.first.ends_with("running_mean"); });
}

GradientsAside::GradientsAside(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
  aside_.reserve(parameters_.size());
  for (const at::Tensor& parameter : parameters_) aside_.push_back(std::exchange(parameter.mutable_grad(), {}));
}

// From the end, here and below, as what is listed twice has its gradient at the first place.
GradientsAside::~GradientsAside() {
  for (std::size_t i = aside_.size(); i-- > 0;) parameters_[i].mutable_grad() = std::move(aside_[i]);
}

std::vector<at::Tensor> GradientsAside::put_back() {
  std::vector<at::Tensor> made(aside_.size());
  for (std::size_t i = aside_.size(); i-- > 0;) {
    made[i] = std::exchange(parameters_[i].mutable_grad(), std::move(aside_[i]));
  }
  aside_.clear();
  return made;
}

void add_to_gradients(const std::vector<at::Tensor>& parameters, std::vector<at::Tensor> more) {
  HEADRACE_CHECK(parameters.size() == more.size(), "{} gradients for {} parameters", more.size(), parameters.size());
  c10::AutoGradMode no_graph(false);
  for (std::size_t i = 0; i < more.size(); ++i) {
    if (!more[i].defined()) continue;
    at::Tensor& gradient = parameters[i].mutable_grad();
    if (!gradient.defined()) {
      gradient = std::move(more[i]);
    } else if (gradient.is_sparse() && !more[i].is_sparse()) {
      gradient = more[i].add(gradient);
    } else {
      gradient.add_(more[i]);
    }
  }
}

HeldMemoryLimit::~HeldMemoryLimit() {
  if (before_ && *before_ != set_ && tensor_memory_limit() == set_) set_tensor_memory_limit(*before_);
}

const Applied& HeldMemoryLimit::set(std::int64_t bytes, const ModelState& model) {
  if (bytes < 0) {
    fail(ErrorCode::invalid_argument, "train: memory_limit_mib: wanted at least 0, found {}", mib_text(bytes));
  }
  const NamedTensors weights = weights_of(model);
  const auto elsewhere =
      std::find_if(weights.begin(), weights.end(), [](const auto& named) { return !named.second.is_cpu(); });
  if (bytes > 0 && elsewhere != weights.end()) {
    applied_ = {
        applied_.key, mib_text(bytes), "0",
        fmt::format("the model is on {}, the limit is one of tensors on the CPU", elsewhere->second.device().str())};
    return applied_;
  }
  if (const std::int64_t held = bytes_of(weights); bytes > 0 && bytes < held) {
    fail(ErrorCode::invalid_argument,
         "train: memory_limit_mib: wanted at least the {} that parameters and buffers take, found {}", mib_text(held),
         mib_text(bytes));
  }
  const std::int64_t before = tensor_memory_limit();
  const Applied found = set_tensor_memory_limit(bytes);
  if (bytes > 0) count_tensors(weights);
  if (!before_) before_ = before;
  set_ = tensor_memory_limit();
  applied_ = {applied_.key, mib_text(bytes), mib_text(set_), set_ == bytes ? "" : found.reason};
  return applied_;
}

}  // namespace headrace
