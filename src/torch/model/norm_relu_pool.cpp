#include "torch/model/norm_relu_pool.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/base/fail.h"
#include "torch/model/norm_relu_pool_kernels.h"
#include "torch/tensor/parallel.h"

namespace headrace {
namespace {

namespace passes = norm_relu_pool_passes;

// Parts of the sums: as many whatever the number of threads, and added in order, so that the bits do not depend on it.
constexpr std::int64_t kParts = 128;

passes::Geometry geometry_of(const at::Tensor& x, bool pool) {
  // With one channel both layouts are the same memory, and columns fill vectors better than one channel does.
  const bool channels_last = x.size(1) > 1 && !x.is_contiguous() && x.is_contiguous(at::MemoryFormat::ChannelsLast);
  return {x.size(0), x.size(1), x.size(2), x.size(3), channels_last, pool};
}

// Calls `use` with the tensor type's element as the kernels know it.
template <class Use>
void with_element(const at::Tensor& x, const Use& use) {
  if (x.scalar_type() == at::kFloat) {
    use(float{});
  } else {
    use(std::uint16_t{});
  }
}

template <class Element>
Element* elements(const at::Tensor& x) {
  return static_cast<Element*>(x.data_ptr());
}

// The first of two passes goes backwards: what the operator before wrote last is still in the cache, and so is for the
// second what the first read last.
enum class Order { forwards, backwards };

// Calls `pass(units, part)` for each part, on the compute threads.
template <class Pass>
void for_each_part(const passes::Geometry& g, Order order, const Pass& pass) {
  const std::int64_t units = g.units(), parts = std::min(units, kParts);
  for_each_range(parts, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t part = order == Order::forwards ? i : begin + end - 1 - i;
      pass(passes::Units{units * part / parts, units * (part + 1) / parts}, part);
    }
  });
}

// The two sums a channel of all parts.
struct Sums {
  std::vector<double> first, second;
};

template <class Pass>
Sums summed(const passes::Geometry& g, const Pass& pass) {
  const std::int64_t padded = g.padded_channels();
  std::vector<double> parts(std::min(g.units(), kParts) * 2 * padded);
  for_each_part(g, Order::backwards,
                [&](passes::Units units, std::int64_t part) { pass(units, parts.data() + part * 2 * padded); });
  Sums sums{std::vector<double>(padded), std::vector<double>(padded)};
  for (std::size_t begin = 0; begin < parts.size(); begin += 2 * padded) {
    for (std::int64_t c = 0; c < padded; ++c) {
      sums.first[c] += parts[begin + c];
      sums.second[c] += parts[begin + padded + c];
    }
  }
  return sums;
}

struct Statistics {
  std::vector<double> mean, variance;
};

double values_per_channel(const passes::Geometry& g) {
  return static_cast<double>(g.samples) * static_cast<double>(g.height) * static_cast<double>(g.width);
}

Statistics batch_statistics(const at::Tensor& x, const passes::Geometry& g) {
  // Any value of the channel will do: its distance from the mean is at most sqrt(count) deviations.
  const at::Tensor first = x.select(0, 0).select(1, 0).select(1, 0).to(at::kFloat);
  std::vector<float> shift(g.padded_channels());
  std::copy_n(first.contiguous().const_data_ptr<float>(), g.channels, shift.begin());
  Sums sums;
  with_element(x, [&](auto element) {
    using Element = decltype(element);
    sums = summed(g, [&](passes::Units units, double* part) {
      passes::kernels(element).add_moments(g, elements<Element>(x), shift.data(), units, part);
    });
  });
  Statistics statistics{std::move(sums.first), std::move(sums.second)};
  const double count = values_per_channel(g);
  for (std::int64_t c = 0; c < g.channels; ++c) {
    const double moved = statistics.mean[c] / count;
    const double variance = statistics.variance[c] / count - moved * moved;
    statistics.mean[c] = shift[c] + moved;
    statistics.variance[c] = variance < 0 ? 0 : variance;  // By rounding; NaN stays.
  }
  return statistics;
}

