// The safetensors file format (Hugging Face), to read: 8 bytes little-endian header length, JSON header, raw tensors.
// Checkpoints, weights and the checks of a run's folder are read by this.
#pragma once

#include <headrace/dtype.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/hash.h"

namespace headrace {

// A tensor as the header describes it.
struct SafetensorsEntry {
  std::string name;
  DType dtype{};
  Shape shape;
  std::int64_t begin = 0;  // Of its bytes, behind the header.
  std::int64_t end = 0;
};

using SafetensorsTexts = std::map<std::string, std::string>;  // The header's __metadata__.

// The keys of the texts that hold checksums: XXH3 of the tensors' bytes, and what header_checksum() gives.
inline constexpr const char* kTensorsChecksum = "xxh3";
inline constexpr const char* kHeaderChecksum = "header_xxh3";

// Every Error begins with `what`: {not_found} or {io} where the file cannot be read; {corrupt_data} says what is wrong:
// header length beyond the file or 100 MB, JSON, dtype, offsets that overlap, leave holes or do not fit the shape, a
// checksum that differs. Allocates nothing a header alone asks for beyond the file's own size. Not thread-safe.
class SafetensorsReader {
 public:
  // Reads the header.
  SafetensorsReader(const std::filesystem::path& path, std::string what);

  const std::vector<SafetensorsEntry>& entries() const noexcept { return entries_; }  // In file order, end to end.
  const SafetensorsTexts& texts() const noexcept { return texts_; }
  std::int64_t tensor_bytes() const noexcept { return tensor_bytes_; }  // Of all.

  // The next bytes of the tensors, which follow each other; as many as there are left at most.
  void read(std::span<std::byte> into);
  // Once all were read: whether they have the checksum that the texts tell, if any.
  void check_read() const;

 private:
  void take(std::span<std::byte> into);

  const std::string what_;
  std::ifstream stream_;
  std::int64_t tensor_bytes_ = 0;
  Xxh3Stream checksum_;  // Of the tensors' bytes that were read.
  std::vector<SafetensorsEntry> entries_;
  SafetensorsTexts texts_;
};

std::string_view safetensors_name(DType dtype) noexcept;  // "BF16".

// XXH3 of all that a header says but its two checksums: the texts, and names, types and shapes of the tensors in
// whatever order. 16 digits.
std::string header_checksum(const SafetensorsTexts& texts, const std::vector<SafetensorsEntry>& entries);

// A tensor's name for messages. Names come from files: quoted and escaped, they stay on one line.
std::string shown_name(const std::string& name);

}  // namespace headrace
