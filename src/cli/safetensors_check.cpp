#include "cli/safetensors_check.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "base/files.h"
#include "base/hash.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kHeaderBytesMax = 100'000'000;  // The format's own limit.

// Where the last tensor ends, or nullopt: an entry is not what the format says.
std::optional<std::uint64_t> end_of_tensors(const Json& header) {
  std::uint64_t end = 0;
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    const Json offsets = tensor.is_object() ? tensor.value("data_offsets", Json()) : Json();
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned() || offsets[0].get<std::uint64_t>() > offsets[1].get<std::uint64_t>()) {
      return std::nullopt;
    }
    end = std::max(end, offsets[1].get<std::uint64_t>());
  }
  return end;
}

std::optional<std::string> checksum_fault(std::ifstream& file, const std::string& wanted) {
  Xxh3Stream hash;
  std::vector<std::byte> piece(1 << 20);
  while (file) {
    file.read(reinterpret_cast<char*>(piece.data()), static_cast<std::streamsize>(piece.size()));
    hash.update(std::span(piece).first(static_cast<std::size_t>(file.gcount())));
  }
  if (file.bad()) return "cannot be read to its end";
  const std::string found = hex(hash.digest());
  if (found == wanted) return std::nullopt;
  return "its tensors have checksum " + found + ", the header says " + wanted;
}

}  // namespace

std::optional<std::string> safetensors_fault(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "cannot be opened: " + system_message(errno);
  const auto size = static_cast<std::uint64_t>(file.tellg());
  file.seekg(0);
  std::array<unsigned char, 8> prefix{};
  if (size < prefix.size() || !file.read(reinterpret_cast<char*>(prefix.data()), prefix.size())) {
    return "has " + std::to_string(size) + " bytes, its header alone needs 8";
  }
  std::uint64_t header_bytes = 0;
  for (std::size_t i = prefix.size(); i > 0; --i) header_bytes = header_bytes << 8U | prefix[i - 1];
  if (header_bytes > std::min(size - prefix.size(), kHeaderBytesMax)) {
    return "has " + std::to_string(size) + " bytes, its header alone needs " + std::to_string(header_bytes);
  }
  std::string text(header_bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  const Json header = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!file || !header.is_object()) return "has a header that is no JSON object";
  const std::optional<std::uint64_t> end = end_of_tensors(header);
  if (!end) return "has a header with tensors that lie nowhere";
  const std::uint64_t tensor_bytes = size - prefix.size() - header_bytes;
  if (*end != tensor_bytes) {
    return "has " + std::to_string(tensor_bytes) + " bytes of tensors, its header says " + std::to_string(*end);
  }
  const Json metadata = header.value("__metadata__", Json::object());
  if (!metadata.is_object() || !metadata.contains("xxh3") || !metadata["xxh3"].is_string()) {
    return "has no checksum in its header";
  }
  return checksum_fault(file, metadata["xxh3"].get<std::string>());
}

}  // namespace headrace
