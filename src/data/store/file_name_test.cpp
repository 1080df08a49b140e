#include "data/store/file_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace headrace {
namespace {

using testing::ElementsAreArray;

TEST(PrintableName, TextStaysAndOtherBytesAreEscaped) {
  EXPECT_EQ(printable_name("cat/photo 1.jpg"), "cat/photo 1.jpg");
  EXPECT_EQ(printable_name("Käse/猫.png"), "Käse/猫.png");
  EXPECT_EQ(printable_name("caf\xe9.jpg"), "caf\\xe9.jpg");
  EXPECT_EQ(printable_name("a\xe2\x82"), "a\\xe2\\x82");
  EXPECT_EQ(printable_name("two\nlines\t\x7f"), "two\\x0alines\\x09\\x7f");
  EXPECT_EQ(printable_name("\xc2\x85\xe2\x80\xa8"), "\\xc2\\x85\\xe2\\x80\\xa8");  // Line breaks of Unicode.
  EXPECT_EQ(printable_name("\xed\xa0\x80"), "\\xed\\xa0\\x80");                    // A surrogate is not UTF-8.
  EXPECT_EQ(printable_name(""), "");
}

// sorted(os.fsdecode(name) for name in names) of Python 3.11, reversed before it was sorted.
TEST(PythonLess, OrdersAsPythonDoes) {
  const std::vector<std::string> expected{"",
                                          "\x01",
                                          "-",
                                          "-x",
                                          "/",
                                          "A",
                                          "Z",
                                          "a",
                                          "a-b",
                                          "a/b",
                                          "a\x80",
                                          "b",
                                          "z",
                                          "\xc3\xa4",
                                          "\xe7\x8c\xab",
                                          "\x80",
                                          "\x80z",
                                          "\xe2\x82",
                                          "\xff",
                                          "\xee\x80\x80",
                                          "\xef\xbf\xbd",
                                          "\xf0\x9f\x90\xb1"};
  auto found = expected;
  std::reverse(found.begin(), found.end());
  std::sort(found.begin(), found.end(), python_less);
  EXPECT_THAT(found, ElementsAreArray(expected));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (std::size_t j = 0; j < expected.size(); ++j) {
      EXPECT_EQ(python_less(expected[i], expected[j]), i < j) << i << " " << j;
    }
  }
}

}  // namespace
}  // namespace headrace
