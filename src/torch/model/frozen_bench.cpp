// What a frozen network saves in evaluation: forward of a batch as the network computes it in evaluation mode, and
// frozen. Both take turns; medians and quartiles in ms, and the largest difference of the logits.
//   frozen_bench [rounds] [threads]
#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <headrace/model.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "quantile.h"

namespace {

using namespace headrace;

double milliseconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

void compare(const std::string& name, int channels, int side, int rounds) {
  ModelOptions options;
  options.name = name;
  const std::unique_ptr<Network> network = make_network(options, channels, side, side);
  network->state().set_training(false);
  const auto frozen = network->frozen();
  const at::Tensor images = at::randn({128, channels, side, side});
  std::vector<double> plain_ms, frozen_ms;
  at::Tensor wanted, found;
  for (int round = -3; round < rounds; ++round) {
    const double first = milliseconds([&] { wanted = network->forward(images); });
    const double second = milliseconds([&] { found = frozen(images); });
    if (round < 0) continue;  // Warms up.
    plain_ms.push_back(first);
    frozen_ms.push_back(second);
  }
  const auto text = [](const std::vector<double>& ms) {
    return fmt::format("{:8.2f} [{:8.2f}, {:8.2f}]", quantile(ms, 0.5), quantile(ms, 0.25), quantile(ms, 0.75));
  };
  fmt::print("{:12} 128x{}x{:3}x{:3} |{} |{} | {:.2f} | {:.1e}\n", name, channels, side, side, text(plain_ms),
             text(frozen_ms), quantile(plain_ms, 0.5) / quantile(frozen_ms, 0.5),
             wanted.sub(found).abs().max().item<double>());
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 20;
  at::set_num_threads(count > 2 ? std::atoi(arguments[2]) : 2);
  const c10::AutoGradMode no_graph(false);
  fmt::print("ms of a forward | as the network computes it | frozen | ratio | largest difference\n");
  compare("small_cnn", 1, 28, rounds);
  compare("strided_cnn", 3, 64, rounds);
  compare("resnet18", 3, 64, rounds / 2);
}
