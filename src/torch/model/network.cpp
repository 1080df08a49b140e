#include "torch/model/network.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "core/base/fail.h"
#include "core/base/nearest_name.h"
#include "torch/model/detail/families.h"
#include "torch/model/weights.h"

namespace headrace {
namespace {

struct Family {
  std::string_view name;
  std::unique_ptr<Network> (*make)(const ModelOptions& options, const ImageShape& images);
};
constexpr std::array kFamilies{Family{"small_cnn", make_small_cnn}, Family{"mlp", make_mlp},
                               Family{"resnet18", make_resnet18}, Family{"strided_cnn", make_strided_cnn}};
constexpr std::string_view kScript = "torchscript:";

[[noreturn]] void fail_unknown(const std::string& name) {
  const std::vector<std::string> names = network_names();
  const std::string nearest = nearest_name(names, name);
  fail(ErrorCode::invalid_argument, "model: unknown network \"{}\"{}; known: {}, torchscript:FILE", name,
       nearest.empty() ? std::string{} : fmt::format(", did you mean {}?", nearest), fmt::join(names, ", "));
}

std::unique_ptr<Network> network_named(const ModelOptions& options, const ImageShape& images) {
  if (options.name.rfind(kScript, 0) == 0) return load_script(options.name.substr(kScript.size()), options.num_classes);
  const auto family =
      std::find_if(kFamilies.begin(), kFamilies.end(), [&](const Family& known) { return known.name == options.name; });
  if (family == kFamilies.end()) fail_unknown(options.name);
  return family->make(options, images);
}

}  // namespace

std::unique_ptr<Network> make_network(const ModelOptions& options, int channels, int height, int width) {
  if (channels < 1 || height < 1 || width < 1 || options.num_classes < 2) {
    fail(ErrorCode::invalid_argument, "model: {}: wanted images and at least 2 classes, found {}x{}x{} and {}",
         options.name, channels, height, width, options.num_classes);
  }
  if (options.stem != Stem::imagenet && options.name != "resnet18") {
    fail(ErrorCode::invalid_argument, "model: model.stem is for resnet18, found model.name = \"{}\"", options.name);
  }
  if (options.weights.empty() && !options.weights_except.empty()) {
    fail(ErrorCode::invalid_argument, "model: model.weights_except names {}, but model.weights names no file",
         fmt::join(options.weights_except, ", "));
  }
  std::unique_ptr<Network> network = network_named(options, {channels, height, width});
  network->set_fusion(options.fusion);
  if (!options.weights.empty()) load_weights(options.weights, network->state(), options.weights_except);
  return network;
}

std::vector<std::string> network_names() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.emplace_back(family.name);
  return names;
}

}  // namespace headrace
