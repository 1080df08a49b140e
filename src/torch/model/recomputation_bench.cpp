// What recomputation saves and costs: a forward and backward of networks as they are, with activations, with all
// blocks, and with blocks for half of the bytes computed again. All take turns; medians and quartiles in ms, bytes that
// the graph holds between forward and backward, and the most that tensors held in a step beside those from before it.
//   recomputation_bench [rounds] [threads] [batch size]
#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <headrace/model.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "quantile.h"
#include "torch/tensor/tensor_memory.h"

namespace {

using namespace headrace;

struct Arm {
  std::string name;
  std::unique_ptr<Network> network;
  std::vector<double> ms{};
  double saved = 0, peak = 0;  // MiB.
};

constexpr double kMiB = 1 << 20;

std::unique_ptr<Network> network_of(const ModelOptions& options, int side) {
  std::unique_ptr<Network> network = make_network(options, 3, side, side);
  for (const auto& [name, tensor] : network->state().parameters) {
    if (tensor.dim() == 4) tensor.set_data(tensor.detach().contiguous(at::MemoryFormat::ChannelsLast));
  }
  return network;
}

void take_step(Arm& arm, const at::Tensor& images, const at::Tensor& labels) {
  Network& network = *arm.network;
  for (const auto& [name, tensor] : network.state().parameters) tensor.mutable_grad().reset();
  const std::int64_t before = tensor_bytes();
  reset_peak_tensor_bytes();
  const auto start = std::chrono::steady_clock::now();
  const at::Tensor loss = at::cross_entropy_loss(network.forward(images), labels);
  arm.saved = static_cast<double>(tensor_bytes() - before) / kMiB;
  loss.backward();
  arm.ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  arm.peak = static_cast<double>(peak_tensor_bytes() - before) / kMiB;
}

// With a budget of half of what the plain network keeps.
std::vector<Arm> arms_of(ModelOptions options, int side, const at::Tensor& images, const at::Tensor& labels) {
  std::vector<Arm> arms;
  const auto add = [&](const std::string& name, ActivationCheckpointing kind) {
    options.activation_checkpointing = kind;
    arms.push_back({name, network_of(options, side)});
  };
  add("none", ActivationCheckpointing::none);
  if (options.name != "vit") add("activations", ActivationCheckpointing::activations);
  add("blocks", ActivationCheckpointing::blocks);
  take_step(arms.front(), images, labels);
  options.checkpoint_budget_mib = 0.5 * arms.front().saved;
  add("half budget", ActivationCheckpointing::blocks);
  return arms;
}

void compare(const ModelOptions& options, std::int64_t batch, int side, int rounds) {
  const at::Tensor images = at::randn({batch, 3, side, side}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor labels = at::randint(options.num_classes, {batch}, at::kLong);
  std::vector<Arm> arms = arms_of(options, side, images, labels);
  for (int round = -1; round < rounds; ++round) {
    for (std::size_t i = 0; i < arms.size(); ++i) {
      Arm& arm = arms[(i + static_cast<std::size_t>(round + 1)) % arms.size()];
      take_step(arm, images, labels);
      if (round < 0) arm.ms.clear();  // Warms up, and measures what a budget asks.
    }
  }
  for (const Arm& arm : arms) {
    const CheckpointingReport report = arm.network->checkpointing_report();
    const std::string name = options.name + (options.stem == Stem::small ? ", small stem" : "");
    fmt::print(
        "{:22} {}x3x{}x{} | {:11} | {:9.1f} [{:9.1f}, {:9.1f}] | {:.3f} | {:8.1f} | {:.3f} | {:8.1f} | {} of {}\n",
        name, batch, side, side, arm.name, quantile(arm.ms, 0.5), quantile(arm.ms, 0.25), quantile(arm.ms, 0.75),
        quantile(arm.ms, 0.5) / quantile(arms[0].ms, 0.5), arm.saved, arm.saved / arms[0].saved, arm.peak,
        report.recomputed.size(), report.blocks.size());
    for (const Applied& applied : report.applied) {
      if (!applied.reason.empty()) fmt::print("  {}: {}\n", applied.key, applied.reason);
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 9;
  at::set_num_threads(count > 2 ? std::atoi(arguments[2]) : 2);
  const std::int64_t batch = count > 3 ? std::atoi(arguments[3]) : 16;
  const Applied counted = watch_tensor_memory();
  if (!counted.reason.empty()) fmt::print("bytes are {}: {}\n", counted.applied, counted.reason);
  fmt::print("network | recomputed | ms of a step [quartiles] | ratio | saved MiB | ratio | peak MiB | blocks\n");
  ModelOptions options;
  for (const char* name : {"resnet18", "resnet34", "resnet50", "mobilenet_v3_large", "vit"}) {
    options.name = name;
    compare(options, batch, 128, rounds);
  }
  options.stem = Stem::small;
  for (const char* name : {"resnet18", "resnet34", "resnet50"}) {
    options.name = name;
    compare(options, batch, 32, rounds);
  }
}
