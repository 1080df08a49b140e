#include "core/base/wildcard.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace headrace {
namespace {

TEST(Wildcard, FitsAsAShellsPatternDoes) {
  const std::vector<std::pair<std::string, std::string>> match{
      {"*", ""},      {"*", "any"},         {"load*", "load"}, {"load*", "load_chunk"}, {"*_s", "wait_s"},
      {"a?c", "abc"}, {"a*b*c", "a-b-b-c"}, {"**", "x"},       {"*ab", "aab"},          {"", ""},
      {"?", "x"}};
  for (const auto& [pattern, text] : match) EXPECT_TRUE(matches(pattern, text)) << pattern << " " << text;
  const std::vector<std::pair<std::string, std::string>> differ{{"load", "load_chunk"}, {"?", ""},      {"a?c", "ac"},
                                                                {"*_s", "wait_ms"},     {"a*b", "abc"}, {"", "x"},
                                                                {"Load", "load"}};
  for (const auto& [pattern, text] : differ) EXPECT_FALSE(matches(pattern, text)) << pattern << " " << text;
}

}  // namespace
}  // namespace headrace
