#include <c10/core/GradMode.h>
#include <headrace/facade/model_optimizer.h>

#include <optional>
#include <utility>

#include "facade/setting_row.h"
#include "torch/train/memory_layout.h"

namespace headrace::facade {
namespace {

constexpr const char* kNotCalled = "wanted optimize_model(model), which was not called";
constexpr const char* kNotCompiled =
    "C++ has no torch.compile; a recipe's model.name = \"torchscript:FILE\" runs what torch.jit has compiled";
constexpr const char* kNotRecomputed =
    "a forward of one's own cannot be recomputed from outside; the networks of a recipe can be, by "
    "model.activation_checkpointing";
constexpr const char* kNoKernel =
    "LibTorch's scaled_dot_product_attention takes the flash kernel where it can, and is not told to";

// nullopt: the engine has no such layout.
std::optional<headrace::MemoryFormat> layout_of(MemoryFormat format) {
  switch (format) {
    case MemoryFormat::contiguous:
      return headrace::MemoryFormat::contiguous;
    case MemoryFormat::channels_last:
      return headrace::MemoryFormat::channels_last;
    case MemoryFormat::channels_last_3d:
    case MemoryFormat::preserve:
      break;
  }
  return std::nullopt;
}

bool has_images(const ModelState& model) {
  for (const auto& [name, parameter] : model.parameters) {
    if (parameter.dim() == 4) return true;
  }
  return false;
}

// Empty: it can be laid out, or is as it shall be already.
std::string why_no_layout(const PerformanceConfig& config, const ModelState& model) {
  if (!config->enable_memory_format_optimization || config->memory_format == MemoryFormat::preserve) return "";
  if (config->memory_format == MemoryFormat::channels_last_3d)
    return "the engine lays out tensors of 4 dimensions alone";
  return has_images(model) ? "" : "wanted a parameter of 4 dimensions, found none";
}

// nullopt: the layout stays.
std::optional<headrace::MemoryFormat> wanted_layout(const PerformanceConfig& config, const std::string& why_not) {
  if (!config->enable_memory_format_optimization || !why_not.empty()) return std::nullopt;
  return layout_of(config->memory_format);
}

}  // namespace

ModelOptimizer::ModelOptimizer(PerformanceConfig config) : config_(std::move(config)), why_not_laid_out_(kNotCalled) {}

ModelState ModelOptimizer::optimize_model(ModelState model) {
  why_not_laid_out_ = why_no_layout(config_, model);
  if (const auto layout = wanted_layout(config_, why_not_laid_out_)) {
    const c10::AutoGradMode no_graph(false);
    const auto convert = [layout](const at::Tensor& tensor) {
      if (tensor.defined() && tensor.dim() == 4) tensor.set_data(in_layout(tensor.detach(), *layout));
    };
    for (const auto& [name, parameter] : model.parameters) {
      convert(parameter);
      convert(parameter.grad());
    }
  }
  return model;
}

void ModelOptimizer::optimize_model(Trainer& trainer) {
  why_not_laid_out_ = why_no_layout(config_, trainer.model());
  if (const auto layout = wanted_layout(config_, why_not_laid_out_)) trainer.set_memory_format(*layout);
}

std::vector<Applied> ModelOptimizer::report() const {
  return {setting_row(config_, "enable_memory_format_optimization", why_not_laid_out_),
          setting_row(config_, "enable_gradient_checkpointing", kNotRecomputed),
          setting_row(config_, "enable_compile", kNotCompiled),
          setting_row(config_, "enable_flash_attention", kNoKernel)};
}

}  // namespace headrace::facade
