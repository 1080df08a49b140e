// Messages in protobuf's wire format (protobuf.dev/programming-guides/encoding): fields by number, nothing else of
// protobuf.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace headrace::detail {

static_assert(std::endian::native == std::endian::little, "fixed-size fields are written as they lie in memory");

// Writes 1 to 10 bytes at `out`; returns what follows them.
inline char* put_varint(char* out, std::uint64_t value) noexcept {
  while (value >= 0x80) {
    *out++ = static_cast<char>(value | 0x80);
    value >>= 7;
  }
  *out++ = static_cast<char>(value);
  return out;
}

inline std::size_t varint_bytes(std::uint64_t value) noexcept {
  return (static_cast<std::size_t>(std::bit_width(value | 1)) + 6) / 7;
}

// One message that grows field by field. clear() keeps its memory, so that one that is filled again allocates nothing.
class ProtobufMessage {
 public:
  void add_integer(int field, std::uint64_t value) {
    add_tag(field, 0);
    add_varint(value);
  }
  void add_double(int field, double value) {
    add_tag(field, 1);
    add_raw(value);
  }
  void add_fixed64(int field, std::uint64_t value) {
    add_tag(field, 1);
    add_raw(value);
  }
  void add_float(int field, float value) {
    add_tag(field, 5);
    add_raw(value);
  }
  // A string, which must be UTF-8, or bytes.
  void add_text(int field, std::string_view text) {
    add_tag(field, 2);
    add_varint(text.size());
    bytes_.append(text);
  }
  void add_message(int field, const ProtobufMessage& message) { add_text(field, message.bytes_); }
  void add_packed(int field, std::span<const double> values) {
    add_text(field, {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
  }

  void clear() { bytes_.clear(); }
  std::string_view bytes() const { return bytes_; }

 private:
  void add_tag(int field, unsigned wire_type) { add_varint(static_cast<std::uint64_t>(field) << 3 | wire_type); }
  void add_varint(std::uint64_t value) {
    char encoded[10];
    bytes_.append(encoded, static_cast<std::size_t>(put_varint(encoded, value) - encoded));
  }
  template <class Value>
  void add_raw(Value value) {
    char raw[sizeof(Value)];
    std::memcpy(raw, &value, sizeof(Value));
    bytes_.append(raw, sizeof(Value));
  }

  std::string bytes_;
};

}  // namespace headrace::detail
