#include "torch/model/recomputed_block.h"

#include <ATen/SequenceNumber.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <headrace/activation_checkpointing.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "core/base/fail.h"
#include "torch/model/detail/replay.h"

namespace headrace {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// An input of a block until its backward: as it is, or in the host's memory.
class KeptInput {
 public:
  KeptInput(const at::Tensor& input, bool to_host) : device_(input.device()), wants_gradient_(input.requires_grad()) {
    if (!to_host) {
      saved_ = SavedVariable(input, /*is_output=*/false);
      return;
    }
    const at::Tensor value = input.detach();
    host_ = at::empty_like(value, value.options().device(at::kCPU).pinned_memory(true));
    host_.copy_(value);
    is_on_host_ = true;
  }

  // On its device, outside of every graph.
  at::Tensor unpack() const {
    if (!is_on_host_) return saved_.unpack().detach().requires_grad_(wants_gradient_);
    TORCH_CHECK(host_.defined(), torch::autograd::ERR_BACKWARD_TWICE);
    return host_.to(at::TensorOptions().device(device_), /*non_blocking=*/true).requires_grad_(wants_gradient_);
  }

  void reset() {
    saved_.reset_data();
    host_.reset();
  }

 private:
  at::Device device_;
  bool wants_gradient_, is_on_host_ = false;
  SavedVariable saved_;
  at::Tensor host_;
};

variable_list copies_of(const variable_list& tensors) {
  variable_list copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

// For a scope, buffers hold these values; what is written to them meanwhile is dropped.
class BuffersReplayed {
 public:
  BuffersReplayed(const variable_list& buffers, const variable_list& values) : buffers_(buffers) {
    const variable_list copies = copies_of(values);
    for (const at::Tensor& buffer : buffers_) now_.push_back(buffer.variable_data());
    // Not copied into them: their versions, which the graph of what runs again checks, must stay.
    for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].set_data(copies[i]);
  }
  ~BuffersReplayed() {
    for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].set_data(now_[i]);
  }
  BuffersReplayed(const BuffersReplayed&) = delete;
  BuffersReplayed& operator=(const BuffersReplayed&) = delete;

 private:
  const variable_list& buffers_;
  variable_list now_;
};

// Of the first that is not on the CPU: its operators draw from that device's generator.
at::Device device_of(const variable_list& inputs) {
  const auto found = std::ranges::find_if(inputs, [](const at::Tensor& input) { return !input.is_cpu(); });
  return found == inputs.end() ? at::Device(at::kCPU) : found->device();
}

// Backward of a block: its forward once more, with a graph, and the backward of that. Its edges: inputs, parameters.
class BlockBackward final : public Node {
 public:
  BlockBackward(const BlockPasses& passes, const variable_list& inputs)
      : name_(passes.name),
        again_(passes.again),
        state_(current_state(device_of(inputs), passes.draws)),
        buffers_(passes.buffers),
        buffers_before_(copies_of(passes.buffers)) {
    for (const at::Tensor& input : inputs) inputs_.emplace_back(input, passes.to_host);
  }

  // Once the first pass has shown which parameters want gradients.
  void set_edges(const variable_list& inputs, const variable_list& parameters) {
    for (const at::Tensor& parameter : parameters) parameters_.emplace_back(parameter, /*is_output=*/false);
    set_next_edges(torch::autograd::collect_next_edges(inputs, parameters));
  }

  // The results of the first pass outside of its graph, with this node as theirs where they have one.
  static variable_list results_of(const std::shared_ptr<BlockBackward>& node, const variable_list& outputs) {
    node->results_ = outputs.size();
    variable_list results;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      results.push_back(outputs[i].detach());
      if (!outputs[i].requires_grad()) continue;
      torch::autograd::set_history(results.back(), node);
      node->with_gradient_.push_back(i);
    }
    return results;
  }

  std::string name() const override { return "RecomputedBlockBackward"; }

  variable_list apply(variable_list&& gradients) override {
    if (c10::GradMode::is_enabled()) {
      fail(ErrorCode::unsupported, "{} has no second derivative: backward without create_graph", name_);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    variable_list found(num_outputs());
    if (std::ranges::none_of(gradients, [](const at::Tensor& gradient) { return gradient.defined(); })) return found;
    variable_list inputs, wanted;
    for (const KeptInput& input : inputs_) inputs.push_back(input.unpack());
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < found.size(); ++i) {
      // Unpacking checks that it is unchanged.
      const at::Tensor source = i < inputs.size() ? inputs[i] : parameters_[i - inputs.size()].unpack();
      if (!task_should_compute_output(i)) continue;
      wanted.push_back(source);
      places.push_back(i);
    }
    if (wanted.empty()) return found;
    const auto [outputs, given] = outputs_of(inputs, gradients);
    const variable_list computed = torch::autograd::grad(outputs, wanted, given, /*retain_graph=*/std::nullopt,
                                                         /*create_graph=*/false, /*allow_unused=*/true);
    for (std::size_t i = 0; i < places.size(); ++i) found[places[i]] = computed[i];
    return found;
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (KeptInput& input : inputs_) input.reset();
    for (SavedVariable& parameter : parameters_) parameter.reset_data();
  }

 private:
  // Those that have a gradient, computed again, and their gradients.
  std::pair<variable_list, variable_list> outputs_of(const variable_list& inputs,
                                                     const variable_list& gradients) const {
    const variable_list all = again(inputs);
    if (all.size() != results_) {
      fail(ErrorCode::invalid_argument, "{}: wanted the same results in the backward as in the forward, found {} of {}",
           name_, all.size(), results_);
    }
    std::pair<variable_list, variable_list> found;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      found.first.push_back(all[with_gradient_[i]]);
      found.second.push_back(gradients[i]);
    }
    return found;
  }

  variable_list again(const variable_list& inputs) const {
    const Replayed replayed(state_);
    const BuffersReplayed buffers(buffers_, buffers_before_);
    const NoCopiesOfWeights no_copies;
    const c10::AutoGradMode graph(true);
    return again_(inputs);
  }

  const char* name_;
  BlockPasses::Pass again_;
  ReplayState state_;
  variable_list buffers_, buffers_before_;
  std::vector<KeptInput> inputs_;
  std::vector<SavedVariable> parameters_;
  std::size_t results_ = 0;                 // Of the first pass.
  std::vector<std::size_t> with_gradient_;  // Which of them wait for gradients.
};

