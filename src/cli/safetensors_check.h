// Whether a safetensors file is whole, without LibTorch.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace headrace {

// What is wrong with the file: its length, its header, or the checksum of its tensors ("xxh3" in the header's
// __metadata__); nullopt: it is whole. Reads the whole file in pieces.
std::optional<std::string> safetensors_fault(const std::filesystem::path& path);

}  // namespace headrace
