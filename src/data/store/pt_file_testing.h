// Files of torch.save written by hand, for the tests and the fuzzer of what reads them: pickles and archives of any
// content, sound or not.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace {

// The bytes of a number as they lie.
template <class Number>
std::string little_endian(Number value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// BINUNICODE, BININT and a global, as opcodes.
inline std::string pickled(std::string_view text) {
  return "X" + little_endian(static_cast<std::uint32_t>(text.size())) + std::string(text);
}
inline std::string pickled(std::int32_t number) {
  return "J" + little_endian(number);
}
inline std::string pickled_global(std::string_view module, std::string_view name) {
  return "c" + std::string(module) + "\n" + std::string(name) + "\n";
}
inline std::string pickled_tuple(const std::vector<std::int32_t>& numbers) {
  std::string bytes = "(";
  for (const std::int32_t number : numbers) bytes += pickled(number);
  return bytes + "t";
}

// What of a tensor's pickle a test changes.
struct PickledTensor {
  std::string storage_class = "FloatStorage";
  std::string key = "0";
  std::int32_t length = 4;  // Of the storage, in elements.
  std::int32_t offset = 0;
  std::vector<std::int32_t> size{4};
  std::vector<std::int32_t> stride{1};
};

// The opcodes that push the tensor.
inline std::string pickled_value(const PickledTensor& tensor) {
  return pickled_global("torch._utils", "_rebuild_tensor_v2") + "((" + pickled("storage") +
         pickled_global("torch", tensor.storage_class) + pickled(tensor.key) + pickled("cpu") + pickled(tensor.length) +
         "tQ" + pickled(tensor.offset) + pickled_tuple(tensor.size) + pickled_tuple(tensor.stride) + "\x89" +
         pickled_global("collections", "OrderedDict") + ")RtR";
}

// The whole pickle of {name: value}, where `value` is opcodes that push one.
inline std::string pickled_dict(std::string_view name, const std::string& value) {
  return std::string("\x80\x02}", 3) + pickled(name) + value + "s.";
}
inline std::string pickled_tensor(std::string_view name, const PickledTensor& tensor) {
  return pickled_dict(name, pickled_value(tensor));
}

// A zip archive of these files, uncompressed, without zip64.
inline std::string zip_archive(const std::vector<std::pair<std::string, std::string>>& files) {
  std::string bytes, directory;
  for (const auto& [name, content] : files) {
    const auto size = static_cast<std::uint32_t>(content.size());
    const std::string sizes = little_endian(size) + little_endian(size) +
                              little_endian(static_cast<std::uint16_t>(name.size())) + std::string(2, '\0');
    // Version, flags, method, time, date and checksum: all 0.
    const std::string begin = std::string(14, '\0') + sizes;
    directory += "PK\x01\x02" + std::string(2, '\0') + begin + std::string(10, '\0') +
                 little_endian(static_cast<std::uint32_t>(bytes.size())) + name;
    bytes += "PK\x03\x04" + begin + name + content;
  }
  const auto count = static_cast<std::uint16_t>(files.size());
  return bytes + directory + "PK\x05\x06" + std::string(4, '\0') + little_endian(count) + little_endian(count) +
         little_endian(static_cast<std::uint32_t>(directory.size())) +
         little_endian(static_cast<std::uint32_t>(bytes.size())) + std::string(2, '\0');
}

// The archive that torch.save would make of the pickle and `more`, names below its folder.
inline std::string torch_archive(const std::string& pickle,
                                 const std::vector<std::pair<std::string, std::string>>& more) {
  std::vector<std::pair<std::string, std::string>> files{{"archive/data.pkl", pickle}, {"archive/byteorder", "little"}};
  for (const auto& [name, content] : more) files.emplace_back("archive/" + name, content);
  return zip_archive(files);
}

}  // namespace headrace
