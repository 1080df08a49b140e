// Whether a safetensors file is whole, without LibTorch.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "data/store/safetensors.h"

namespace headrace {

struct SafetensorsCheck {
  // What is wrong, behind the file's name: its header, its length, a checksum that differs or is missing; nullopt: it
  // is whole.
  std::optional<std::string> fault;
  SafetensorsTexts texts;  // Of a faulty file as far as they were read.
};

// Reads the whole file in pieces.
SafetensorsCheck check_safetensors(const std::filesystem::path& path);

}  // namespace headrace
