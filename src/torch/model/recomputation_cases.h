// What tests of activation checkpointing train: small networks, by one thread, with all that a step gives and leaves.
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <headrace/model.h>

#include <map>
#include <memory>
#include <string>

#include "torch/tensor/compute.h"
#include "torch/tensor/tensor_allocations.h"

namespace headrace {

inline constexpr int kSide = 32;

// One thread: these networks take hundreds of small steps, for which two threads that a neighbour slows down wait for
// each other.
class OneThread : public ::testing::Test {
 protected:
  OneThread() : threads_{at::get_num_threads()} { apply_compute_threads(1); }
  ~OneThread() override { apply_compute_threads(threads_); }

 private:
  int threads_;
};

inline ModelOptions named(const std::string& name) {
  ModelOptions options;
  options.name = name;
  if (name == "vit") {
    options.vit = {.patch_size = 8, .num_layers = 3, .num_heads = 2, .hidden_dim = 32, .mlp_dim = 48};
    options.vit.dropout = options.vit.attention_dropout = 0.3;
  }
  return options;
}

inline std::unique_ptr<Network> seeded(ModelOptions options, ActivationCheckpointing kind, int side = kSide) {
  options.activation_checkpointing = kind;
  at::manual_seed(11);
  std::unique_ptr<Network> network = make_network(options, 3, side, side);
  const c10::AutoGradMode no_graph(false);
  for (const auto& [name, tensor] : network->state().parameters) {
    if (name == "heads.head.weight") tensor.normal_(0.0, 0.1);  // Drawn as 0, which would hide what lies before it.
  }
  return network;
}

enum class Arithmetic { float32, bf16 };

// Autocast for a scope; the backward is called outside of it, as PyTorch's documents say.
class Bf16 {
 public:
  explicit Bf16(Arithmetic arithmetic) {
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, arithmetic == Arithmetic::bf16);
  }
  ~Bf16() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  }
  Bf16(const Bf16&) = delete;
  Bf16& operator=(const Bf16&) = delete;
};

inline at::Tensor loss_of(Network& network, const at::Tensor& images, Arithmetic arithmetic = Arithmetic::float32) {
  const Bf16 scope(arithmetic);
  const at::Tensor logits = network.forward(images);
  return at::cross_entropy_loss(logits, at::arange(images.size(0), at::kLong).remainder(logits.size(1)));
}

inline void take_step(const ModelState& state) {
  const c10::AutoGradMode no_graph(false);
  for (const auto& [name, tensor] : state.parameters) {
    if (tensor.grad().defined()) tensor.sub_(tensor.grad(), 0.02);
    tensor.mutable_grad().reset();
  }
}

using Values = std::map<std::string, at::Tensor>;

// Losses and gradients of three steps, what they leave behind, and what the generator draws next.
inline Values trained(Network& network, at::MemoryFormat format, Arithmetic arithmetic) {
  const ModelState state = network.state();
  {
    const c10::AutoGradMode no_graph(false);
    for (const auto& [name, tensor] : state.parameters) {
      if (tensor.dim() == 4) tensor.set_data(tensor.detach().contiguous(format));
    }
  }
  at::manual_seed(12);
  Values values;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor images = at::randn({4, 3, kSide, kSide}).contiguous(format);
    const at::Tensor loss = loss_of(network, images, arithmetic);
    loss.backward();
    const std::string number = std::to_string(step);
    values["loss " + number] = loss.detach();
    for (const auto& [name, tensor] : state.parameters) {
      if (tensor.grad().defined()) values["gradient " + number + " of " + name] = tensor.grad();
    }
    take_step(state);
  }
  for (const auto& [name, tensor] : state.parameters) values[name] = tensor.detach();
  for (const auto& [name, tensor] : state.buffers) values[name] = tensor;
  values["next draw"] = at::rand({4});
  return values;
}

inline void expect_bits(const Values& wanted, const Values& found, const std::string& of) {
  ASSERT_EQ(wanted.size(), found.size()) << of;
  for (const auto& [name, tensor] : wanted) {
    ASSERT_TRUE(found.contains(name)) << of << ": " << name;
    EXPECT_TRUE(found.at(name).equal(tensor)) << of << ": " << name;
  }
}

// Bytes that the graph of a training step holds beside parameters, as LibTorch's allocator reports them.
inline double saved_bytes(const ModelOptions& options, ActivationCheckpointing kind, int side) {
  const auto network = seeded(options, kind, side);
  const at::Tensor images = at::randn({4, 3, side, side});
  const TensorAllocations counted;
  const at::Tensor loss = loss_of(*network, images);
  return static_cast<double>(TensorAllocations::bytes().value());
}

// Calls of each operator in this thread, while it lives.
class OperatorCounts {
 public:
  OperatorCounts() {
    counts().clear();
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(began).scopes({at::RecordScope::FUNCTION}));
  }
  ~OperatorCounts() { at::removeCallback(handle_); }
  OperatorCounts(const OperatorCounts&) = delete;
  OperatorCounts& operator=(const OperatorCounts&) = delete;

  int of(const std::string& name) const { return counts()[name]; }

 private:
  static std::map<std::string, int>& counts() {
    static std::map<std::string, int> all;
    return all;
  }
  static std::unique_ptr<at::ObserverContext> began(const at::RecordFunction& operation) {
    ++counts()[operation.name()];
    return nullptr;
  }
  at::CallbackHandle handle_;
};

}  // namespace headrace
