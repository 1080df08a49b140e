// Writes what our optimizers and clipping compute, as safetensors: torch_parity_test.py compares it with PyTorch's own.
//   parity_probe optimizer IN OUT [KEY=VALUE ...]             IN: parameter/*, gradient/<step>/*; keys of [optimizer]
//   parity_probe lr EPOCHS STEPS OUT [KEY=VALUE ...]          STEPS: of an epoch; keys of [lr_scheduler]; OUT: lr
//   parity_probe clip NORM IN OUT                             IN: one gradient a name
//   parity_probe copy IN OUT
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <headrace/optimizer.h>

#include <map>
#include <string>
#include <vector>

#include "probe.h"
#include "torch/numerics/clip.h"
#include "torch/tensor/safetensors.h"
#include "torch/train/lr_scheduler.h"

namespace {

using namespace headrace;

constexpr double kLr = 1e-3;

std::map<std::string, at::Tensor> read_by_name(const std::string& path) {
  const SafetensorsFile file = read_safetensors(path);
  return {file.tensors.begin(), file.tensors.end()};
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
    optimizer.step(kLr);
    optimizer.zero_gradients();
  }
  Named results = optimizer.state();
  results.insert(results.end(), parameters.begin(), parameters.end());
  write_safetensors(words.at(1), results, {});
}

void list_lr(const Words& words) {
  const RunLength run{std::stoll(words.at(0)) * std::stoll(words.at(1)), std::stoll(words.at(0))};
  const auto schedule = options_from<LrSchedulerOptions>(words, 3);
  const at::Tensor lr = at::zeros({run.steps}, at::kDouble);
  for (std::int64_t step = 0; step < run.steps; ++step) {
    lr.mutable_data_ptr<double>()[step] = scheduled_lr(schedule, kLr, step, run);
  }
  write_safetensors(words.at(2), {{"lr", lr}}, {});
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
  return run_probe({{"optimizer", run_optimizer}, {"lr", list_lr}, {"clip", clip}, {"copy", copy}}, argc, argv);
}
