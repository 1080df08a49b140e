#include "torch/tensor/safetensors.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <set>
#include <span>
#include <string_view>

#include <nlohmann/json.hpp>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/base/hash.h"
#include "torch/tensor/scalar_type.h"

namespace headrace {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian and written as it lies");

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

std::string what_is(const std::filesystem::path& path) {
  return "tensor: " + path.string();
}

// The JSON header as it lies on disk: padded with spaces so that the data begins at a multiple of 8.
std::string header_text(const NamedTensors& tensors, const SafetensorsTexts& metadata) {
  nlohmann::ordered_json header;
  header["__metadata__"] = metadata;
  std::int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto end = offset + static_cast<std::int64_t>(tensor.nbytes());
    const SafetensorsEntry entry = entry_of(name, tensor);
    header[name] = {{"dtype", safetensors_name(entry.dtype)}, {"shape", entry.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace

std::int64_t bytes_of(const NamedTensors& tensors) {
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

bool are_alike(const NamedTensors& a, const NamedTensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& left, const auto& right) {
    return left.first == right.first && left.second.sizes() == right.second.sizes() &&
           left.second.scalar_type() == right.second.scalar_type();
  });
}

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors, SafetensorsTexts metadata) {
  NamedTensors ordered;
  std::set<std::string_view> names;
  for (const auto& [name, tensor] : tensors) {
    if (name == "__metadata__" || !names.insert(name).second) {
      fail(ErrorCode::invalid_argument, "tensor: {}: name {} is taken", path.string(), shown_name(name));
    }
    ordered.emplace_back(name, tensor.detach().cpu().contiguous());
  }
  // Widest elements first, so that each tensor begins at a multiple of its element size and readers may map it.
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const auto& a, const auto& b) { return a.second.element_size() > b.second.element_size(); });
  Xxh3Stream checksum;
  for (const auto& [name, tensor] : ordered) checksum.update(bytes_of(tensor));
  metadata[kTensorsChecksum] = hex(checksum.digest());

  const std::string header = header_text(ordered, metadata);
  const std::uint64_t length = header.size();
  write_file(path, [&](const std::function<void(std::span<const std::byte>)>& append) {
    append(std::as_bytes(std::span{&length, 1}));
    append(std::as_bytes(std::span{header}));
    for (const auto& [name, tensor] : ordered) append(bytes_of(tensor));
  });
}

SafetensorsFile read_safetensors(const std::filesystem::path& path,
                                 const std::function<void(const std::vector<SafetensorsEntry>&)>& inspect) {
  SafetensorsReader reader(path, what_is(path));
  if (inspect) inspect(reader.entries());
  SafetensorsFile file;
  file.tensors.reserve(reader.entries().size());
  for (const SafetensorsEntry& entry : reader.entries()) {
    at::Tensor tensor = at::empty(entry.shape, at::TensorOptions().dtype(scalar_type(entry.dtype)));
    const std::span bytes{static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
    reader.read(bytes);
    if (entry.dtype == DType::boolean &&
        std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b > std::byte{1}; })) {
      fail(ErrorCode::corrupt_data, "{}: tensor {}: a BOOL that is neither 0 nor 1", what_is(path),
           shown_name(entry.name));
    }
    file.tensors.emplace_back(entry.name, std::move(tensor));
  }
  reader.check_read();
  file.metadata = reader.texts();
  return file;
}

SafetensorsTexts read_safetensors_metadata(const std::filesystem::path& path) {
  return SafetensorsReader(path, what_is(path)).texts();
}

SafetensorsEntry entry_of(const std::string& name, const at::Tensor& tensor) {
  const std::optional<DType> dtype = dtype_of(tensor.scalar_type());
  if (!dtype) {
    fail(ErrorCode::unsupported, "tensor: {}: safetensors does not know the type {}", name,
         c10::toString(tensor.scalar_type()));
  }
  return {.name = name, .dtype = *dtype, .shape = tensor.sizes().vec()};
}

}  // namespace headrace
