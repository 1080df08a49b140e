// Tensors in the files of torch.save: data/store/pt_file.h finds them.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "torch/tensor/safetensors.h"

namespace headrace {

// The tensors of a state_dict that torch.save wrote, by name and in its order, without metadata. Nothing that the file
// says is run. The tensors lie in the file, which stays mapped as long as one of them lives: they are read from disk
// when they are looked at, writing to one changes neither file nor other processes, and the file must not be cut short
// meanwhile. One whose elements are not aligned is copied. Their strides are the file's.
//
// `inspect`, as of read_safetensors(): told names, types and shapes before the tensors are made; what it throws, this
// throws. Errors of pt_entries() and MappedFile, and {corrupt_data} for a bool that is neither 0 nor 1; all name the
// file.
SafetensorsFile read_pt(const std::filesystem::path& path,
                        const std::function<void(const std::vector<SafetensorsEntry>&)>& inspect = {});

// A file of weights by its name: read_pt() for .pt, .pth, .bin and .ckpt, read_safetensors() for any other.
SafetensorsFile read_tensors(const std::filesystem::path& path,
                             const std::function<void(const std::vector<SafetensorsEntry>&)>& inspect = {});

}  // namespace headrace
