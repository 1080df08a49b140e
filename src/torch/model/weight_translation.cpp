#include "torch/model/detail/weight_translation.h"

#include <ATen/ops/sqrt.h>

#include <charconv>
#include <cstddef>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

namespace headrace {
namespace {

using Names = std::set<std::string>;
using Modules = std::vector<std::pair<std::string, std::string>>;  // Names of modules, theirs and ours.

constexpr double kTimmEpsilon = 1e-5, kEpsilon = 1e-3;  // Of MobileNetV3's batch normalisation.
// Every name is compared with every module's. The largest "vit", of 1000 blocks, has 12,008 tensors.
constexpr std::size_t kTensorsMax = 16384;
constexpr std::string_view kHiddenWeight = "classifier.0.weight";

std::optional<std::string> renamed(const std::string& name, const Modules& modules) {
  for (const auto& [theirs, ours] : modules) {
    if (name == theirs) return ours;
    if (name.size() > theirs.size() && name[theirs.size()] == '.' && name.compare(0, theirs.size(), theirs) == 0) {
      return ours + name.substr(theirs.size());
    }
  }
  return std::nullopt;
}

std::optional<int> number_at(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || number < 0 || end == text.data() + text.size() || *end != '.') return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  return number;
}

// "blocks.3.1.conv_dw.weight" -> {3, 1}.
std::optional<std::pair<int, int>> block_of(std::string_view name) {
  constexpr std::string_view prefix = "blocks.";
  if (name.substr(0, prefix.size()) != prefix) return std::nullopt;
  name.remove_prefix(prefix.size());
  const std::optional<int> stage = number_at(name);
  const std::optional<int> block = stage ? number_at(name) : std::nullopt;
  if (!block) return std::nullopt;
  return std::pair{*stage, *block};
}

// Of one block: theirs begins with `theirs`, ours with `ours`.
Modules block_modules(const Names& names, const std::string& theirs, const std::string& ours) {
  const auto has = [&](const std::string& part) { return names.count(theirs + part + ".weight") != 0; };
  if (has("conv")) return {{theirs + "conv", ours + "0"}, {theirs + "bn1", ours + "1"}};
  Modules modules;
  int place = 0;
  const auto add_normed = [&](const std::string& convolution, const std::string& norm) {
    const std::string module = ours + "block." + std::to_string(place++);
    modules.emplace_back(theirs + convolution, module + ".0");
    modules.emplace_back(theirs + norm, module + ".1");
  };
  const bool has_expansion = has("conv_pwl");
  if (has_expansion) add_normed("conv_pw", "bn1");
  add_normed("conv_dw", has_expansion ? "bn2" : "bn1");
  if (has("se.conv_reduce")) {
    const std::string module = ours + "block." + std::to_string(place++);
    modules.emplace_back(theirs + "se.conv_reduce", module + ".fc1");
    modules.emplace_back(theirs + "se.conv_expand", module + ".fc2");
  }
  add_normed(has_expansion ? "conv_pwl" : "conv_pw", has_expansion ? "bn3" : "bn2");
  return modules;
}

// timm numbers blocks by stage, torchvision from 1 on behind the stem.
Modules mobilenet_modules(const Names& names) {
  Modules modules{{"conv_stem", "features.0.0"},
                  {"bn1", "features.0.1"},
                  {"conv_head", "classifier.0"},
                  {"classifier", "classifier.3"}};
  std::set<std::pair<int, int>> blocks;
  for (const std::string& name : names) {
    if (const auto block = block_of(name)) blocks.insert(*block);
  }
  int feature = 1;
  for (const auto& [stage, block] : blocks) {
    const std::string theirs = "blocks." + std::to_string(stage) + "." + std::to_string(block) + ".";
    const Modules of_block = block_modules(names, theirs, "features." + std::to_string(feature++) + ".");
    modules.insert(modules.end(), of_block.begin(), of_block.end());
  }
  return modules;
}

Modules vit_modules(const Names& names) {
  Modules modules{{"cls_token", "class_token"},
                  {"pos_embed", "encoder.pos_embedding"},
                  {"patch_embed.proj", "conv_proj"},
                  {"norm", "encoder.ln"},
                  {"head", "heads.head"}};
  for (int i = 0;; ++i) {
    const std::string theirs = "blocks." + std::to_string(i) + ".";
    if (names.count(theirs + "norm1.weight") == 0) return modules;
    const std::string ours = "encoder.layers.encoder_layer_" + std::to_string(i) + ".";
    modules.emplace_back(theirs + "norm1", ours + "ln_1");
    modules.emplace_back(theirs + "attn.qkv.weight", ours + "self_attention.in_proj_weight");
    modules.emplace_back(theirs + "attn.qkv.bias", ours + "self_attention.in_proj_bias");
    modules.emplace_back(theirs + "attn.proj", ours + "self_attention.out_proj");
    modules.emplace_back(theirs + "norm2", ours + "ln_2");
    modules.emplace_back(theirs + "mlp.fc1", ours + "mlp.0");
    modules.emplace_back(theirs + "mlp.fc2", ours + "mlp.3");
  }
}

// torchvision's own of before 0.14.
Modules old_vit_modules(const Names& names) {
  Modules modules;
  for (int i = 0;; ++i) {
    const std::string mlp = "encoder.layers.encoder_layer_" + std::to_string(i) + ".mlp.";
    if (names.count(mlp + "linear_1.weight") == 0) return modules;
    modules.emplace_back(mlp + "linear_1", mlp + "0");
    modules.emplace_back(mlp + "linear_2", mlp + "3");
  }
}

}  // namespace

