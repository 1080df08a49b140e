// Weights files whose networks are ours under other names.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "torch/tensor/safetensors.h"

namespace headrace {

// From the names of a file to those of torchvision's networks. Known are timm's MobileNetV3 (mobilenetv3_large_100,
// mobilenetv3_small_100) and VisionTransformer (vit_tiny_patch16_224 and others with a class token), whose resnets have
// torchvision's names, and the ViT of torchvision before 0.14. A file of anything else stays as it is, as does one of
// which two tensors would get one name, or of more tensors than the largest of our networks has.
//
// Beside names two things differ in timm's MobileNetV3. The head's first layer is a 1x1 convolution. And batch
// normalisation adds 1e-5 to the variance where torchvision adds 1e-3: weights are scaled by
// sqrt((running_var + 1e-3) / (running_var + 1e-5)), so that evaluation computes the same.
class WeightTranslation {
 public:
  explicit WeightTranslation(const std::vector<SafetensorsEntry>& entries);

  bool renames(const std::string& theirs) const { return names_.count(theirs) != 0; }
  SafetensorsEntry translated(SafetensorsEntry entry) const;  // Its name and shape in our network.
  // All of the file's, by our names.
  std::map<std::string, at::Tensor> translated(const NamedTensors& tensors) const;

 private:
  std::string name_of(const std::string& theirs) const;

  std::map<std::string, std::string> names_;  // From theirs to ours, of tensors that have another.
  bool is_timm_mobilenet_ = false;
};

}  // namespace headrace
