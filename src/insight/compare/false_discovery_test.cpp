#include "insight/compare/false_discovery.h"

#include <gtest/gtest.h>

#include <vector>

namespace headrace {
namespace {

using Rejected = std::vector<bool>;

Rejected rejected(const std::vector<double>& e_values, double rate) {
  return reject(e_values, rate);
}

TEST(FalseDiscovery, OneOfManyNeedsAsMuchMoreEvidence) {
  EXPECT_EQ(rejected({60, 1, 1}, 0.05), (Rejected{true, false, false})) << "3 / 0.05";
  EXPECT_EQ(rejected({59.9, 1, 1}, 0.05), (Rejected{false, false, false}));
  EXPECT_EQ(rejected({20}, 0.05), Rejected{true});
}

TEST(FalseDiscovery, SeveralTogetherNeedLessEach) {
  EXPECT_EQ(rejected({1, 30, 1000}, 0.05), (Rejected{false, true, true})) << "3 / (0.05 * 2)";
  EXPECT_EQ(rejected({1, 29, 1000}, 0.05), (Rejected{false, false, true}));
  EXPECT_EQ(rejected({20, 20, 20}, 0.05), (Rejected{true, true, true}));
}

TEST(FalseDiscovery, NothingIsRejectedWithoutEvidence) {
  EXPECT_EQ(rejected({1, 1, 0}, 0.05), (Rejected{false, false, false}));
  EXPECT_EQ(rejected({}, 0.05), Rejected{});
}

}  // namespace
}  // namespace headrace
