#include "tensor/safetensors.h"

#include <ATen/ops/empty.h>
#include <headrace/error.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>
#include <span>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/hash.h"

namespace headrace {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian and written as it lies");

constexpr std::int64_t kHeaderBytesMax = 100'000'000;  // The format's own limit.
constexpr std::size_t kDimensionsMax = 64;
constexpr const char* kChecksum = "xxh3";

struct TypeName {
  at::ScalarType type;
  std::string_view name;
};
constexpr std::array kTypes{
    TypeName{at::kDouble, "F64"},    TypeName{at::kFloat, "F32"}, TypeName{at::kHalf, "F16"},
    TypeName{at::kBFloat16, "BF16"}, TypeName{at::kLong, "I64"},  TypeName{at::kInt, "I32"},
    TypeName{at::kShort, "I16"},     TypeName{at::kChar, "I8"},   TypeName{at::kByte, "U8"},
    TypeName{at::kBool, "BOOL"},
};

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

std::string_view type_name(const std::string& tensor_name, at::ScalarType type) {
  for (const TypeName& known : kTypes) {
    if (known.type == type) return known.name;
  }
  fail(ErrorCode::unsupported, "tensor: {}: safetensors does not know the type {}", tensor_name, c10::toString(type));
}

// The JSON header as it lies on disk: padded with spaces so that the data begins at a multiple of 8.
std::string header_text(const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  header["__metadata__"] = metadata;
  std::int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto end = offset + static_cast<std::int64_t>(tensor.nbytes());
    header[name] = {{"dtype", type_name(name, tensor.scalar_type())},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

struct Entry : SafetensorsEntry {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Reads one file; every refusal names it.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path), stream_(path, std::ios::binary) {
    if (!stream_) {
      const int reason = errno;
      fail(reason == ENOENT ? ErrorCode::not_found : ErrorCode::io, "tensor: cannot open {}: {}", path_.string(),
           system_message(reason));
    }
    std::error_code size_error;
    const auto size = std::filesystem::file_size(path, size_error);
    if (size_error) fail(ErrorCode::io, "tensor: {}: {}", path_.string(), size_error.message());
    size_ = static_cast<std::int64_t>(size);
  }

  void read_header() {
    if (size_ < 8) corrupt("{} bytes, wanted at least 8", size_);
    std::uint64_t length = 0;
    read({reinterpret_cast<std::byte*>(&length), sizeof length});
    if (length > static_cast<std::uint64_t>(std::min(size_ - 8, kHeaderBytesMax))) {
      corrupt("header of {} bytes in a file of {} (at most {})", length, size_, kHeaderBytesMax);
    }
    std::string text(length, '\0');
    read(std::as_writable_bytes(std::span{text}));
    data_bytes_ = size_ - 8 - static_cast<std::int64_t>(length);
    parse(text);
    check_layout();
  }

  std::map<std::string, std::string>& metadata() { return metadata_; }
  std::vector<SafetensorsEntry> entries() const { return {entries_.begin(), entries_.end()}; }

  std::vector<std::pair<std::string, at::Tensor>> read_tensors() {
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    tensors.reserve(entries_.size());
    Xxh3Stream checksum;
    for (const Entry& entry : entries_) {
      at::Tensor tensor = at::empty(entry.shape, at::TensorOptions().dtype(entry.type));
      const std::span bytes{static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
      read(bytes);
      checksum.update(bytes);
      if (entry.type == at::kBool &&
          std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b > std::byte{1}; })) {
        corrupt("tensor {}: a BOOL that is neither 0 nor 1", shown_name(entry.name));
      }
      tensors.emplace_back(entry.name, std::move(tensor));
    }
    const auto wanted = metadata_.find(kChecksum);
    if (wanted != metadata_.end() && wanted->second != hex(checksum.digest())) {
      corrupt("checksum of the tensors is {}, the header says {}", hex(checksum.digest()), shown_name(wanted->second));
    }
    return tensors;
  }

 private:
  template <class... Args>
  [[noreturn]] void corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::corrupt_data, "tensor: {}: {}", path_.string(), fmt::format(format, std::forward<Args>(args)...));
  }

  void read(std::span<std::byte> into) {
    stream_.read(reinterpret_cast<char*>(into.data()), static_cast<std::streamsize>(into.size()));
    if (!stream_) fail(ErrorCode::io, "tensor: {}: could not read {} bytes", path_.string(), into.size());
  }

  void parse(const std::string& text) {
    // A key that comes twice would silently win over the first; the callback sees keys before the object merges them.
    std::set<std::string> keys;
    bool twice = false;
    nlohmann::json header;
    try {
      header = nlohmann::json::parse(text, [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& key) {
        if (depth == 1 && event == nlohmann::json::parse_event_t::key) {
          twice |= !keys.insert(key.get<std::string>()).second;
        }
        return true;
      });
    } catch (const nlohmann::json::exception& error) {
      corrupt("header is no JSON: {}", first_line(error.what()));
    }
    if (!header.is_object()) corrupt("header is no JSON object");
    if (twice) corrupt("header names a tensor twice");
    for (const auto& [name, value] : header.items()) {
      if (name == "__metadata__") {
        parse_metadata(value);
      } else {
        entries_.push_back(parse_entry(name, value));
      }
    }
  }

  static std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

  void parse_metadata(const nlohmann::json& value) {
    if (!value.is_object()) corrupt("__metadata__ is no object");
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) corrupt("__metadata__ {} is no text", shown_name(key));
      metadata_[key] = text.get<std::string>();
    }
  }

  Entry parse_entry(const std::string& name, const nlohmann::json& value) const {
    const std::string shown = shown_name(name);
    if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") || !value.contains("data_offsets")) {
      corrupt("tensor {}: wanted dtype, shape and data_offsets", shown);
    }
    Entry entry;
    entry.name = name;
    const nlohmann::json& type = value["dtype"];
    const auto known = std::find_if(kTypes.begin(), kTypes.end(),
                                    [&](const TypeName& t) { return type.is_string() && type == std::string(t.name); });
    if (known == kTypes.end()) corrupt("tensor {}: unknown dtype {}", shown, type.is_string() ? shown_name(type) : "");
    entry.type = known->type;
    entry.shape = whole_numbers(shown, "shape", value["shape"], kDimensionsMax);
    const auto offsets = whole_numbers(shown, "data_offsets", value["data_offsets"], 2);
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes_) {
      corrupt("tensor {}: data_offsets [{}] do not lie in {} bytes of data", shown, fmt::join(offsets, ", "),
              data_bytes_);
    }
    entry.begin = offsets[0];
    entry.end = offsets[1];
    const auto element_size = static_cast<std::int64_t>(c10::elementSize(entry.type));
    std::int64_t wanted = element_size;
    std::int64_t extents = element_size;  // Without zeros: strides multiply these, also of a tensor without elements.
    for (const std::int64_t extent : entry.shape) {
      if (__builtin_mul_overflow(extents, std::max<std::int64_t>(extent, 1), &extents)) {
        corrupt("tensor {}: shape too large", shown);
      }
      wanted *= extent;
    }
    if (wanted != entry.end - entry.begin) {
      corrupt("tensor {}: shape [{}] needs {} bytes, data_offsets give {}", shown, fmt::join(entry.shape, ", "), wanted,
              entry.end - entry.begin);
    }
    return entry;
  }

  std::vector<std::int64_t> whole_numbers(const std::string& shown, std::string_view what, const nlohmann::json& value,
                                          std::size_t count_max) const {
    if (!value.is_array() || value.size() > count_max) {
      corrupt("tensor {}: {} is no list of at most {} numbers", shown, what, count_max);
    }
    std::vector<std::int64_t> numbers;
    for (const nlohmann::json& number : value) {
      // A JSON number without sign is unsigned here; one that does not fit would wrap.
      if (!number.is_number_unsigned() ||
          number.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        corrupt("tensor {}: {} holds something else than a whole number of at least 0", shown, what);
      }
      numbers.push_back(number.get<std::int64_t>());
    }
    return numbers;
  }

  // In file order, end to end, from the first byte of the data to the last.
  void check_layout() {
    std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
      return std::pair{a.begin, a.end} < std::pair{b.begin, b.end};
    });
    std::int64_t expected = 0;
    for (const Entry& entry : entries_) {
      if (entry.begin != expected) {
        corrupt("tensor {} begins at {}, wanted {}: tensors {}", shown_name(entry.name), entry.begin, expected,
                entry.begin < expected ? "overlap" : "leave a hole");
      }
      expected = entry.end;
    }
    if (expected != data_bytes_) corrupt("{} bytes of data, the tensors take {}", data_bytes_, expected);
  }

  std::filesystem::path path_;
  std::ifstream stream_;
  std::int64_t size_ = 0;
  std::int64_t data_bytes_ = 0;
  std::vector<Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace

void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                       std::map<std::string, std::string> metadata) {
  std::vector<std::pair<std::string, at::Tensor>> ordered;
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
  metadata[kChecksum] = hex(checksum.digest());

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
  Reader reader(path);
  reader.read_header();
  if (inspect) inspect(reader.entries());
  SafetensorsFile file;
  file.tensors = reader.read_tensors();
  file.metadata = std::move(reader.metadata());
  return file;
}

std::map<std::string, std::string> read_safetensors_metadata(const std::filesystem::path& path) {
  Reader reader(path);
  reader.read_header();
  return std::move(reader.metadata());
}

std::string shown_name(const std::string& name) {
  return nlohmann::json(name).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace headrace
