// Whether a safetensors file is whole, without LibTorch.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace headrace {

struct SafetensorsCheck {
  // What is wrong: the file's length, its header, or a checksum ("xxh3" of the tensors, and of what the header says
  // "header_xxh3" where there is one, in the header's __metadata__); nullopt: it is whole.
  std::optional<std::string> fault;
  std::map<std::string, std::string> texts;  // The header's __metadata__; of a faulty file as far as it was read.
};

// Reads the whole file in pieces.
SafetensorsCheck check_safetensors(const std::filesystem::path& path);

}  // namespace headrace
