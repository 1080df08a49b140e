// What recomputation saves and costs: a forward and backward of networks as they are, with activations and with blocks
// computed again. All take turns; medians and quartiles in ms, bytes that the graph holds between forward and backward,
// and the most that tensors held in a step beside those from before it.
//   recomputation_bench [rounds] [threads] [batch size]
#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "quantile.h"
#include "torch/model/network.h"
#include "torch/tensor/tensor_memory.h"

namespace {

using namespace headrace;

struct Arm {
  std::string name;
  ActivationCheckpointing kind;
  std::vector<double> ms{};
  double saved = 0, peak = 0;  // MiB.
};

void take_step(Network& network, const at::Tensor& images, const at::Tensor& labels, Arm& arm) {
  constexpr double kMiB = 1 << 20;
  network.set_activation_checkpointing(arm.kind, /*every=*/1);
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

void compare(const ModelOptions& options, std::int64_t batch, int side, int rounds) {
  const std::unique_ptr<Network> network = make_network(options, 3, side, side);
  for (const auto& [name, tensor] : network->state().parameters) {
    if (tensor.dim() == 4) tensor.set_data(tensor.detach().contiguous(at::MemoryFormat::ChannelsLast));
  }
  const at::Tensor images = at::randn({batch, 3, side, side}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor labels = at::randint(options.num_classes, {batch}, at::kLong);
  std::vector<Arm> arms{{"none", ActivationCheckpointing::none}};
  if (options.name != "vit") arms.push_back({"activations", ActivationCheckpointing::activations});
  arms.push_back({"blocks", ActivationCheckpointing::blocks});
  for (int round = -1; round < rounds; ++round) {
    for (std::size_t i = 0; i < arms.size(); ++i) {
      Arm& arm = arms[(i + static_cast<std::size_t>(round + 1)) % arms.size()];
      take_step(*network, images, labels, arm);
      if (round < 0) arm.ms.clear();  // Warms up.
    }
  }
  for (const Arm& arm : arms) {
    fmt::print("{:18} {}x3x{}x{} | {:11} | {:9.1f} [{:9.1f}, {:9.1f}] | {:.3f} | {:8.1f} | {:.3f} | {:8.1f}\n",
               options.name, batch, side, side, arm.name, quantile(arm.ms, 0.5), quantile(arm.ms, 0.25),
               quantile(arm.ms, 0.75), quantile(arm.ms, 0.5) / quantile(arms[0].ms, 0.5), arm.saved,
               arm.saved / arms[0].saved, arm.peak);
  }
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 9;
  at::set_num_threads(count > 2 ? std::atoi(arguments[2]) : 2);
  const std::int64_t batch = count > 3 ? std::atoi(arguments[3]) : 16;
  const Applied counted = watch_tensor_memory();
  if (!counted.reason.empty()) fmt::print("bytes are {}: {}\n", counted.applied, counted.reason);
  fmt::print("network | recomputed | ms of a step [quartiles] | ratio | saved MiB | ratio | peak MiB\n");
  ModelOptions options;
  for (const char* name : {"resnet18", "resnet34", "resnet50", "mobilenet_v3_large", "vit"}) {
    options.name = name;
    compare(options, batch, 128, rounds);
  }
  options.name = "resnet34";
  options.stem = Stem::small;
  compare(options, batch, 32, rounds);
}