WeightTranslation::WeightTranslation(const std::vector<SafetensorsEntry>& entries) {
  if (entries.size() > kTensorsMax) return;
  Names theirs;
  for (const SafetensorsEntry& entry : entries) theirs.insert(entry.name);
  const auto has = [&](const char* name) { return theirs.count(name) != 0; };
  is_timm_mobilenet_ = has("conv_stem.weight") && has("conv_head.weight") && has("conv_head.bias");
  const Modules modules = is_timm_mobilenet_                                   ? mobilenet_modules(theirs)
                          : has("cls_token") && has("patch_embed.proj.weight") ? vit_modules(theirs)
                                                                               : old_vit_modules(theirs);
  Names ours;
  for (const std::string& name : theirs) {
    const std::optional<std::string> other = renamed(name, modules);
    if (other) names_.emplace(name, *other);
    ours.insert(other.value_or(name));
  }
  if (ours.size() == theirs.size()) return;
  names_.clear();
  is_timm_mobilenet_ = false;
}

std::string WeightTranslation::name_of(const std::string& theirs) const {
  const auto found = names_.find(theirs);
  return found == names_.end() ? theirs : found->second;
}

SafetensorsEntry WeightTranslation::translated(SafetensorsEntry entry) const {
  entry.name = name_of(entry.name);
  if (is_timm_mobilenet_ && entry.name == kHiddenWeight && entry.shape.size() == 4 && entry.shape[2] == 1 &&
      entry.shape[3] == 1) {
    entry.shape.resize(2);
  }
  return entry;
}

std::map<std::string, at::Tensor> WeightTranslation::translated(const NamedTensors& tensors) const {
  std::map<std::string, at::Tensor> result;
  for (const auto& [theirs, tensor] : tensors) result.emplace(name_of(theirs), tensor);
  if (!is_timm_mobilenet_) return result;
  if (const auto hidden = result.find(std::string(kHiddenWeight)); hidden != result.end()) {
    hidden->second = hidden->second.flatten(1);
  }
  constexpr std::string_view ending = ".running_var";
  for (const auto& [name, variance] : result) {
    if (name.size() < ending.size() || name.substr(name.size() - ending.size()) != ending) continue;
    const auto weight = result.find(name.substr(0, name.size() - ending.size()) + ".weight");
    if (weight == result.end() || weight->second.sizes() != variance.sizes()) continue;
    const at::Tensor exact = variance.to(at::kDouble);
    const at::Tensor scale = at::sqrt(exact.add(kEpsilon).div(exact.add(kTimmEpsilon)));
    weight->second = weight->second.to(at::kDouble).mul(scale).to(weight->second.scalar_type());
  }
  return result;
}

}  // namespace headrace
