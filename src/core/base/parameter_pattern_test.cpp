#include "core/base/parameter_pattern.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headrace {
namespace {

TEST(ParameterPattern, NamesAParameterOrAnyModuleThatItIsIn) {
  const std::string name = "layer1.0.conv1.weight";
  for (const char* pattern :
       {"layer1", "layer1.0", "layer1.0.conv1", "layer1.0.conv1.weight", "layer*", "*.weight", "*conv1*", "*"}) {
    EXPECT_TRUE(names_parameter(pattern, name)) << pattern;
  }
  for (const char* pattern :
       {"", "layer", "layer10", "conv1", "0", "layer1.0.conv", "layer1.0.conv1.weight.", "*bias"}) {
    EXPECT_FALSE(names_parameter(pattern, name)) << pattern;
  }
  EXPECT_EQ(module_path(name), (std::vector<std::string>{"layer1", "layer1.0", "layer1.0.conv1", name}));
  EXPECT_EQ(module_path("class_token"), std::vector<std::string>{"class_token"});
}

TEST(ParameterPattern, OneThatNamesNothingHasTheNearestNameOrAllTheOutermost) {
  const std::vector<std::string> parameters{"conv1.weight", "layer1.0.conv1.weight", "layer1.1.conv1.weight",
                                            "fc.bias"};
  EXPECT_EQ(advice_on_pattern("layr1", parameters), ", did you mean layer1?");
  EXPECT_EQ(advice_on_pattern("backbone", parameters), "; the model has conv1, layer1, fc");
}

}  // namespace
}  // namespace headrace
