#include "torch/train/micro_batch.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

#include "core/base/fail.h"
#include "torch/tensor/kept_values.h"
#include "torch/tensor/tensor_memory.h"
#include "torch/tensor/translate.h"
#include "torch/train/training_state.h"

namespace headrace {
namespace {

namespace autograd = torch::autograd;

// Reaches what the engine keeps for those that are derived from it; never made.
class EngineQueue : public autograd::Engine {
 public:
  static void renew() {
    const auto take = &EngineQueue::init_local_ready_queue;  // For this thread.
    (autograd::Engine::get_default_engine().*take)(std::make_shared<autograd::ReadyQueue>());
  }
};

// The limits that live, each with whose it is.
class HeldLimits {
 public:
  // Lasts as long as the process: limits may end after all else.
  static HeldLimits& all() {
    static HeldLimits& limits = *new HeldLimits;
    return limits;
  }

  // As the newest; 0 ends it.
  Applied set(const HeldMemoryLimit* holder, std::int64_t bytes) {
    const std::scoped_lock lock(mutex_);
    if (bytes == 0) {
      end_held(holder);
      return {};
    }
    const std::int64_t before = tensor_memory_limit();
    Applied applied = set_tensor_memory_limit(bytes);
    if (!applied.reason.empty()) return applied;
    if (limits_.empty()) without_ = before;
    std::erase_if(limits_, [holder](const Held& held) { return held.holder == holder; });
    limits_.push_back({holder, bytes});
    return applied;
  }

  void end(const HeldMemoryLimit* holder) {
    const std::scoped_lock lock(mutex_);
    end_held(holder);
  }

 private:
  struct Held {
    const HeldMemoryLimit* holder;
    std::int64_t bytes;
  };

  void end_held(const HeldMemoryLimit* holder) {
    const auto ended =
        std::find_if(limits_.begin(), limits_.end(), [holder](const Held& held) { return held.holder == holder; });
    if (ended == limits_.end()) return;
    const bool in_force = ended + 1 == limits_.end() && tensor_memory_limit() == ended->bytes;
    limits_.erase(ended);
    if (in_force) set_tensor_memory_limit(limits_.empty() ? without_ : limits_.back().bytes);
  }

  std::mutex mutex_;
  std::int64_t without_ = 0;  // What was in force before the first.
  std::vector<Held> limits_;  // Oldest first.
};

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

void renew_ready_queue() {
  if (autograd::get_current_graph_task_id() == -1) EngineQueue::renew();
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

void count_training(const ModelState& model, const NamedTensors& averages, Optimizer& optimizer) {
  NamedTensors tensors = training_tensors(model, averages, optimizer);
  for (const auto& [name, parameter] : model.parameters) tensors.emplace_back(name, parameter.grad());
  count_tensors(tensors);
}

HeldMemoryLimit::~HeldMemoryLimit() {
  HeldLimits::all().end(this);
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
  const Applied found = HeldLimits::all().set(this, bytes);
  const std::int64_t in_force = tensor_memory_limit();
  const std::string reason = bytes == 0 ? "another limit than the trainer's own is in force" : found.reason;
  applied_ = {applied_.key, mib_text(bytes), mib_text(in_force), in_force == bytes ? "" : reason};
  return applied_;
}

}  // namespace headrace
