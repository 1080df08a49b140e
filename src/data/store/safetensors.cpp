#include "data/store/safetensors.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/base/dtype_table.h"
#include "core/base/fail.h"
#include "core/base/files.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format is little-endian and read as it lies");

constexpr std::int64_t kHeaderBytesMax = 100'000'000;  // The format's own limit.
constexpr std::size_t kDimensionsMax = 64;

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

// A header's JSON to entries and texts.
class HeaderParser {
 public:
  HeaderParser(const std::string& what, std::int64_t tensor_bytes) : what_(what), tensor_bytes_(tensor_bytes) {}

  void parse(const std::string& text) {
    // A key that comes twice would silently win over the first; the callback sees keys before the object merges them.
    std::set<std::string> keys;
    bool twice = false;
    Json header;
    try {
      header = Json::parse(text, [&](int depth, Json::parse_event_t event, Json& key) {
        if (depth == 1 && event == Json::parse_event_t::key) twice |= !keys.insert(key.get<std::string>()).second;
        return true;
      });
    } catch (const Json::exception& error) {
      corrupt("header is no JSON: {}", first_line(error.what()));
    }
    if (!header.is_object()) corrupt("header is no JSON object");
    if (twice) corrupt("header names a tensor twice");
    for (const auto& [name, value] : header.items()) {
      if (name == "__metadata__") {
        parse_texts(value);
      } else {
        entries.push_back(parse_entry(name, value));
      }
    }
    check_layout();
  }

  std::vector<SafetensorsEntry> entries;
  SafetensorsTexts texts;

 private:
  template <class... Args>
  [[noreturn]] void corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::corrupt_data, "{}: {}", what_, fmt::format(format, std::forward<Args>(args)...));
  }

  void parse_texts(const Json& value) {
    if (!value.is_object()) corrupt("__metadata__ is no object");
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) corrupt("__metadata__ {} is no text", shown_name(key));
      texts[key] = text.get<std::string>();
    }
  }

  SafetensorsEntry parse_entry(const std::string& name, const Json& value) const {
    const std::string shown = shown_name(name);
    if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") || !value.contains("data_offsets")) {
      corrupt("tensor {}: wanted dtype, shape and data_offsets", shown);
    }
    SafetensorsEntry entry;
    entry.name = name;
    const Json& type = value["dtype"];
    const auto known = std::find_if(kDTypeTable.begin(), kDTypeTable.end(), [&](const DTypeRow& row) {
      return type.is_string() && type == std::string(row.safetensors);
    });
    if (known == kDTypeTable.end())
      corrupt("tensor {}: unknown dtype {}", shown, type.is_string() ? shown_name(type) : "");
    entry.dtype = known->dtype;
    entry.shape = whole_numbers(shown, "shape", value["shape"], kDimensionsMax);
    const auto offsets = whole_numbers(shown, "data_offsets", value["data_offsets"], 2);
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > tensor_bytes_) {
      corrupt("tensor {}: data_offsets [{}] do not lie in {} bytes of data", shown, fmt::join(offsets, ", "),
              tensor_bytes_);
    }
    entry.begin = offsets[0];
    entry.end = offsets[1];
    std::int64_t wanted = bytes_of(entry.dtype);
    std::int64_t extents = wanted;  // Without zeros: strides multiply these, also of a tensor without elements.
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

  std::vector<std::int64_t> whole_numbers(const std::string& shown, std::string_view what, const Json& value,
                                          std::size_t count_max) const {
    if (!value.is_array() || value.size() > count_max) {
      corrupt("tensor {}: {} is no list of at most {} numbers", shown, what, count_max);
    }
    std::vector<std::int64_t> numbers;
    for (const Json& number : value) {
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
    std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
      return std::pair{a.begin, a.end} < std::pair{b.begin, b.end};
    });
    std::int64_t expected = 0;
    for (const SafetensorsEntry& entry : entries) {
      if (entry.begin != expected) {
        corrupt("tensor {} begins at {}, wanted {}: tensors {}", shown_name(entry.name), entry.begin, expected,
                entry.begin < expected ? "overlap" : "leave a hole");
      }
      expected = entry.end;
    }
    if (expected != tensor_bytes_) corrupt("{} bytes of data, the tensors take {}", tensor_bytes_, expected);
  }

  const std::string& what_;
  const std::int64_t tensor_bytes_;
};

}  // namespace

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path, std::string what)
    : what_(std::move(what)), stream_(path, std::ios::binary) {
  if (!stream_) {
    const int reason = errno;
    fail(reason == ENOENT ? ErrorCode::not_found : ErrorCode::io, "{}: cannot be opened: {}", what_,
         system_message(reason));
  }
  std::error_code size_error;
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path, size_error));
  if (size_error) fail(ErrorCode::io, "{}: {}", what_, size_error.message());
  if (size < 8) fail(ErrorCode::corrupt_data, "{}: {} bytes, wanted at least 8", what_, size);
  std::uint64_t length = 0;
  take({reinterpret_cast<std::byte*>(&length), sizeof length});
  if (length > static_cast<std::uint64_t>(std::min(size - 8, kHeaderBytesMax))) {
    fail(ErrorCode::corrupt_data, "{}: header of {} bytes in a file of {} (at most {})", what_, length, size,
         kHeaderBytesMax);
  }
  std::string text(length, '\0');
  take(std::as_writable_bytes(std::span{text}));
  tensor_bytes_ = size - 8 - static_cast<std::int64_t>(length);
  HeaderParser parser(what_, tensor_bytes_);
  parser.parse(text);
  entries_ = std::move(parser.entries);
  texts_ = std::move(parser.texts);
}

void SafetensorsReader::read(std::span<std::byte> into) {
  take(into);
  checksum_.update(into);
}

void SafetensorsReader::take(std::span<std::byte> into) {
  stream_.read(reinterpret_cast<char*>(into.data()), static_cast<std::streamsize>(into.size()));
  if (!stream_) fail(ErrorCode::io, "{}: could not read {} bytes", what_, into.size());
}

void SafetensorsReader::check_read() const {
  const auto wanted = texts_.find(kTensorsChecksum);
  const std::string found = hex(checksum_.digest());
  if (wanted == texts_.end() || wanted->second == found) return;
  fail(ErrorCode::corrupt_data, "{}: checksum of the tensors is {}, the header says {}", what_, found,
       shown_name(wanted->second));
}

std::string_view safetensors_name(DType dtype) noexcept {
  return row_of(dtype).safetensors;
}

std::string header_checksum(const SafetensorsTexts& texts, const std::vector<SafetensorsEntry>& entries) {
  Xxh3Stream stream;
  const auto add = [&stream](const std::string& text) {
    stream.update(std::as_bytes(std::span{text.c_str(), text.size() + 1}));  // The NUL keeps neighbours apart.
  };
  for (const auto& [key, text] : texts) {
    if (key == kTensorsChecksum || key == kHeaderChecksum) continue;
    add(key);
    add(text);
  }
  std::vector<std::string> shapes;  // With LibTorch's names of types.
  for (const SafetensorsEntry& entry : entries) {
    shapes.push_back(fmt::format("{} {} {}", entry.name, row_of(entry.dtype).libtorch, fmt::join(entry.shape, ",")));
  }
  std::sort(shapes.begin(), shapes.end());  // The file has an order of its own.
  for (const std::string& shape : shapes) add(shape);
  return hex(stream.digest());
}

std::string shown_name(const std::string& name) {
  return Json(name).dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace headrace
