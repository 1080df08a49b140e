#include <headrace/frozen_parts.h>
#include <headrace/model.h>
#include <headrace/weights.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "core/base/fail.h"
#include "core/base/nearest_name.h"
#include "torch/model/activation_checkpointing.h"
#include "torch/model/detail/families.h"

namespace headrace {
namespace {

struct Family {
  std::string_view name;
  std::unique_ptr<Network> (*make)(const ModelOptions& options, const ImageShape& images);
};
constexpr std::array kFamilies{
    Family{"small_cnn", make_small_cnn},
    Family{"mlp", make_mlp},
    Family{"resnet18", make_resnet},
    Family{"strided_cnn", make_strided_cnn},
    Family{"resnet34", make_resnet},
    Family{"resnet50", make_resnet},
    Family{"mobilenet_v3_large", make_mobilenet_v3},
    Family{"mobilenet_v3_small", make_mobilenet_v3},
    Family{"vit_b_16", make_vit},
    Family{"vit", make_vit},
};
constexpr std::string_view kScript = "torchscript:";

[[noreturn]] void fail_unknown(const std::string& name) {
  const std::vector<std::string> names = network_names();
  const std::string nearest = nearest_name(names, name);
  fail(ErrorCode::invalid_argument, "model: unknown network \"{}\"{}; known: {}, torchscript:FILE", name,
       nearest.empty() ? std::string{} : fmt::format(", did you mean {}?", nearest), fmt::join(names, ", "));
}

void refuse_elsewhere(std::string_view key, const std::vector<std::string_view>& networks, const std::string& name) {
  if (std::find(networks.begin(), networks.end(), name) != networks.end()) return;
  fail(ErrorCode::invalid_argument, "model: model.{} is for {}, found model.name = \"{}\"", key,
       fmt::join(networks, ", "), name);
}

// Options that one family of networks alone has.
void check_options(const ModelOptions& options) {
  const ModelOptions unset;
  if (options.stem != unset.stem) refuse_elsewhere("stem", {"resnet18", "resnet34", "resnet50"}, options.name);
  if (options.dropout != unset.dropout) {
    refuse_elsewhere("dropout", {"mobilenet_v3_large", "mobilenet_v3_small"}, options.name);
  }
  if (options.vit != unset.vit) refuse_elsewhere("vit", {"vit"}, options.name);
  if (options.activation_checkpointing == ActivationCheckpointing::activations) {
    refuse_elsewhere(
        "activation_checkpointing = \"activations\"",
        {"small_cnn", "strided_cnn", "resnet18", "resnet34", "resnet50", "mobilenet_v3_large", "mobilenet_v3_small"},
        options.name);
  }
  if (options.activation_checkpointing == ActivationCheckpointing::blocks) {
    refuse_elsewhere(
        "activation_checkpointing = \"blocks\"",
        {"resnet18", "resnet34", "resnet50", "mobilenet_v3_large", "mobilenet_v3_small", "vit_b_16", "vit"},
        options.name);
  }
  if (!options.frozen.empty() && script_file(options.name)) {
    fail(ErrorCode::invalid_argument,
         "model: model.frozen is for headrace's own networks, found model.name = \"{}\": call requires_grad_(False) on "
         "the parts before torch.jit.save",
         options.name);
  }
}

std::unique_ptr<Network> network_named(const ModelOptions& options, const ImageShape& images) {
  if (const auto file = script_file(options.name)) return load_script(*file, options.num_classes);
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
  check_options(options);
  const CheckpointingRequest checkpointing = checkpointing_request(options);
  if (options.weights.empty() && !options.weights_except.empty()) {
    fail(ErrorCode::invalid_argument, "model: model.weights_except names {}, but model.weights names no file",
         fmt::join(options.weights_except, ", "));
  }
  std::unique_ptr<Network> network = network_named(options, {channels, height, width});
  network->set_fusion(options.fusion);
  network->set_activation_checkpointing(checkpointing);
  if (!options.weights.empty()) load_weights(options.weights, network->state(), options.weights_except);
  freeze(network->state(), options.frozen);
  return network;
}

std::optional<std::string> script_file(const std::string& name) {
  if (!name.starts_with(kScript)) return std::nullopt;
  return name.substr(kScript.size());
}

std::vector<std::string> network_names() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.emplace_back(family.name);
  return names;
}

}  // namespace headrace