void update_running(const NormTensors& norm, const Statistics& statistics, const passes::Geometry& g, double momentum) {
  float* mean = norm.running_mean.mutable_data_ptr<float>();
  float* variance = norm.running_var.mutable_data_ptr<float>();
  const double count = values_per_channel(g), unbiased = count / (count - 1);
  for (std::int64_t c = 0; c < g.channels; ++c) {
    mean[c] = static_cast<float>(momentum * statistics.mean[c] + (1 - momentum) * mean[c]);
    variance[c] = static_cast<float>(momentum * statistics.variance[c] * unbiased + (1 - momentum) * variance[c]);
  }
}

Statistics running_statistics(const NormTensors& norm, const passes::Geometry& g) {
  const float* mean = norm.running_mean.const_data_ptr<float>();
  const float* variance = norm.running_var.const_data_ptr<float>();
  return {std::vector<double>(mean, mean + g.channels), std::vector<double>(variance, variance + g.channels)};
}

// z = weight * (x - mean) * invstd + bias, as the kernels take it.
struct AffineValues {
  std::vector<float> center, scale, offset;

  AffineValues(const passes::Geometry& g, const double* mean, const double* invstd, const float* weight,
               const float* bias)
      : center(g.padded_channels()), scale(g.padded_channels()), offset(g.padded_channels()) {
    for (std::int64_t c = 0; c < g.channels; ++c) {
      const double factor = weight[c] * invstd[c];
      center[c] = static_cast<float>(mean[c]);
      scale[c] = static_cast<float>(factor);
      offset[c] = static_cast<float>(bias[c] + (center[c] - mean[c]) * factor);
    }
  }

  passes::Affine view() const { return {center.data(), scale.data(), offset.data()}; }
};

at::Tensor output_like(const at::Tensor& x, const passes::Geometry& g) {
  return at::empty({g.samples, g.channels, g.output_height(), g.output_width()}, x.options(),
                   x.suggest_memory_format());
}

struct Gradients {
  at::Tensor input, weight, bias;
};

Gradients gradients(const at::Tensor& x, const at::Tensor& dy, const passes::Geometry& g, const at::Tensor& weight,
                    const at::Tensor& bias, const at::Tensor& statistics, bool training) {
  const double* mean = statistics.const_data_ptr<double>();
  const double* invstd = mean + g.channels;
  const float* factor = weight.const_data_ptr<float>();
  const AffineValues values{g, mean, invstd, factor, bias.const_data_ptr<float>()};
  const passes::Affine affine = values.view();
  Gradients result{at::empty_like(x), at::empty_like(weight), at::empty_like(bias)};
  with_element(x, [&](auto element) {
    using Element = decltype(element);
    const passes::Kernels<Element>& kernels = passes::kernels(element);
    const Element *input = elements<Element>(x), *output = elements<Element>(dy);
    const Sums sums = summed(g, [&](passes::Units units, double* part) {
      kernels.add_gradient_sums(g, input, output, affine, units, part);
    });
    std::vector<float> constant(g.padded_channels()), slope(g.padded_channels());
    for (std::int64_t c = 0; c < g.channels; ++c) {
      const double rest = values.center[c] - mean[c];
      const double of_weight = invstd[c] * (sums.second[c] + rest * sums.first[c]);
      const double scale = factor[c] * invstd[c], count = values_per_channel(g);
      const double steepness = scale * invstd[c] * of_weight / count;
      slope[c] = static_cast<float>(steepness);
      constant[c] = static_cast<float>(-scale * sums.first[c] / count - steepness * rest);
      result.weight.mutable_data_ptr<float>()[c] = static_cast<float>(of_weight);
      result.bias.mutable_data_ptr<float>()[c] = static_cast<float>(sums.first[c]);
    }
    const passes::InputGradient gradient{constant.data(), slope.data(), training};
    for_each_part(g, Order::forwards, [&](passes::Units units, std::int64_t) {
      kernels.input_gradient(g, input, output, affine, gradient, units, elements<Element>(result.input));
    });
  });
  return result;
}

