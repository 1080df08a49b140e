#include "cli/safetensors_check.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/hash.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kHeaderBytesMax = 100'000'000;  // The format's own limit.

// The format's names of types and LibTorch's, which the header's checksum is made of.
constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kTypes{{{"F32", "Float"},
                                                                                {"F64", "Double"},
                                                                                {"F16", "Half"},
                                                                                {"BF16", "BFloat16"},
                                                                                {"I64", "Long"},
                                                                                {"I32", "Int"},
                                                                                {"I16", "Short"},
                                                                                {"I8", "Char"},
                                                                                {"U8", "Byte"},
                                                                                {"BOOL", "Bool"}}};

// The member itself: a copy of what is nested a million deep would exhaust the stack, and so would its dump().
const Json& member(const Json& object, const char* name) {
  static const Json kNone;
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found != object.end() ? *found : kNone;
}

bool are_whole_numbers(const Json& list) {
  return list.is_array() && std::all_of(list.begin(), list.end(), [](const Json& n) { return n.is_number_unsigned(); });
}

// Where the last tensor ends, or nullopt: an entry is not what the format says.
std::optional<std::uint64_t> end_of_tensors(const Json& header) {
  std::uint64_t end = 0;
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    const Json& offsets = member(tensor, "data_offsets");
    if (!are_whole_numbers(offsets) || offsets.size() != 2 || !are_whole_numbers(member(tensor, "shape")) ||
        !member(tensor, "dtype").is_string() || offsets[0].get<std::uint64_t>() > offsets[1].get<std::uint64_t>()) {
      return std::nullopt;
    }
    end = std::max(end, offsets[1].get<std::uint64_t>());
  }
  return end;
}

// "conv1.weight Float 16,1,3,3", as train::header_checksum counts a tensor.
std::string tensor_text(const std::string& name, const Json& tensor) {
  const auto type = member(tensor, "dtype").get<std::string>();
  const auto known = std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& pair) { return pair.first == type; });
  std::string text = name + ' ' + (known == kTypes.end() ? type : std::string(known->second)) + ' ';
  const char* separator = "";
  for (const Json& size : member(tensor, "shape")) {
    text += std::exchange(separator, ",") + std::to_string(size.get<std::uint64_t>());
  }
  return text;
}

std::optional<std::string> header_fault(const Json& header, const std::map<std::string, std::string>& texts) {
  const auto wanted = texts.find("header_xxh3");
  if (wanted == texts.end()) return std::nullopt;
  Xxh3Stream hash;
  const auto add = [&hash](const std::string& text) {
    hash.update(std::as_bytes(std::span{text.c_str(), text.size() + 1}));
  };
  for (const auto& [key, text] : texts) {
    if (key == "xxh3" || key == "header_xxh3") continue;
    add(key);
    add(text);
  }
  std::vector<std::string> tensors;
  for (const auto& [name, tensor] : header.items()) {
    if (name != "__metadata__") tensors.push_back(tensor_text(name, tensor));
  }
  std::sort(tensors.begin(), tensors.end());
  for (const std::string& tensor : tensors) add(tensor);
  const std::string found = hex(hash.digest());
  if (found == wanted->second) return std::nullopt;
  return "its header has checksum " + found + " and says " + wanted->second;
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

std::optional<std::string> fault_of(const std::filesystem::path& path, std::map<std::string, std::string>& texts) {
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
  const Json& metadata = member(header, "__metadata__");
  if (!metadata.is_object()) return "has no checksum in its header";
  for (const auto& [key, value] : metadata.items()) {
    if (value.is_string()) texts[key] = value.get<std::string>();
  }
  const auto checksum = texts.find("xxh3");
  if (checksum == texts.end()) return "has no checksum in its header";
  if (auto fault = header_fault(header, texts)) return fault;
  return checksum_fault(file, checksum->second);
}

}  // namespace

SafetensorsCheck check_safetensors(const std::filesystem::path& path) {
  SafetensorsCheck check;
  check.fault = fault_of(path, check.texts);
  return check;
}

}  // namespace headrace
