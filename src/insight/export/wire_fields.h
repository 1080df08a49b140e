// A protobuf message as its fields, for tests: by the wire format alone, without any of our writers.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

struct WireField {
  std::uint64_t number;
  std::uint64_t integer;   // Of a varint or a fixed-size field, as it lies there.
  std::string_view bytes;  // Of a text, bytes or message.

  double real() const { return std::bit_cast<double>(integer); }
  float real32() const { return std::bit_cast<float>(static_cast<std::uint32_t>(integer)); }
};

// Throws std::runtime_error where the bytes are no message.
inline std::vector<WireField> wire_fields(std::string_view message) {
  const auto take = [&](std::size_t size) {
    if (size > message.size()) throw std::runtime_error("cut off");
    const std::string_view taken = message.substr(0, size);
    message.remove_prefix(size);
    return taken;
  };
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    throw std::runtime_error("a number of more than ten bytes");
  };
  const auto fixed = [&](std::size_t size) {
    std::uint64_t value = 0;
    std::memcpy(&value, take(size).data(), size);
    return value;
  };
  std::vector<WireField> fields;
  while (!message.empty()) {
    const std::uint64_t tag = varint();
    WireField field{tag >> 3, 0, {}};
    switch (tag & 7) {
      case 0:
        field.integer = varint();
        break;
      case 1:
        field.integer = fixed(8);
        break;
      case 2:
        field.bytes = take(varint());
        break;
      case 5:
        field.integer = fixed(4);
        break;
      default:
        throw std::runtime_error("an unknown wire type");
    }
    fields.push_back(field);
  }
  return fields;
}

// The one field of this number; fails the test where there is none or more.
inline WireField wire_field(std::string_view message, std::uint64_t number) {
  WireField found{0, 0, {}};
  int count = 0;
  for (const WireField& field : wire_fields(message)) {
    if (field.number != number) continue;
    found = field;
    ++count;
  }
  EXPECT_EQ(count, 1) << "field " << number;
  return found;
}

inline bool has_wire_field(std::string_view message, std::uint64_t number) {
  for (const WireField& field : wire_fields(message)) {
    if (field.number == number) return true;
  }
  return false;
}

}  // namespace headrace
