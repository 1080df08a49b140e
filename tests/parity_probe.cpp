// Writes what our optimizers and clipping compute, as safetensors: torch_parity_test.py compares it with PyTorch's own.
//   parity_probe optimizer IN OUT [KEY=VALUE ...]             IN: parameter/*, gradient/<step>/*, state/* to begin with
//                                                             where there is some; keys of [optimizer]
//   parity_probe lr EPOCHS STEPS OUT TOML                     STEPS: of an epoch; TOML: keys of [lr_scheduler];
//                                                             OUT: lr, and momentum where the schedule moves it
//   parity_probe plateau IN OUT TOML                          IN: metric, one an epoch; OUT: lr after each
//   parity_probe clip IN OUT [KEY=VALUE ...]                  IN: weight/*, gradient/*; keys of [train];
//                                                             OUT: gradients by name, norm_before, norm_after
//   parity_probe scaler IN OUT INTERVAL                       IN: parameter, gradient/<step>, state/* to begin with
//                                                             where there is some; INTERVAL: of growth; OUT: parameter,
//                                                             scale and stepped after each step, state/* at the end
//   parity_probe copy IN OUT
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <headrace/clip_gradients.h>
#include <headrace/grad_scaler.h>
#include <headrace/lr_scheduler.h>
#include <headrace/optimizer.h>
#include <headrace/option_text.h>

#include <map>
#include <string>
#include <vector>

#include "probe.h"
#include "torch/tensor/safetensors.h"

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
  for (const auto& [name, tensor] : optimizer.state()) {
    const auto found = given.find("state/" + name);
    if (found != given.end()) tensor.copy_(found->second);
  }
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

LrSchedulerOptions schedule_from(const std::string& toml) {
  LrSchedulerOptions schedule;
  read_toml(fields_of(schedule), toml, "schedule");
  return schedule;
}

void list_lr(const Words& words) {
  const RunLength run{std::stoll(words.at(0)) * std::stoll(words.at(1)), std::stoll(words.at(0))};
  const LrSchedulerOptions schedule = schedule_from(words.at(3));
  Named found{{"lr", at::zeros({run.steps}, at::kDouble)}};
  if (scheduled_momentum(schedule, 0, run)) found.emplace_back("momentum", at::zeros({run.steps}, at::kDouble));
  for (std::int64_t step = 0; step < run.steps; ++step) {
    found[0].second.mutable_data_ptr<double>()[step] = scheduled_lr(schedule, kLr, step, run);
    if (found.size() < 2) continue;
    found[1].second.mutable_data_ptr<double>()[step] = scheduled_momentum(schedule, step, run).value();
  }
  write_safetensors(words.at(2), found, {});
}

void list_plateau(const Words& words) {
  const auto given = read_by_name(words.at(0));
  const at::Tensor& metric = given.at("metric");
  const LrSchedulerOptions schedule = schedule_from(words.at(2));
  const at::Tensor lr = at::zeros({metric.numel()}, at::kDouble);
  PlateauState state;
  for (std::int64_t epoch = 0; epoch < metric.numel(); ++epoch) {
    state = after_metric(state, schedule, metric.const_data_ptr<double>()[epoch]);
    lr.mutable_data_ptr<double>()[epoch] = scheduled_lr(schedule, kLr, 0, {1, 1}, state);
  }
  write_safetensors(words.at(1), {{"lr", lr}}, {});
}

void clip(const Words& words) {
  const auto given = read_by_name(words.at(0));
  const auto options = options_from<TrainOptions>(words, 2);
  std::vector<std::string> names;
  std::vector<at::Tensor> parameters;
  for (const auto& [name, tensor] : given) {
    if (name.rfind("weight/", 0) != 0) continue;
    names.push_back(name.substr(7));
    parameters.push_back(at::Tensor(tensor).requires_grad_());
    parameters.back().mutable_grad() = given.at("gradient/" + names.back());
  }
  const std::vector<std::size_t> parts = clip_parts(options.grad_norm_per, names, {});
  const ClipReport report = clip_gradients(parameters, parts, clip_options(options));
  Named results{{"norm_before", at::zeros({}, at::kDouble).fill_(report.norm_before)},
                {"norm_after", at::zeros({}, at::kDouble).fill_(report.norm_after)}};
  for (std::size_t i = 0; i < names.size(); ++i) results.emplace_back(names[i], parameters[i].grad());
  write_safetensors(words.at(1), results, {});
}

void scale_gradients(const Words& words) {
  const auto given = read_by_name(words.at(0));
  at::Tensor parameter = given.at("parameter");
  parameter.requires_grad_();
  std::int64_t steps = 0;
  while (given.count(fmt::format("gradient/{}", steps)) != 0) ++steps;
  const Named parameters{{"parameter", parameter}};
  Optimizer optimizer(parameters, OptimizerOptions{});
  GradScaler scaler(GradScalerState{.growth_interval = std::stoll(words.at(2))});
  std::map<std::string, double> state;
  for (const auto& [name, tensor] : given) {
    if (name.rfind("state/", 0) == 0) state.emplace(name.substr(6), tensor.item<double>());
  }
  if (!state.empty()) scaler.load_state_dict(state);
  const at::Tensor scales = at::zeros({steps}, at::kDouble), stepped = at::zeros({steps}, at::kBool);
  for (std::int64_t step = 0; step < steps; ++step) {
    parameter.mutable_grad() = scaler.scale(given.at(fmt::format("gradient/{}", step)));
    stepped.mutable_data_ptr<bool>()[step] = scaler.step(optimizer, kLr);
    scaler.update();
    scales.mutable_data_ptr<double>()[step] = scaler.get_scale();
  }
  Named results{{"parameter", parameter}, {"scale", scales}, {"stepped", stepped}};
  for (const auto& [name, value] : scaler.state_dict()) {
    results.emplace_back("state/" + name, at::zeros({}, at::kDouble).fill_(value));
  }
  write_safetensors(words.at(1), results, {});
}

void copy(const Words& words) {
  const SafetensorsFile file = read_safetensors(words.at(0));
  write_safetensors(words.at(1), file.tensors, file.metadata);
}

}  // namespace

int main(int argc, char** argv) {
  return run_probe({{"optimizer", run_optimizer},
                    {"lr", list_lr},
                    {"plateau", list_plateau},
                    {"clip", clip},
                    {"scaler", scale_gradients},
                    {"copy", copy}},
                   argc, argv);
}
