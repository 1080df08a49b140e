#include "core/base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace headrace {
namespace {

using namespace std::string_literals;

TEST(Utf8, LengthEndsBeforeTheFirstByteThatIsNone) {
  EXPECT_EQ(utf8_length(""), 0U);
  EXPECT_EQ(utf8_length("plain"), 5U);
  EXPECT_EQ(utf8_length("\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80"), 9U);
  EXPECT_EQ(utf8_length("ab\xC3"), 2U) << "a character that is cut off";
  EXPECT_EQ(utf8_length("ab\xC0\x80"), 2U) << "NUL in two bytes";
  EXPECT_EQ(utf8_length("\xED\xA0\x80"), 0U) << "half a surrogate pair";
  EXPECT_EQ(utf8_length("\xF4\x90\x80\x80"), 0U) << "beyond U+10FFFF";
}

TEST(Utf8, NulEndsATextAndIsACharacterOfSizedBytes) {
  EXPECT_EQ(utf8_text_length("ab\0cd"s), 2U);
  EXPECT_EQ(utf8_length("ab\0cd"s), 5U);
  EXPECT_EQ(utf8_length("\0"s), 1U);
}

TEST(Utf8, FindsABadByteAtEveryPlace) {
  for (std::size_t size = 1; size <= 40; ++size) {
    for (std::size_t bad = 0; bad < size; ++bad) {
      std::string bytes(size, 'x');
      EXPECT_EQ(utf8_length(bytes), size);
      bytes[bad] = '\xFF';
      EXPECT_EQ(utf8_length(bytes), bad);
    }
  }
}

}  // namespace
}  // namespace headrace
