// One function a family of networks. Each is drawn from the default generator as its Python reference draws itself.
#pragma once

#include <headrace/model.h>

#include <cstdint>
#include <memory>
#include <string>

namespace headrace {

struct ImageShape {
  std::int64_t channels, height, width;
};

// Two convolutions with normalisation and pooling, two linear layers. Images of at least 4x4.
std::unique_ptr<Network> make_small_cnn(const ModelOptions& options, const ImageShape& images);
std::unique_ptr<Network> make_mlp(const ModelOptions& options, const ImageShape& images);
// torchvision's resnet18, resnet34 or resnet50, by options.name: with its initialisation, names and sums; options.stem.
std::unique_ptr<Network> make_resnet(const ModelOptions& options, const ImageShape& images);
// torchvision's mobilenet_v3_large or mobilenet_v3_small, likewise; options.dropout.
std::unique_ptr<Network> make_mobilenet_v3(const ModelOptions& options, const ImageShape& images);
// torchvision's vit_b_16, or its VisionTransformer of options.vit for the name "vit", for images of this size, which
// need not be square. Error{invalid_argument}: patches do not tile the images, or heads do not divide a token.
std::unique_ptr<Network> make_vit(const ModelOptions& options, const ImageShape& images);
// Four convolutions of stride 2 that leave loading as the limit: 2,800 images of 64x64 a second on two cores.
std::unique_ptr<Network> make_strided_cnn(const ModelOptions& options, const ImageShape& images);
// A file that torch.jit.save wrote. Its parameters that require gradients are the state's parameters, the others and
// its buffers the state's buffers; a tensor with two names has the first. Error{not_found, io, corrupt_data,
// unsupported} names the file; a .pt2 archive is {unsupported}. Reads no more than the file's size, and code of at most
// 256 MiB unpacked; but LibTorch trusts what it reads, so that a hostile file can do whatever this process can.
std::unique_ptr<Network> load_script(const std::string& file, std::int64_t classes);

}  // namespace headrace
