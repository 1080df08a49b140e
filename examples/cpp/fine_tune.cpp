// Fine-tunes a network by name: the weights of a file, a frozen part, rates by name, averages of the weights, and
// checkpoints that another thread writes. Killed and called again it goes on from the newest one, to the same bits.
//
//   fine_tune idx:/usr/share/datasets/fashion-mnist runs/first 2
//   fine_tune idx:/usr/share/datasets/fashion-mnist runs/tuned 2 runs/first/weights.safetensors
#include <ATen/Context.h>
#include <headrace/checkpoint.h>
#include <headrace/checkpoint_writer.h>
#include <headrace/loss.h>
#include <headrace/model.h>
#include <headrace/parameter_groups.h>
#include <headrace/trainer.h>
#include <headrace/weights.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace hr = headrace;

namespace {

constexpr const char* kModel = "small_cnn";
constexpr std::uint64_t kSeed = 1;

// Without a file: drawn, and nothing frozen.
std::unique_ptr<hr::Network> network_of(const hr::Loader& images, const std::string& weights) {
  hr::ModelOptions options{.name = kModel, .num_classes = 10};
  options.weights = weights;
  if (!weights.empty()) options.frozen = {"conv1", "bn1"};
  at::manual_seed(kSeed);
  return hr::make_network(options, images.channels(), images.height(), images.width());
}

// A tenth of the rate below the classifier, and no decay of biases and norms.
hr::Optimizer optimizer_of(const hr::ModelState& model) {
  const hr::OptimizerOptions adamw{
      .lr = 1e-3, .decay_mult_1d = 0.0, .group = {{.params = {"conv*", "bn*"}, .lr_mult = 0.1}}};
  return hr::Optimizer(hr::parameter_groups(model.parameters, adamw));
}

hr::Forward classify(hr::Network& network) {
  return [&network](const hr::TensorBatch& batch) {
    return hr::classification(network.forward(batch["image"]), batch, {.label_smoothing = 0.1});
  };
}

void resume(const std::filesystem::path& folder, hr::Trainer& trainer) {
  std::vector<std::string> warnings;
  const auto found = hr::load_newest_checkpoint(folder, trainer, kModel, /*weights_only=*/false, warnings);
  for (const std::string& warning : warnings) std::fprintf(stderr, "fine_tune: %s\n", warning.c_str());
  if (found) std::printf("goes on from %s\n", found->path.filename().c_str());
}

// What is left of the epoch; a checkpoint every tenth update and at its end.
void train_epoch(hr::Loader& images, hr::Trainer& trainer, hr::CheckpointWriter& writer,
                 const std::filesystem::path& folder) {
  const hr::RunState run{.model = kModel, .seed = kSeed, .batches_per_epoch = images.batches_per_epoch()};
  hr::Progress& progress = trainer.progress();
  hr::Epoch epoch = images.epoch(progress.epoch, progress.batch);
  while (const auto batch = epoch.next()) {
    trainer.step(*batch);
    const bool is_last = progress.batch == run.batches_per_epoch;
    if (!is_last && progress.optimizer_steps % 10 == 0) writer.save(folder, trainer, run, /*keep=*/2);
  }
  ++progress.epoch;
  progress.batch = 0;
  writer.save(folder, trainer, run, /*keep=*/2);
}

}  // namespace

int main(int argc, char** argv) try {
  const char* data = argc > 1 ? argv[1] : "idx:/usr/share/datasets/fashion-mnist";
  const std::filesystem::path folder = argc > 2 ? argv[2] : "runs/first";
  const int epochs = argc > 3 ? std::atoi(argv[3]) : 2;
  const hr::DataOptions options{.batch_size = 64,
                                .transform = {.flip_probability = 0.5, .mean = {0.286}, .std = {0.353}}};
  hr::Loader images{hr::open_source(data, hr::Split::train), options, kSeed, /*training=*/true};
  hr::Loader test{hr::open_source(data, hr::Split::test), options, kSeed, /*training=*/false};

  const std::unique_ptr<hr::Network> network = network_of(images, argc > 4 ? argv[4] : "");
  hr::Trainer trainer(network->state(), optimizer_of(network->state()), classify(*network),
                      {.epochs = epochs, .max_grad_norm = 1.0, .ema_decay = 0.99},
                      {{.name = hr::LrSchedulerName::CosineAnnealingLR}}, epochs * images.batches_per_epoch());
  resume(folder, trainer);
  hr::CheckpointWriter writer(/*beside=*/true);
  while (trainer.progress().epoch < epochs) {
    train_epoch(images, trainer, writer, folder);
    trainer.with_averages([&] { std::printf("test accuracy %.4f\n", hr::evaluate(trainer, test).accuracy); });
  }
  writer.finish();  // Throws what the last write has thrown.
  trainer.with_averages([&] { hr::save_weights(folder / "weights.safetensors", network->state()); });
} catch (const std::exception& error) {
  std::fprintf(stderr, "fine_tune: %s\n", error.what());
  return 1;
}
