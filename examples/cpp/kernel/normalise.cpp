// A kernel of one's own: uint8 images to normalised float32 in channels-last memory, in one pass.
//
//   example::normalise(Tensor images, Tensor mean, Tensor std) -> Tensor
//
// images: uint8, (N, C, H, W), contiguous. mean, std: float32, (C), of pixels of 0 to 1. Returns float32, (N, C, H, W),
// channels_last: (images / 255 - mean) / std.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <headrace/kernel.h>
#include <torch/library.h>
#include <torch/version.h>

#include <cstdint>

HEADRACE_KERNEL_LIBRARY

namespace {

at::Tensor normalise(const at::Tensor& images, const at::Tensor& mean, const at::Tensor& deviation) {
  TORCH_CHECK_VALUE(images.scalar_type() == at::kByte && images.dim() == 4 && images.is_contiguous(),
                    "normalise: wanted contiguous uint8 images (N, C, H, W)");
  const std::int64_t channels = images.size(1), pixels = images.size(2) * images.size(3);
  for (const at::Tensor& values : {mean, deviation}) {
    TORCH_CHECK_VALUE(
        values.scalar_type() == at::kFloat && values.is_contiguous() && values.dim() == 1 && values.size(0) == channels,
        "normalise: wanted a float32 mean and std of each channel");
  }
  at::Tensor result =
      at::empty(images.sizes(), images.options().dtype(at::kFloat).memory_format(at::MemoryFormat::ChannelsLast));
  const auto* source = images.const_data_ptr<std::uint8_t>();
  auto* target = result.mutable_data_ptr<float>();
  const auto *means = mean.const_data_ptr<float>(), *deviations = deviation.const_data_ptr<float>();
  for (std::int64_t image = 0; image < images.size(0); ++image) {
    for (std::int64_t pixel = 0; pixel < pixels; ++pixel) {
      for (std::int64_t channel = 0; channel < channels; ++channel) {
        const auto value = static_cast<float>(source[(image * channels + channel) * pixels + pixel]);
        *target++ = (value / 255 - means[channel]) / deviations[channel];
      }
    }
  }
  return result;
}

}  // namespace

TORCH_LIBRARY(example, library) {
  library.def("normalise(Tensor images, Tensor mean, Tensor std) -> Tensor");
}
TORCH_LIBRARY_IMPL(example, CPU, library) {
  library.impl("normalise", &normalise);
}
