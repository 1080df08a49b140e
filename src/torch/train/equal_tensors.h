// For tests: copies of named tensors, and whether others have their bits.
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace headrace {

using Named = std::vector<std::pair<std::string, at::Tensor>>;

inline Named clones(const Named& tensors) {
  Named copies;
  for (const auto& [name, tensor] : tensors) copies.emplace_back(name, tensor.detach().clone());
  return copies;
}

inline void expect_equal(const Named& found, const Named& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(found[i].second.equal(wanted[i].second)) << found[i].first;
  }
}

}  // namespace headrace
