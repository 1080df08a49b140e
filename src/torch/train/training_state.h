// All that training changes, as named tensors: what checkpoints hold and what a rollback returns to.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <headrace/model_state.h>
#include <headrace/optimizer.h>
#include <headrace/trainer.h>

#include <map>
#include <string>

#include "torch/tensor/safetensors.h"

namespace headrace {

// What the names of weights begin with, of averages, and of optimizer state.
inline constexpr const char* kTrained = "model/";
inline constexpr const char* kAverages = "ema/";
inline constexpr const char* kOptimizerState = "optimizer/";
inline constexpr const char* kGenerator = "generator/cpu";

// Parameters and buffers, shared with the model; `part` is one of the first two above.
NamedTensors weights_as(const char* part, const ModelState& model);

// Everything but the generator, shared: "model/<name>", "ema/<name>", "optimizer/<name>/exp_avg", ...
NamedTensors training_tensors(const ModelState& model, const NamedTensors& averages, Optimizer& optimizer);

// Of the CPU's default generator: a copy.
at::Tensor generator_state();
void set_generator_state(const at::Tensor& state);

// States of all generators that a forward on `device` may draw from: "generator/cpu", of another device its default
// one's as "generator/cuda:0", and "generator/others" where there are some.
NamedTensors generator_states(c10::Device device, const OtherGenerators& others);
// Puts back those that are there by their names; the others stay as they are.
void set_generator_states(const std::map<std::string, at::Tensor>& states, c10::Device device,
                          const OtherGenerators& others);

}  // namespace headrace
