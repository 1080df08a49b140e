// Writes what our networks, optimizers and clipping compute, as safetensors: torch_parity_test.py compares it with
// PyTorch's own.
//   parity_probe initial NETWORK SEED OUT
//   parity_probe forward NETWORK LAYOUT PRECISION IN OUT      IN: model/*, images, labels
//   parity_probe optimizer IN OUT [KEY=VALUE ...]             IN: parameter/*, gradient/<step>/*; keys of [optimizer]
//   parity_probe rates EPOCHS STEPS OUT [KEY=VALUE ...]       STEPS: of an epoch; keys of [schedule]; OUT: rates
//   parity_probe clip NORM IN OUT                             IN: one gradient a name
//   parity_probe copy IN OUT
#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <headrace/error.h>
#include <headrace/optimizer.h>
#include <headrace/options.h>
#include <headrace/trainer.h>

#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "model/network.h"
#include "numerics/clip.h"
#include "tensor/compute.h"
#include "tensor/safetensors.h"
#include "tensor/translate.h"
#include "train/schedule.h"

namespace {

using namespace headrace;
using Named = std::vector<std::pair<std::string, at::Tensor>>;
using Words = std::vector<std::string>;

constexpr double kRate = 1e-3;

template <class E>
E choice(const std::string& name) {
  for (const auto& known : choices(E{})) {
    if (known.name == name) return known.value;
  }
  fail(ErrorCode::invalid_argument, "parity_probe: unknown choice {}", name);
}

std::unique_ptr<Network> network_named(const std::string& name) {
  ModelOptions options;
  options.name = name;
  return make_network(options, 1, 28, 28);
}

std::map<std::string, at::Tensor> read_by_name(const std::string& path) {
  const SafetensorsFile file = read_safetensors(path);
  return {file.tensors.begin(), file.tensors.end()};
}

void initial(const Words& words) {
  at::manual_seed(std::stoull(words.at(1)));
  const std::unique_ptr<Network> network = network_named(words.at(0));
  const ModelState state = network->state();
  Named tensors = state.parameters;
  tensors.insert(tensors.end(), state.buffers.begin(), state.buffers.end());
  write_safetensors(words.at(2), tensors, {});
}

void forward(const Words& words) {
  const std::unique_ptr<Network> network = network_named(words.at(0));
  const ModelState state = network->state();
  const auto given = read_by_name(words.at(3));
  {
    c10::AutoGradMode no_graph(false);
    for (const auto& [name, tensor] : state.parameters) tensor.copy_(given.at("model/" + name));
    for (const auto& [name, tensor] : state.buffers) tensor.copy_(given.at("model/" + name));
  }
  TrainOptions options;
  options.precision = choice<Precision>(words.at(2));
  Trainer trainer(
      state, Optimizer(state.parameters, {}),
      [&network](const TensorBatch& batch) {
        const at::Tensor logits = network->forward(batch.images);
        return Output{at::cross_entropy_loss(logits, batch.labels), {{"logits", logits}}};
      },
      options, {}, 1);
  TensorBatch batch{given.at("images"), given.at("labels")};
  if (choice<MemoryFormat>(words.at(1)) == MemoryFormat::channels_last) {
    trainer.set_memory_format(MemoryFormat::channels_last);
    batch.images =
        batch.images.to(batch.images.options(), /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::ChannelsLast);
  }
  const Output output = trainer.forward_backward(batch);
  Named results{{"logits", output.named.at("logits").to(at::kFloat)}, {"loss", output.loss.to(at::kFloat)}};
  for (const auto& [name, tensor] : state.parameters) results.emplace_back("gradient/" + name, tensor.grad());
  for (const auto& [name, tensor] : state.buffers) results.emplace_back("buffer/" + name, tensor);
  write_safetensors(words.at(4), results, {});
}

// Keys as a recipe writes them, from the words at `first` on.
template <class Options>
Options options_from(const Words& words, std::size_t first) {
  Options options;
  const std::vector<Field> fields = fields_of(options);
  for (std::size_t i = first; i < words.size(); ++i) {
    const std::size_t sign = words[i].find('=');
    const Field& field = field_named(fields, words[i].substr(0, sign));
    field.set(parse_option(field, words[i].substr(sign + 1)));
  }
  return options;
}

void run_optimizer(const Words& words) {
  const auto given = read_by_name(words.at(0));
  Named parameters;
  for (const auto& [name, tensor] : given) {
    if (name.rfind("parameter/", 0) == 0) parameters.emplace_back(name.substr(10), at::Tensor(tensor).requires_grad_());
  }
  Optimizer optimizer(parameters, options_from<OptimizerOptions>(words, 2));
  for (int step = 0; given.count(fmt::format("gradient/{}/{}", step, parameters.at(0).first)) != 0; ++step) {
    for (const auto& [name, parameter] : parameters) {
      parameter.mutable_grad() = given.at(fmt::format("gradient/{}/{}", step, name));
    }
    optimizer.step(kRate);
    optimizer.zero_gradients();
  }
  Named results = optimizer.state();
  results.insert(results.end(), parameters.begin(), parameters.end());
  write_safetensors(words.at(1), results, {});
}

void list_rates(const Words& words) {
  const RunLength run{std::stoll(words.at(0)) * std::stoll(words.at(1)), std::stoll(words.at(0))};
  const auto schedule = options_from<ScheduleOptions>(words, 3);
  const at::Tensor rates = at::zeros({run.steps}, at::kDouble);
  for (std::int64_t step = 0; step < run.steps; ++step) {
    rates.mutable_data_ptr<double>()[step] = scheduled_rate(schedule, kRate, step, run);
  }
  write_safetensors(words.at(2), {{"rates", rates}}, {});
}

void clip(const Words& words) {
  SafetensorsFile file = read_safetensors(words.at(1));
  std::vector<at::Tensor> gradients;
  for (const auto& [name, tensor] : file.tensors) gradients.push_back(tensor);
  const double norm = clip_gradients(gradients, std::stod(words.at(0)));
  file.tensors.emplace_back("norm", at::zeros({}, at::kDouble).fill_(norm));
  write_safetensors(words.at(2), file.tensors, {});
}

void copy(const Words& words) {
  const SafetensorsFile file = read_safetensors(words.at(0));
  write_safetensors(words.at(1), file.tensors, file.metadata);
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, void (*)(const Words&)> commands{
      {"initial", initial},  {"forward", forward}, {"optimizer", run_optimizer},
      {"rates", list_rates}, {"clip", clip},       {"copy", copy}};
  try {
    apply_compute_threads(1);
    const Words words(argv + 1, argv + argc);
    commands.at(words.at(0))(Words(words.begin() + 1, words.end()));
    return 0;
  } catch (...) {
    fmt::print(stderr, "parity_probe: {}\n", translate(std::current_exception()).what());
    return 1;
  }
}
