// Tensors in the files of torch.save: data/store/pt_file.h finds them.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
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

// Whether read_tensors() takes the file for one of torch.save: by its first bytes, a zip archive's or safetensors', and
// where these tell neither, or it cannot be read, by its suffix, which is .pt, .pth, .bin or .ckpt then.
bool is_pt(const std::filesystem::path& path);

// A file of weights: read_pt() where is_pt(), read_safetensors() for any other.
SafetensorsFile read_tensors(const std::filesystem::path& path,
                             const std::function<void(const std::vector<SafetensorsEntry>&)>& inspect = {});

// Error{unsupported} where the file is a .pt2 archive, a program of torch.export or a package of AOTInductor, whatever
// its suffix. Every Error begins with `what`; the others are those of MappedFile and zip_records().
void refuse_pt2(const std::filesystem::path& path, const std::string& what);

}  // namespace headrace
