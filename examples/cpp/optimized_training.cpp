// Trains a torch::nn network under the names of published examples: hardware settings, a configuration, a trainer made
// of it, and what of the configuration is applied and why the rest is not.
//
//   optimized_training idx:/usr/share/datasets/fashion-mnist 2
#include <headrace/facade/hardware.h>
#include <headrace/facade/optimized_trainer.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

namespace hr = headrace;

namespace {

torch::nn::Sequential two_layers(std::int64_t pixels) {
  return torch::nn::Sequential{torch::nn::Flatten(), torch::nn::Linear(pixels, 128), torch::nn::ReLU(),
                               torch::nn::Linear(128, 10)};
}

void print(const std::vector<hr::Applied>& settings) {
  for (const hr::Applied& setting : settings) {
    std::printf("%s: requested %s, applied %s%s%s\n", setting.key.c_str(), setting.requested.c_str(),
                setting.applied.c_str(), setting.reason.empty() ? "" : "; ", setting.reason.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const char* data = argc > 1 ? argv[1] : "idx:/usr/share/datasets/fashion-mnist";
  const int epochs = argc > 2 ? std::atoi(argv[2]) : 2;
  torch::manual_seed(1);
  print(hr::facade::optimize_cpu_settings().settings());
  const hr::DataOptions options{.batch_size = 32, .transform = {.mean = {0.286}, .std = {0.353}}};
  hr::Loader images{hr::open_source(data, hr::Split::train), options, /*seed=*/1, /*training=*/true};
  hr::Loader test{hr::open_source(data, hr::Split::test), options, /*seed=*/1, /*training=*/false};

  torch::nn::Sequential net = two_layers(images.height() * images.width());
  hr::facade::PerformanceOptimizer performance(hr::facade::PerformanceConfig({.enable_batch_optimization = true}));
  hr::facade::OptimizedTrainer trainer(
      hr::module_state(net.ptr()),
      hr::facade::forward_by([net](const at::Tensor& inputs) mutable { return net->forward(inputs); }), performance);
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    const double loss = trainer.train_epoch(images, epoch, epochs).loss;
    std::printf("epoch %d: loss %.4f, test accuracy %.4f\n", epoch, loss, trainer.validate(test, epoch).accuracy);
  }
  print(performance.get_optimization_status());
} catch (const std::exception& error) {
  std::fprintf(stderr, "optimized_training: %s\n", error.what());
  return 1;
}
