#include "app/cli/safetensors_check.h"

#include <headrace/error.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace headrace {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;

std::optional<std::string> header_fault(const SafetensorsReader& reader) {
  const SafetensorsTexts& texts = reader.texts();
  if (!texts.contains(kTensorsChecksum)) return "has no checksum in its header";
  const auto wanted = texts.find(kHeaderChecksum);
  if (wanted == texts.end()) return std::nullopt;
  const std::string found = header_checksum(texts, reader.entries());
  if (found == wanted->second) return std::nullopt;
  return "is damaged: its header has checksum " + found + " and says " + shown_name(wanted->second);
}

void read_all(SafetensorsReader& reader) {
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(reader.tensor_bytes(), kPieceBytes)));
  for (std::int64_t left = reader.tensor_bytes(); left > 0; left -= std::min(left, kPieceBytes)) {
    reader.read(std::span(piece).first(static_cast<std::size_t>(std::min(left, kPieceBytes))));
  }
  reader.check_read();
}

}  // namespace

SafetensorsCheck check_safetensors(const std::filesystem::path& path) {
  SafetensorsCheck check;
  try {
    SafetensorsReader reader(path, "is damaged");
    check.texts = reader.texts();
    check.fault = header_fault(reader);
    if (!check.fault) read_all(reader);
  } catch (const Error& error) {
    check.fault = error.what();
  }
  return check;
}

}  // namespace headrace
