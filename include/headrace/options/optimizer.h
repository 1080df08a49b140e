// The optimizer, in the words of torch.optim.
#pragma once

#include <headrace/options.h>

#include <array>
#include <concepts>
#include <string>
#include <type_traits>
#include <vector>

namespace headrace {

enum class OptimizerName { adamw, adam, sgd, rmsprop };
constexpr auto choices(OptimizerName) {
  return std::array{
      Choice<OptimizerName>{OptimizerName::adamw, "adamw"}, Choice<OptimizerName>{OptimizerName::adam, "adam"},
      Choice<OptimizerName>{OptimizerName::sgd, "sgd"}, Choice<OptimizerName>{OptimizerName::rmsprop, "rmsprop"}};
}

// As torch.optim tells them apart.
enum class OptimizerImplementation { for_loop, foreach_, fused };
constexpr auto choices(OptimizerImplementation) {
  return std::array{Choice<OptimizerImplementation>{OptimizerImplementation::for_loop, "for_loop"},
                    Choice<OptimizerImplementation>{OptimizerImplementation::foreach_, "foreach"},
                    Choice<OptimizerImplementation>{OptimizerImplementation::fused, "fused"}};
}

// Parameters by name with settings of their own: one [[optimizer.group]].
struct OptimizerGroupOptions {
  std::vector<std::string> params{};  // "fc", a module or a parameter; "layer*", with * for any characters.
  double lr_mult = 1.0;               // Of the scheduled lr, eta_min included.
  double decay_mult = 1.0;            // Of the optimizer's weight_decay.

  bool operator==(const OptimizerGroupOptions&) const = default;
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, OptimizerGroupOptions>
void describe(Visitor& visit, Options& o) {
  visit("params", o.params,
        "Parameters of this group: names of parameters or modules (\"fc\"), * for any characters (\"layer*\"). The "
        "first group that names a parameter has it; those in no group have the optimizer's own lr and weight_decay.");
  visit("lr_mult", o.lr_mult, Range<double>{0.0, 1e6},
        "Their learning rate, as a multiple of the optimizer's at every step of the schedule, eta_min included.");
  visit("decay_mult", o.decay_mult, Range<double>{0.0, 1e6}, "Their weight_decay, as a multiple of the optimizer's.");
}

struct OptimizerOptions {
  OptimizerName name = OptimizerName::adamw;
  double lr = 1e-3;
  double weight_decay = 1e-2;
  std::vector<double> betas{0.9, 0.999};  // Two numbers.
  double eps = 1e-8;
  bool amsgrad = false;
  double momentum = 0.9;
  double dampening = 0.0;
  bool nesterov = false;
  double alpha = 0.99;
  bool centered = false;
  bool maximize = false;
  Switch fused = Switch::automatic;  // Live knob. Left to the program it is on, unless `foreach` is.
  Switch foreach = Switch::off;      // Live knob. Not on together with `fused`.
  double decay_mult_1d = 1.0;        // Of weight_decay, for parameters of at most one dimension; multiplies a group's.
  double layer_decay = 1.0;          // Of lr, for each layer further from the output; multiplies a group's lr_mult.
  std::vector<OptimizerGroupOptions> group{};

  bool operator==(const OptimizerOptions&) const = default;
  // What the two switches come to: the one that is on, else the first that is left to the program.
  OptimizerImplementation implementation() const noexcept {
    for (const Switch state : {Switch::on, Switch::automatic}) {
      if (fused == state) return OptimizerImplementation::fused;
      if (foreach == state) return OptimizerImplementation::foreach_;
    }
    return OptimizerImplementation::for_loop;
  }
  void set_implementation(OptimizerImplementation implementation) noexcept {
    fused = implementation == OptimizerImplementation::fused ? Switch::on : Switch::off;
    foreach
      = implementation == OptimizerImplementation::foreach_ ? Switch::on : Switch::off;
  }
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, OptimizerOptions>
void describe(Visitor& visit, Options& o) {
  visit("name", o.name,
        "The optimizer: AdamW (Loshchilov and Hutter 2019), Adam (Kingma and Ba 2015), SGD with momentum, or RMSprop "
        "(Hinton 2012).");
  visit("lr", o.lr, Range<double>{0.0, 1e3}, "Learning rate, before the schedule.");
  visit("weight_decay", o.weight_decay, Range<double>{0.0, 1e3},
        "Weight decay: adamw's is apart from the gradient, the others' is added to it, where 1e-4 is usual.");
  visit("betas", o.betas, Range<double>{0.0, 0.99999999},
        "Two decay rates: of the running mean of the gradient and of its square (adamw, adam).");
  visit("eps", o.eps, Range<double>{0.0, 1.0}, "Added to the denominator (adamw, adam, rmsprop).");
  visit("amsgrad", o.amsgrad, "Divide by the largest running mean of the square so far (adamw, adam).");
  visit("momentum", o.momentum, Range<double>{0.0, 0.999999},
        "Share of the last update's direction that the next one keeps; 0 is none, usual for rmsprop (sgd, rmsprop).");
  visit("dampening", o.dampening, Range<double>{0.0, 1.0},
        "Share of the gradient that momentum leaves out, but for a parameter's first (sgd).");
  visit("nesterov", o.nesterov, "Nesterov's momentum: step from where the momentum leads (sgd).");
  visit("alpha", o.alpha, Range<double>{0.0, 0.99999999},
        "Decay rate of the running mean of the gradient's square (rmsprop).");
  visit("centered", o.centered,
        "Divide by an estimate of the gradient's standard deviation, not of its size (rmsprop).");
  visit("maximize", o.maximize, "Go up the gradient instead of down.");
  visit("fused", o.fused,
        "Update all parameters in one kernel, as torch.optim's fused; auto does so wherever there is such a kernel, "
        "unless foreach is true. false: operator by operator, as a script has it that says nothing of fused.");
  visit("foreach", o.foreach,
        "Update by operators over lists of tensors, as torch.optim's foreach. With both false, one tensor after the "
        "other.");
  visit(
      "decay_mult_1d", o.decay_mult_1d, Range<double>{0.0, 1e6},
      "Weight decay of parameters of at most one dimension, which are biases and the scales of norms, as a multiple of "
      "weight_decay, and times a group's decay_mult; 0, usual for fine-tuning, is no decay.");
  visit("layer_decay", o.layer_decay, Range<double>{1e-6, 1.0},
        "Layer-wise decay of the learning rate, for fine-tuning: each layer has that of the next one times this; 0.65 "
        "to 0.9 are usual for ViT, 1 is none. Layers are the blocks that are numbered in the names of parameters, as "
        "layer1.0 and encoder_layer_3, what stands before the first block, and what stands behind the last. It "
        "multiplies a group's lr_mult.");
  visit("group", o.group, "Parameters by name that have another learning rate or weight decay.");
}

}  // namespace headrace
