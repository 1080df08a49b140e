// A source of one's own: that of the guide to C++, and what is known of none of its samples before they are read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/loader.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/temporary_folder.h"
#include "data/loader/testing.h"
#include "data/pack/pack_build.h"
#include "data/source/checkerboards.h"
#include "data/source/source_contract.h"

namespace headrace {
namespace {

using testing::HasSubstr;

TEST(OwnSource, IsAllThatALoaderNeeds) {
  Loader loader{std::make_shared<Checkerboards>(), options_of(4, 2), /*seed=*/1, /*training=*/false};
  Epoch epoch = loader.epoch(0);
  std::int64_t samples = 0;
  while (const auto batch = epoch.next()) {
    const auto* pixels = reinterpret_cast<const float*>(batch->field("image").bytes.data());
    const auto* labels = reinterpret_cast<const std::int64_t*>(batch->field("labels").bytes.data());
    for (std::int64_t i = 0; i < batch->size(); ++i, ++samples) {
      EXPECT_EQ(labels[i], samples % 4);
      EXPECT_EQ(pixels[i * 64], 0.0F);
      EXPECT_EQ(pixels[i * 64 + labels[i] + 1], 1.0F) << "the second square of the first row";
    }
  }
  EXPECT_EQ(samples, 12);
}

TEST(OwnSource, AgreesWithWhatItSaysOfItself) {
  expect_capabilities_agree(Checkerboards{});
}

// Its labels are known by reading alone, so the cache must hold them.
TEST(OwnSource, CachedSamplesKeepTheirLabels) {
  DataOptions options = options_of(5, 2);
  Loader plain{std::make_shared<Checkerboards>(), options, 1, true};
  options.cache = Cache::decoded;
  Loader cached{std::make_shared<Checkerboards>(), options, 1, true};
  ASSERT_EQ(cached.applied_cache().applied, "decoded");
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    EXPECT_EQ(digests(cached.epoch(epoch)), digests(plain.epoch(epoch)));
  }
  EXPECT_EQ(cached.statistics().cache_hits, 24);
}

TEST(OwnSource, ThatTellsNoLabelBeforehandCannotBeDrawnByClass) {
  DataOptions options = options_of(4, 0);
  options.sampler = Sampler::class_balanced;
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] {
                         Loader{std::make_shared<Checkerboards>(), options, 1, true};
                       }),
              HasSubstr("\"class_balanced\", which draws by class, and the source tells no label before its sample"));
}

TEST(OwnSource, IsPackedWithItsLabels) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "boards.pack";
  const auto boards = std::make_shared<Checkerboards>();
  ASSERT_TRUE(write_pack({.source = "boards", .out = path}, {{Split::train, boards}},
                         [](std::int64_t, std::int64_t) { return true; }));
  Loader plain{boards, options_of(5, 0), 1, true};
  Loader packed{open_source("pack:" + path.string(), Split::train), options_of(5, 0), 1, true};
  EXPECT_EQ(digests(packed.epoch(0)), digests(plain.epoch(0)));
}

}  // namespace
}  // namespace headrace
