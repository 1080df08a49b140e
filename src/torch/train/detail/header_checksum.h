// What keeps a flipped bit in a checkpoint's header from passing for another state.
#pragma once

#include <string>

#include "torch/tensor/safetensors.h"

namespace headrace {

// Of a file with these tensors; see data/store/safetensors.h.
std::string header_checksum(const SafetensorsTexts& texts, const NamedTensors& tensors);

}  // namespace headrace