class NormReluPoolFunction : public torch::autograd::Function<NormReluPoolFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& bias, const NormTensors& norm,
                            const NormReluPool& settings) {
    const at::Tensor x = input.contiguous(input.suggest_memory_format());
    const passes::Geometry g = geometry_of(x, settings.pool);
    const Statistics batch = settings.training ? batch_statistics(x, g) : running_statistics(norm, g);
    if (settings.training) update_running(norm, batch, g, settings.momentum);

    const at::Tensor statistics = at::empty({2, g.channels}, at::kDouble);
    double* mean = statistics.mutable_data_ptr<double>();
    double* invstd = mean + g.channels;
    for (std::int64_t c = 0; c < g.channels; ++c) {
      mean[c] = batch.mean[c];
      invstd[c] = 1 / std::sqrt(batch.variance[c] + settings.epsilon);
    }
    const AffineValues values{g, mean, invstd, weight.const_data_ptr<float>(), bias.const_data_ptr<float>()};
    at::Tensor y = output_like(x, g);
    with_element(x, [&](auto element) {
      using Element = decltype(element);
      for_each_part(g, Order::forwards, [&](passes::Units units, std::int64_t) {
        passes::kernels(element).forward(g, elements<Element>(x), values.view(), units, elements<Element>(y));
      });
    });
    context->save_for_backward({x, weight, bias, statistics});
    context->saved_data["pool"] = settings.pool;
    context->saved_data["training"] = settings.training;
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& outputs) {
    if (c10::GradMode::is_enabled()) {
      fail(ErrorCode::unsupported, "model: norm_relu_pool has no second derivative: backward without create_graph");
    }
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const passes::Geometry g = geometry_of(x, context->saved_data["pool"].toBool());
    const at::Tensor dy =
        outputs[0]
            .to(x.scalar_type())
            .contiguous(g.channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
    Gradients result = gradients(x, dy, g, saved[1], saved[2], saved[3], context->saved_data["training"].toBool());
    return {result.input, result.weight, result.bias, {}, {}};
  }
};

void check(const at::Tensor& input, const NormTensors& norm, const NormReluPool& settings) {
  const auto shape = [](const at::Tensor& tensor) {
    return fmt::format("{} ({})", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
  };
  if (input.dim() != 4 || (input.scalar_type() != at::kFloat && input.scalar_type() != at::kBFloat16)) {
    fail(ErrorCode::invalid_argument, "model: norm_relu_pool: wanted Float or BFloat16 (N, C, H, W), found {}",
         shape(input));
  }
  for (const at::Tensor& tensor : {norm.weight, norm.bias, norm.running_mean, norm.running_var}) {
    if (tensor.scalar_type() != at::kFloat || tensor.dim() != 1 || tensor.size(0) != input.size(1) ||
        !tensor.is_contiguous()) {
      fail(ErrorCode::invalid_argument,
           "model: norm_relu_pool: wanted weight, bias and running statistics as dense Float ({}), found {}",
           input.size(1), shape(tensor));
    }
    if (!tensor.is_cpu() || !input.is_cpu()) {
      fail(ErrorCode::unsupported, "model: norm_relu_pool runs on the CPU only");
    }
  }
  const std::int64_t least = settings.pool ? 2 : 1;
  if (input.size(0) < 1 || input.size(1) < 1 || input.size(2) < least || input.size(3) < least) {
    fail(ErrorCode::invalid_argument, "model: norm_relu_pool: wanted at least 1 image of {}x{}, found {}", least, least,
         shape(input));
  }
  if (settings.training && input.numel() == input.size(1)) {
    fail(ErrorCode::invalid_argument, "model: norm_relu_pool: wanted more than 1 value a channel in training, found {}",
         shape(input));
  }
}

}  // namespace

at::Tensor norm_relu_pool(const at::Tensor& input, const NormTensors& norm, const NormReluPool& settings) {
  check(input, norm, settings);
  return NormReluPoolFunction::apply(input, norm.weight, norm.bias, norm, settings);
}

}  // namespace headrace
