// Opens a library of kernels and calls one by its name.
//
//   use_kernel build/libnormalise.so [example::normalise]
#include <ATen/core/dispatch/Dispatcher.h>
#include <headrace/kernel.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <string>

int main(int argc, char** argv) try {
  if (argc < 2) {
    std::fprintf(stderr, "usage: use_kernel LIBRARY [NAME]\n");
    return 2;
  }
  const std::string name = argc > 2 ? argv[2] : "example::normalise";
  headrace::register_kernel(name, argv[1]);
  const auto normalise = c10::Dispatcher::singleton()
                             .findSchemaOrThrow(name.c_str(), "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>();
  torch::manual_seed(1);
  const at::Tensor images = torch::randint(0, 256, {2, 3, 5, 7}, torch::kUInt8);
  const at::Tensor mean = torch::tensor({0.485F, 0.456F, 0.406F}), deviation = torch::tensor({0.229F, 0.224F, 0.225F});
  const at::Tensor found = normalise.call(images, mean, deviation);
  const at::Tensor wanted = (images.to(torch::kFloat) / 255 - mean.view({3, 1, 1})) / deviation.view({3, 1, 1});
  std::printf("%s: largest difference from LibTorch's operators %g, channels last: %s\n", name.c_str(),
              (found - wanted).abs().max().item<double>(),
              found.is_contiguous(at::MemoryFormat::ChannelsLast) ? "yes" : "no");
} catch (const std::exception& error) {
  std::fprintf(stderr, "use_kernel: %s\n", error.what());
  return 1;
}
