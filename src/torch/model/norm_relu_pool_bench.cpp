// Forward and backward of norm_relu_pool against PyTorch's three operators in the order that is fastest for them (pool,
// then ReLU in place), at the shapes of small_cnn with batches of 128. Both take turns; medians and quartiles in ms.
//   norm_relu_pool_bench [rounds] [threads] [instruction set]
#include "torch/model/norm_relu_pool.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <vector>

#include "core/base/kernel_sets.h"
#include "quantile.h"
#include "torch/model/norm_relu_pool_kernels.h"

namespace {

using namespace headrace;

struct Times {
  std::vector<double> forward, backward;

  double median_ms() const {
    std::vector<double> sums(forward);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += backward[i];
    return quantile(sums, 0.5);
  }
  std::string text() const {
    std::string line;
    for (const auto& values : {forward, backward}) {
      line += fmt::format("{:7.2f} [{:5.2f}, {:5.2f}]", quantile(values, 0.5), quantile(values, 0.25),
                          quantile(values, 0.75));
    }
    return line + fmt::format("{:8.2f}", median_ms());
  }
};

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

template <class Operation>
void time_once(const Operation& operation, const at::Tensor& x, const NormTensors& norm, const at::Tensor& dy,
               Times& times) {
  const auto start = std::chrono::steady_clock::now();
  const at::Tensor y = operation(x, norm);
  times.forward.push_back(milliseconds_since(start));
  const auto between = std::chrono::steady_clock::now();
  torch::autograd::grad({y}, {x, norm.weight, norm.bias}, {dy});
  times.backward.push_back(milliseconds_since(between));
}

at::Tensor three_operators(const at::Tensor& x, const NormTensors& norm) {
  const at::Tensor normal =
      at::batch_norm(x, norm.weight, norm.bias, norm.running_mean, norm.running_var, true, 0.1, 1e-5, false);
  return at::max_pool2d(normal, 2).relu_();
}

at::Tensor fused(const at::Tensor& x, const NormTensors& norm) {
  return norm_relu_pool(x, norm, {});
}

void compare(std::int64_t channels, std::int64_t side, at::ScalarType type, at::MemoryFormat format, int rounds) {
  const at::Tensor x = at::randn({128, channels, side, side}).to(type).contiguous(format).requires_grad_();
  const at::Tensor dy = at::randn({128, channels, side / 2, side / 2}).to(type).contiguous(format);
  const NormTensors norm{at::ones({channels}).requires_grad_(), at::zeros({channels}).requires_grad_(),
                         at::zeros({channels}), at::ones({channels})};
  Times of_three, of_one;
  for (int round = -3; round < rounds; ++round) {
    if (round == 0) of_three = of_one = {};  // The rounds before warm up.
    time_once(three_operators, x, norm, dy, of_three);
    time_once(fused, x, norm, dy, of_one);
  }
  const bool last = format == at::MemoryFormat::ChannelsLast;
  fmt::print("128x{:2}x{:2}x{:2} {:8} {:13} | {} | {} | {:.2f}\n", channels, side, side, c10::toString(type),
             last ? "channels_last" : "contiguous", of_three.text(), of_one.text(),
             of_three.median_ms() / of_one.median_ms());
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 40;
  at::set_num_threads(count > 2 ? std::atoi(arguments[2]) : 2);
  if (count > 3) use_kernel_set(arguments[3]);
  fmt::print("ms: forward, backward [quartiles], both | of three operators | of norm_relu_pool | ratio\n");
  for (const auto format : {at::MemoryFormat::ChannelsLast, at::MemoryFormat::Contiguous}) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      compare(32, 28, type, format, rounds);
      compare(64, 14, type, format, rounds);
    }
  }
}
