#include "data/transform/image_workspace.h"

#include <gtest/gtest.h>

#include <cstddef>

namespace headrace::detail {
namespace {

constexpr std::size_t kMost = ImageWorkspace::kKeptMax;

TEST(ImageWorkspace, KeepsWhatOrdinaryImagesNeed) {
  ImageWorkspace workspace;
  workspace.decoded.resize(kMost / 4);
  workspace.between[1].resize(kMost / 4);
  const std::int64_t before = workspace.bytes();
  workspace.trim();
  EXPECT_EQ(workspace.bytes(), before);
}

TEST(ImageWorkspace, GivesBackImagesBetweenPassesBeforeAllElse) {
  ImageWorkspace workspace;
  workspace.decoded.resize(kMost / 4 * 3);
  workspace.between[0].resize(kMost / 4);
  workspace.tiles.resize(1);
  workspace.tiles[0].resize(kMost / 4);
  workspace.trim();
  EXPECT_EQ(workspace.bytes(), static_cast<std::int64_t>(kMost / 4 * 3));
  EXPECT_EQ(workspace.decoded.size(), kMost / 4 * 3);
}

TEST(ImageWorkspace, GivesBackAllWhereTheRestIsTooLarge) {
  ImageWorkspace workspace;
  workspace.decoded.resize(kMost + 1);
  workspace.trim();
  EXPECT_EQ(workspace.bytes(), 0);
}

}  // namespace
}  // namespace headrace::detail
