// The safetensors file format (Hugging Face): 8 bytes little-endian header length, JSON header, raw tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace headrace {

struct SafetensorsFile {
  std::vector<std::pair<std::string, at::Tensor>> tensors;  // In file order; own memory.
  std::map<std::string, std::string> metadata;
};

// A tensor as the header describes it.
struct SafetensorsEntry {
  std::string name;
  at::ScalarType type{};
  std::vector<std::int64_t> shape;
};

// Contiguous row-major on disk, widest elements first, whatever the strides. float32, float64, float16, bfloat16, int8
// to int64, uint8, bool. Written aside, fsynced, renamed. `metadata` gains "xxh3" of the tensor bytes.
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                       std::map<std::string, std::string> metadata);
// Error{not_found} or Error{io} when it cannot be read. Error{corrupt_data} names the file and what is wrong: header
// length beyond the file or 100 MB, JSON, dtype, offsets that overlap, leave holes or do not fit the shape, a checksum
// that differs. Allocates nothing a header alone asks for beyond the file's own size. `inspect`, if any, is told the
// header's tensors in file order before memory for them is taken; what it throws, this throws.
SafetensorsFile read_safetensors(const std::filesystem::path& path,
                                 const std::function<void(const std::vector<SafetensorsEntry>&)>& inspect = {});
// The header's texts alone: every check but the checksum's, which needs the tensors' bytes.
std::map<std::string, std::string> read_safetensors_metadata(const std::filesystem::path& path);

// A tensor's name for messages. Names come from files: quoted and escaped, they stay on one line.
std::string shown_name(const std::string& name);

}  // namespace headrace
