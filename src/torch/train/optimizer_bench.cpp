// AdamW's update here against at::_fused_adamw_ on the same gradients: the tensors of a ResNet-18 for 10 classes, the
// same with clipping, averages, the check for numbers that are not finite and zeroing; 1,000 tensors of 64 numbers; and
// 465 tensors in as many groups against one group. Rivals take turns; medians and quartiles in us. Last it says how far
// the parameters are from those of ATen's kernel.
//   optimizer_bench [rounds] [threads] [instruction set]
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <headrace/optimizer.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/kernel_sets.h"
#include "quantile.h"
#include "torch/numerics/clip.h"
#include "torch/tensor/compute.h"

namespace {

using namespace headrace;
using Shapes = std::vector<std::vector<std::int64_t>>;
using Named = std::vector<std::pair<std::string, at::Tensor>>;

constexpr double kLr = 1e-3, kNormMax = 1.0, kDecay = 0.999;

Shapes resnet18() {
  Shapes shapes;
  const auto add_convolution = [&](std::int64_t out, std::int64_t in, std::int64_t side) {
    shapes.push_back({out, in, side, side});
    shapes.push_back({out});
    shapes.push_back({out});
  };
  add_convolution(64, 3, 3);
  std::int64_t channels = 64;
  for (const std::int64_t width : {64, 128, 256, 512}) {
    add_convolution(width, channels, 3);
    add_convolution(width, width, 3);
    if (width != channels) add_convolution(width, channels, 1);
    add_convolution(width, width, 3);
    add_convolution(width, width, 3);
    channels = width;
  }
  shapes.push_back({10, 512});
  shapes.push_back({10});
  return shapes;
}

Named parameters_of(const Shapes& shapes) {
  at::manual_seed(1);
  Named parameters;
  for (const std::vector<std::int64_t>& shape : shapes) {
    const at::Tensor parameter = at::randn(shape).mul_(0.1).requires_grad_();
    parameter.mutable_grad() = at::randn_like(parameter.detach()).mul_(0.01);
    parameters.emplace_back(std::to_string(parameters.size()), parameter);
  }
  return parameters;
}

std::vector<at::Tensor> copies_of(const Named& parameters) {
  std::vector<at::Tensor> copies;
  for (const auto& [name, parameter] : parameters) copies.push_back(parameter.detach().clone());
  return copies;
}

std::vector<at::Tensor> tensors_of(const Named& parameters) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, parameter] : parameters) tensors.push_back(parameter);
  return tensors;
}

OptimizerOptions fused() {
  OptimizerOptions options;
  options.set_implementation(OptimizerImplementation::fused);
  return options;
}

// As a user of ATen writes it, with its best calls.
class Aten {
 public:
  explicit Aten(const Shapes& shapes) : named_(parameters_of(shapes)), averages_(copies_of(named_)) {
    for (const auto& [name, parameter] : named_) {
      parameters_.push_back(parameter);
      gradients_.push_back(parameter.grad());
      exp_avgs_.push_back(at::zeros_like(parameter.detach()));
      exp_avg_sqs_.push_back(at::zeros_like(parameter.detach()));
      steps_.push_back(at::zeros({}));
    }
  }

  void update() {
    c10::AutoGradMode no_graph(false);
    for (const at::Tensor& step : steps_) *step.mutable_data_ptr<float>() += 1.0F;
    const OptimizerOptions o;
    at::_fused_adamw_(parameters_, gradients_, exp_avgs_, exp_avg_sqs_, {}, steps_, kLr, o.betas[0], o.betas[1],
                      o.weight_decay, o.eps, false, false);
  }

  void all_five() {
    c10::AutoGradMode no_graph(false);
    const double norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients_, 2)), 2).item<double>();
    if (!std::isfinite(norm)) return;
    at::_foreach_mul_(gradients_, std::min(1.0, kNormMax / (norm + 1e-6)));
    update();
    at::_foreach_lerp_(averages_, parameters_, 1 - kDecay);
    at::_foreach_zero_(gradients_);
  }

  const std::vector<at::Tensor>& parameters() const { return parameters_; }

 private:
  Named named_;
  std::vector<at::Tensor> averages_, parameters_, gradients_, exp_avgs_, exp_avg_sqs_, steps_;
};

