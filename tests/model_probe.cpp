// Writes what our networks are and compute, as safetensors: model_parity_test.py compares it with PyTorch.
//   model_probe initial SEED CHANNELS SIZE OUT KEY=VALUE...
//   model_probe logits IN OUT KEY=VALUE...                            IN: image
//   model_probe train IN OUT PRECISION STEPS RATE KEY=VALUE...        IN: image, labels
// KEY=VALUE are keys of [model]: name=resnet18 stem=small weights=file.safetensors. `logits` writes those of
// evaluation. `train` writes the logits of evaluation and of the frozen network, then seeds the generator with kSeed,
// makes STEPS steps of plain gradient descent at RATE and writes logits and gradients of the first, the losses of all,
// and the parameters and buffers after the last.
#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>
#include <headrace/model.h>
#include <headrace/trainer.h>
#include <headrace/weights.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "probe.h"
#include "torch/tensor/safetensors.h"

namespace {

using namespace headrace;

constexpr std::uint64_t kSeed = 21;  // Of dropout.

void initial(const Words& words) {
  at::manual_seed(std::stoull(words.at(0)));
  const int channels = std::stoi(words.at(1)), size = std::stoi(words.at(2));
  const auto network = make_network(options_from<ModelOptions>(words, 4), channels, size, size);
  save_weights(words.at(3), network->state(), {{"made by", "model_probe"}});
}

void evaluate(const Words& words) {
  const SafetensorsFile file = read_safetensors(words.at(0));
  const at::Tensor& images = file.tensors.at(0).second;
  const auto network = make_network(options_from<ModelOptions>(words, 2), static_cast<int>(images.size(1)),
                                    static_cast<int>(images.size(2)), static_cast<int>(images.size(3)));
  network->state().set_training(false);
  c10::AutoGradMode no_graph(false);
  write_safetensors(words.at(1), {{"logits", network->forward(images)}}, {});
}

void train(const Words& words) {
  const SafetensorsFile file = read_safetensors(words.at(0));
  const std::map<std::string, at::Tensor> given(file.tensors.begin(), file.tensors.end());
  TensorBatch batch{{"image", given.at("image")}, {"labels", given.at("labels")}};
  const auto extent = [&](std::int64_t dimension) { return static_cast<int>(batch["image"].size(dimension)); };
  const auto model = options_from<ModelOptions>(words, 5);
  const auto network = make_network(model, extent(1), extent(2), extent(3));
  const ModelState state = network->state();
  TrainOptions options;
  options.precision = words.at(2) == "bf16" ? Precision::bf16 : Precision::fp32;
  Trainer trainer(
      state, Optimizer(state.parameters, {}),
      [&network](const TensorBatch& of) {
        const at::Tensor logits = network->forward(of["image"]);
        return Output{at::cross_entropy_loss(logits, of["labels"]), {{"logits", logits}}};
      },
      options, {}, 1);
  if (model.memory_format == MemoryFormat::channels_last) {
    trainer.set_memory_format(MemoryFormat::channels_last);
    batch["image"] = batch["image"].to(batch["image"].options(), /*non_blocking=*/false, /*copy=*/true,
                                       at::MemoryFormat::ChannelsLast);
  }

  Named results{{"evaluated", trainer.evaluate(batch).named.at("logits").to(at::kFloat)},
                {"frozen", network->frozen()(batch["image"])}};
  const int steps = std::stoi(words.at(3));
  const double rate = std::stod(words.at(4));
  std::vector<at::Tensor> losses;
  at::manual_seed(kSeed);
  for (int step = 0; step < steps; ++step) {
    const Output output = trainer.forward_backward(batch);
    losses.push_back(output.loss.detach().to(at::kFloat));
    if (step == 0) {
      results.emplace_back("logits", output.named.at("logits").to(at::kFloat));
      for (const auto& [name, tensor] : state.parameters)
        results.emplace_back("gradient/" + name, tensor.grad().clone());
    }
    c10::AutoGradMode no_graph(false);
    for (const auto& [name, tensor] : state.parameters) tensor.add_(tensor.grad(), -rate);
  }
  results.emplace_back("losses", at::stack(losses));
  for (const auto& [name, tensor] : state.parameters) results.emplace_back("after/" + name, tensor);
  for (const auto& [name, tensor] : state.buffers) results.emplace_back("after/" + name, tensor);
  write_safetensors(words.at(1), results, {});
}

}  // namespace

int main(int argc, char** argv) {
  return run_probe({{"initial", initial}, {"logits", evaluate}, {"train", train}}, argc, argv);
}
