#include "torch/tensor/pt_weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/base/fail.h"
#include "data/store/mapped_file.h"
#include "data/store/pt_file.h"
#include "data/store/zip_records.h"
#include "torch/tensor/scalar_type.h"

namespace headrace {
namespace {

constexpr std::array<std::string_view, 4> kPtSuffixes{".pt", ".pth", ".bin", ".ckpt"};

at::Tensor tensor_of(const PtEntry& entry, const std::shared_ptr<const MappedFile>& file) {
  const auto options = at::TensorOptions().dtype(scalar_type(entry.dtype));
  if (entry.bytes == 0) return at::empty(entry.shape, options);
  const auto element = static_cast<std::uint64_t>(bytes_of(entry.dtype));
  std::byte* const first = file->at(entry.begin);
  if (entry.begin % element == 0) {
    // The tensors that lie in the file are its owners, beside whoever reads it.
    return at::from_blob(
        first, entry.shape, entry.strides, [file](void* /*first*/) {}, options);
  }
  const at::Tensor copy = at::empty({static_cast<std::int64_t>(entry.bytes / element)}, options);
  std::memcpy(copy.mutable_data_ptr(), first, entry.bytes);
  return copy.as_strided(entry.shape, entry.strides);
}

void check_bools(const PtEntry& entry, const MappedFile& file, const std::string& what) {
  if (entry.dtype != DType::boolean) return;
  const std::span bytes{file.at(entry.begin), entry.bytes};
  if (std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b > std::byte{1}; })) {
    fail(ErrorCode::corrupt_data, "{}: tensor {}: a bool that is neither 0 nor 1", what, shown_name(entry.name));
  }
}

}  // namespace

SafetensorsFile read_pt(const std::filesystem::path& path,
                        const std::function<void(const std::vector<SafetensorsEntry>&)>& inspect) {
  const std::string what = "tensor: " + path.string();
  const auto file = std::make_shared<const MappedFile>(path, what);
  const std::vector<PtEntry> entries = pt_entries(file->bytes(), what);
  if (inspect) {
    std::vector<SafetensorsEntry> described;
    described.reserve(entries.size());
    for (const PtEntry& entry : entries) {
      described.push_back({.name = entry.name, .dtype = entry.dtype, .shape = entry.shape});
    }
    inspect(described);
  }
  SafetensorsFile read;
  read.tensors.reserve(entries.size());
  for (const PtEntry& entry : entries) {
    check_bools(entry, *file, what);
    read.tensors.emplace_back(entry.name, tensor_of(entry, file));
  }
  return read;
}

bool is_pt(const std::filesystem::path& path) {
  constexpr std::size_t brace_at = 8;  // A safetensors file begins with 8 bytes of length, and then its JSON.
  std::array<char, brace_at + 1> bytes{};
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) {  // Opening a named pipe would wait for its writer.
    std::ifstream(path, std::ios::binary).read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  if (std::string_view(bytes.data(), bytes.size()).starts_with("PK\x03\x04")) return true;
  if (bytes[brace_at] == '{') return false;
  return std::find(kPtSuffixes.begin(), kPtSuffixes.end(), path.extension().string()) != kPtSuffixes.end();
}

SafetensorsFile read_tensors(const std::filesystem::path& path,
                             const std::function<void(const std::vector<SafetensorsEntry>&)>& inspect) {
  return is_pt(path) ? read_pt(path, inspect) : read_safetensors(path, inspect);
}

void refuse_pt2(const std::filesystem::path& path, const std::string& what) {
  const MappedFile file(path, what);
  const std::string_view kind = pt2_kind(zip_records(file.bytes(), what));
  if (kind.empty()) return;
  fail(ErrorCode::unsupported, "{}: {} (.pt2), whose code runs when it is loaded, and which is not loaded here", what,
       kind);
}

}  // namespace headrace
