// Trains a torch::nn network on images with the native Trainer: autocast, accumulation, clipping and the fused update
// are options.
//
//   train idx:/usr/share/datasets/fashion-mnist 2
#include <headrace/trainer.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

namespace hr = headrace;

namespace {

torch::nn::Sequential two_layers(std::int64_t pixels) {
  return torch::nn::Sequential{torch::nn::Flatten(), torch::nn::Linear(pixels, 128), torch::nn::ReLU(),
                               torch::nn::Linear(128, 10)};
}

hr::Forward classify(torch::nn::Sequential net) {
  return [net = std::move(net)](const hr::TensorBatch& batch) mutable -> hr::Output {
    const at::Tensor logits = net->forward(batch["image"]);
    return {torch::nn::functional::cross_entropy(logits, batch["labels"]), {{"logits", logits}}};
  };
}

}  // namespace

int main(int argc, char** argv) try {
  const char* data = argc > 1 ? argv[1] : "idx:/usr/share/datasets/fashion-mnist";
  const int epochs = argc > 2 ? std::atoi(argv[2]) : 2;
  torch::manual_seed(1);
  const hr::DataOptions options{.batch_size = 128, .transform = {.mean = {0.286}, .std = {0.353}}};
  hr::Loader images{hr::open_source(data, hr::Split::train), options, /*seed=*/1, /*training=*/true};
  hr::Loader test{hr::open_source(data, hr::Split::test), options, /*seed=*/1, /*training=*/false};

  const torch::nn::Sequential net = two_layers(images.height() * images.width());
  const hr::ModelState model = hr::module_state(net.ptr());
  const hr::OptimizerOptions adamw{.lr = 1e-3, .fused = hr::Switch::on};
  const hr::TrainOptions clipped{.epochs = epochs, .max_grad_norm = 1.0};
  const hr::LrSchedulerOptions cosine{{.name = hr::LrSchedulerName::CosineAnnealingLR}};
  hr::Trainer trainer(model, hr::Optimizer{model.parameters, adamw}, classify(net), clipped, cosine,
                      epochs * images.batches_per_epoch());
  for (int i = 0; i < epochs; ++i) {
    hr::Epoch epoch = images.epoch(i);
    while (const auto batch = epoch.next()) trainer.step(*batch);
    std::printf("epoch %d: loss %.4f, test accuracy %.4f\n", i + 1, trainer.take_mean_loss().value(),
                hr::evaluate(trainer, test).accuracy);
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "train: %s\n", error.what());
  return 1;
}