// The leaves of a graph that was recorded since `first_number`, but for `inputs`.
variable_list leaves_of(const variable_list& outputs, const variable_list& inputs, std::uint64_t first_number,
                        const char* name) {
  variable_list leaves;
  std::vector<std::shared_ptr<Node>> waiting;
  std::unordered_set<const Node*> seen;
  const auto add = [&](const std::shared_ptr<Node>& node) {
    if (node && seen.insert(node.get()).second) waiting.push_back(node);
  };
  for (const at::Tensor& output : outputs) {
    if (output.requires_grad()) add(torch::autograd::impl::gradient_edge(output).function);
  }
  while (!waiting.empty()) {
    const std::shared_ptr<Node> node = std::move(waiting.back());
    waiting.pop_back();
    if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get())) {
      const auto is_it = [leaf](const at::Tensor& input) { return input.is_same(leaf->variable); };
      if (std::ranges::none_of(inputs, is_it)) leaves.push_back(leaf->variable);
      continue;
    }
    if (node->sequence_nr() < first_number) {
      fail(ErrorCode::invalid_argument,
           "{}: wanted every tensor that has a graph among the inputs, found another one, made by {}", name,
           node->name());
    }
    for (const torch::autograd::Edge& edge : node->next_edges()) add(edge.function);
  }
  return leaves;
}

void check_defined(const variable_list& tensors, const char* name, const char* what) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) fail(ErrorCode::invalid_argument, "{}: {} {} is undefined", name, what, i);
  }
}

}  // namespace

std::vector<at::Tensor> recomputed_block(const BlockPasses& passes, const std::vector<at::Tensor>& inputs) {
  const std::shared_ptr<BlockBackward> node(new BlockBackward(passes, inputs), torch::autograd::deleteNode);
  const std::uint64_t first_number = at::sequence_number::peek();
  // With a graph, which ends here: operators choose their kernel by whether a gradient is wanted, as at::linear does
  // for a weight and an input with other strides than its shape's. Without one the first pass could have other bits
  // than the second and than the plain network.
  variable_list given, outputs;
  for (const at::Tensor& input : inputs) given.push_back(input.detach().requires_grad_(input.requires_grad()));
  {
    const NoCopiesOfWeights no_copies;
    outputs = passes.first(given);
  }
  check_defined(outputs, passes.name, "result");
  node->set_edges(inputs, leaves_of(outputs, given, first_number, passes.name));
  return BlockBackward::results_of(node, outputs);
}

std::vector<at::Tensor> checkpoint(
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& function,
    const std::vector<at::Tensor>& inputs, const CheckpointOptions& options) {
  constexpr const char* kName = "model: checkpoint()";
  if (inputs.empty()) fail(ErrorCode::invalid_argument, "{}: wanted at least one input, found none", kName);
  check_defined(inputs, kName, "input");
  if (!c10::GradMode::is_enabled()) return function(inputs);
  BlockPasses passes{.name = kName, .first = function, .again = function, .draws = options.preserve_rng_state};
  std::ranges::copy_if(options.buffers, std::back_inserter(passes.buffers),
                       [](const at::Tensor& buffer) { return buffer.defined(); });
  return recomputed_block(passes, inputs);
}

at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& function, const at::Tensor& input,
                      const CheckpointOptions& options) {
  const auto of_lists = [function](const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{function(inputs[0])};
  };
  return checkpoint(of_lists, std::vector<at::Tensor>{input}, options)[0];
}

}  // namespace headrace
