#include "insight/export/detail/crc32c.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

namespace headrace::detail {
namespace {

// The examples of RFC 3720, B.4, and the check value of the catalogue of CRCs for "123456789".
TEST(Crc32c, IsThatOfItsStandard) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  std::string ascending(32, '\0');
  std::iota(ascending.begin(), ascending.end(), '\0');
  EXPECT_EQ(crc32c(ascending), 0x46dd794eU);
  EXPECT_EQ(crc32c(std::string(ascending.rbegin(), ascending.rend())), 0x113fdb5cU);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(""), 0U);
}

TEST(Crc32c, DoesNotDependOnHowBytesFallIntoEights) {
  std::string text = "x";
  for (int i = 0; i < 40; ++i) {
    std::uint32_t bitwise = ~std::uint32_t{0};
    for (const char byte : text) {
      bitwise ^= static_cast<unsigned char>(byte);
      for (int bit = 0; bit < 8; ++bit) bitwise = bitwise >> 1 ^ ((bitwise & 1) != 0 ? 0x82f63b78U : 0U);
    }
    EXPECT_EQ(crc32c(text), ~bitwise) << text.size();
    text += static_cast<char>('a' + i % 26);
  }
}

TEST(Crc32c, IsMaskedAsTFRecordsAre) {
  const std::uint32_t crc = 0xe3069283U;
  EXPECT_EQ(masked_crc32c("123456789"), ((crc >> 15) | (crc << 17)) + 0xa282ead8U);
}

}  // namespace
}  // namespace headrace::detail
