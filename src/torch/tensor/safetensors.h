// Files of tensors in the safetensors format: data/store/safetensors.h reads them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "data/store/safetensors.h"

namespace headrace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

std::int64_t bytes_of(const NamedTensors& tensors);  // Of their elements alone.
// Whether names, shapes and dtypes are the same, in order.
bool are_alike(const NamedTensors& a, const NamedTensors& b);

struct SafetensorsFile {
  NamedTensors tensors;  // In file order; own memory.
  SafetensorsTexts metadata;
};

// Contiguous row-major on disk, widest elements first, whatever the strides. float32, float64, float16, bfloat16, int8
// to int64, uint8, bool. Written aside, fsynced, renamed. `metadata` gains kTensorsChecksum.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors, SafetensorsTexts metadata);
// Errors of SafetensorsReader, which name the file. `inspect`, if any, is told the header's tensors in file order
// before memory for them is taken; what it throws, this throws.
SafetensorsFile read_safetensors(const std::filesystem::path& path,
                                 const std::function<void(const std::vector<SafetensorsEntry>&)>& inspect = {});
// The header's texts alone: every check but the checksum's, which needs the tensors' bytes.
SafetensorsTexts read_safetensors_metadata(const std::filesystem::path& path);

// Without its place in a file. Error{unsupported}: safetensors does not know the type.
SafetensorsEntry entry_of(const std::string& name, const at::Tensor& tensor);

}  // namespace headrace
