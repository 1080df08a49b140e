#include <array>
#include <cstddef>
#include <cstring>

#include "insight/export/detail/crc32c.h"

namespace headrace::detail {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // 0x1edc6f41, its bits from the lowest to the highest.
using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

// tables[k][byte]: what `byte` followed by k zero bytes adds.
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = before >> 8 ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

std::uint32_t crc32c(std::string_view bytes) noexcept {
  std::uint32_t crc = ~std::uint32_t{0};
  while (bytes.size() >= 8) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, bytes.data(), 8);  // Little-endian, as protobuf.h asserts.
    eight ^= crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][eight >> (8 * k) & 0xff];
    bytes.remove_prefix(8);
  }
  for (const char byte : bytes) crc = crc >> 8 ^ kTables[0][(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~crc;
}

}  // namespace headrace::detail