class Ours {
 public:
  explicit Ours(const Shapes& shapes)
      : named_(parameters_of(shapes)),
        tensors_(tensors_of(named_)),
        averages_(copies_of(named_)),
        optimizer_(named_, fused()) {}
  // A group a parameter; `own_rates`: each of another rate.
  Ours(const Shapes& shapes, bool own_rates)
      : named_(parameters_of(shapes)),
        tensors_(tensors_of(named_)),
        averages_(copies_of(named_)),
        optimizer_(groups_of(named_, own_rates)) {}

  void update() {
    optimizer_.step([](double lr) { return lr; });
  }

  void all_five() {
    const NormFactors clip = norm_factors(tensors_, {}, {.max_norm = kNormMax});
    if (!clip.report.finite) return;
    optimizer_.step(
        kLr,
        {.gradient_factors = clip.factors, .zero_gradients = true, .averages = averages_, .average_decay = kDecay});
  }

  const Named& parameters() const { return named_; }

 private:
  static std::vector<ParameterGroup> groups_of(const Named& named, bool own_rates) {
    std::vector<ParameterGroup> groups;
    for (const auto& parameter : named) {
      groups.push_back({{parameter}, fused(), own_rates ? 1 + 1e-3 * static_cast<double>(groups.size()) : 1.0});
    }
    return groups;
  }

  Named named_;
  std::vector<at::Tensor> tensors_, averages_;
  Optimizer optimizer_;
};

struct Rival {
  std::string name;
  std::function<void()> work;
  std::vector<double> us{};
};

// The first is what the others are compared with.
void compare(const std::string& title, std::vector<Rival> rivals, int rounds, int calls) {
  for (int round = -2; round < rounds; ++round) {
    for (std::size_t i = 0; i < rivals.size(); ++i) {
      Rival& rival = rivals[(i + static_cast<std::size_t>(round + 2)) % rivals.size()];
      const std::int64_t begin = monotonic_ns();
      for (int call = 0; call < calls; ++call) rival.work();
      if (round >= 0) rival.us.push_back(seconds_since(begin) * 1e6 / calls);  // The rounds before warm up.
    }
  }
  fmt::print("{}\n", title);
  for (const Rival& rival : rivals) {
    const double median = quantile(rival.us, 0.5);
    fmt::print("  {:34} {:9.1f} [{:9.1f}, {:9.1f}]  {:5.2f}\n", rival.name, median, quantile(rival.us, 0.25),
               quantile(rival.us, 0.75), median / quantile(rivals[0].us, 0.5));
  }
}

void show_difference(const Shapes& shapes) {
  Aten aten(shapes);
  Ours ours(shapes);
  for (int step = 0; step < 20; ++step) {
    aten.update();
    ours.update();
  }
  double largest = 0;
  std::int64_t differing = 0, all = 0;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const at::Tensor found = ours.parameters()[i].second.detach(), wanted = aten.parameters()[i].detach();
    largest = std::max(largest, found.sub(wanted).abs().max().item<double>());
    differing += found.ne(wanted).sum().item<std::int64_t>();
    all += found.numel();
  }
  fmt::print("after 20 updates {} of {} parameters differ from at::_fused_adamw_'s, by at most {:.1e}\n", differing,
             all, largest);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 40;
  apply_compute_threads(argc > 2 ? std::atoi(argv[2]) : 2);
  if (argc > 3) use_kernel_set(argv[3]);
  const Shapes network = resnet18();
  const Shapes small(1000, {64}), middle(465, {16'384});
  {
    Aten aten(network), aten_five(network);
    Ours ours(network), ours_five(network);
    compare("11.2 M parameters in 62 tensors",
            {{"at::_fused_adamw_", [&] { aten.update(); }},
             {"ours", [&] { ours.update(); }},
             {"clip, EMA, check, zero by ATen", [&] { aten_five.all_five(); }},
             {"clip, EMA, check, zero by ours", [&] { ours_five.all_five(); }}},
            rounds, 5);
  }
  {
    Aten aten(small);
    Ours ours(small);
    compare("1,000 tensors of 64 numbers",
            {{"at::_fused_adamw_", [&] { aten.update(); }}, {"ours", [&] { ours.update(); }}}, rounds, 20);
  }
  for (const auto& [title, shapes] : {std::pair{"465 tensors of 16,384 numbers", middle},
                                      std::pair{"465 tensors of 64 numbers", Shapes(465, {64})}}) {
    Ours one(shapes), many(shapes, false), rates(shapes, true);
    compare(title,
            {{"one group", [&] { one.update(); }},
             {"a group each, of equal settings", [&] { many.update(); }},
             {"a group each, each of another rate", [&] { rates.update(); }}},
            rounds, 10);
  }
  show_difference(network);
  return 0;
}
