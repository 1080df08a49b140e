#include "core/base/hash.h"

#include <gtest/gtest.h>

#include <string>

namespace headrace {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span{text});
}

TEST(Hash, EqualsThePublishedValueOfNothing) {
  // The reference value of XXH3_64bits for an empty input and seed 0.
  EXPECT_EQ(hex(xxh3({})), "2d06800538d394c2");
}

TEST(Hash, HexHasSixteenDigits) {
  EXPECT_EQ(hex(0), "0000000000000000");
  EXPECT_EQ(hex(0xABCDEF), "0000000000abcdef");
}

TEST(Hash, OneChangedBitChangesIt) {
  std::string text(1000, 'a');
  const std::uint64_t before = xxh3(bytes_of(text));
  text[500] ^= 1;
  EXPECT_NE(xxh3(bytes_of(text)), before);
}

TEST(Hash, StreamInAnyPiecesEqualsTheWhole) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 31);
  for (const std::size_t piece : {1, 7, 64, 256, 1024, 5000}) {
    Xxh3Stream stream;
    for (std::size_t at = 0; at < text.size(); at += piece) stream.update(bytes_of(text.substr(at, piece)));
    stream.update({});
    EXPECT_EQ(stream.digest(), xxh3(bytes_of(text))) << piece;
  }
}

TEST(Hash, DigestDoesNotEndTheStream) {
  Xxh3Stream stream;
  stream.update(bytes_of("head"));
  EXPECT_EQ(stream.digest(), xxh3(bytes_of("head")));
  stream.update(bytes_of("race"));
  EXPECT_EQ(stream.digest(), xxh3(bytes_of("headrace")));
}

}  // namespace
}  // namespace headrace
