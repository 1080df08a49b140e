#include "data/loader/detail/transform_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/loader.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "core/options/contradictions.h"
#include "core/options/transforms.h"
#include "data/loader/testing.h"
#include "data/pack/pack_build.h"
#include "data/store/scratch_folder.h"
#include "media/codec/tiny_images.h"

namespace headrace {
namespace {

using testing::IsEmpty;

DataOptions all_transforms() {
  DataOptions options = options_of(8, 0);
  options.transform.size = 24;
  options.transform.crop = Crop::random_resized;
  options.transform.scale = {0.5, 1.0};
  options.transform.ratio = {0.8, 1.25};
  options.transform.pad = 2;
  options.transform.flip_probability = 0.5;
  return options;
}

// A sample's price in place of its time: 6 for decoding and 4 for the rest; there 3 for the pad, 1 for the flip, and a
// random crop spares 2 of decoding. Every fifth round something else was on the machine.
detail::Making price(const DataOptions& options, std::int64_t epoch) {
  const TransformOptions& transform = options.transform;
  detail::Making units{.read_s = 0, .decode_s = 6, .augment_s = 4};
  if (transform.crop != Crop::center) units.decode_s -= 2;
  if (transform.pad > 0) units.augment_s += 3;
  if (transform.flip_probability > 0) units.augment_s += epoch % 5 == 4 ? 9 : 1;
  return {0, units.decode_s * 1e-3, units.augment_s * 1e-3};
}

TEST(TransformCosts, AreTheMedianOverRoundsTheDearestFirst) {
  std::set<std::int64_t> epochs;
  const auto costs = detail::costs_of_transforms(all_transforms(), true, [&](const DataOptions& options, auto epoch) {
    epochs.insert(epoch);
    return price(options, epoch);
  });
  ASSERT_EQ(costs.size(), 3U);
  EXPECT_EQ(costs[0].name, "pad");
  EXPECT_EQ(costs[0].setting, "data.transform.pad = 0");
  EXPECT_NEAR(costs[0].share, 3.0 / 12, 1e-9);
  EXPECT_NEAR(costs[0].augment_share, 3.0 / 8, 1e-9);
  EXPECT_EQ(costs[0].decode_share, 0);
  EXPECT_EQ(costs[1].name, "flip");
  EXPECT_EQ(costs[1].setting, "data.transform.flip_probability = 0");
  EXPECT_NEAR(costs[1].share, 1.0 / 12, 1e-9);
  EXPECT_EQ(costs[2].name, "crop");
  EXPECT_EQ(costs[2].setting,
            "data.transform.crop = \"center\"; data.transform.scale = [0.08, 1.0]; data.transform.ratio = [0.75, "
            "1.3333333333333333]");
  EXPECT_NEAR(costs[2].share, -2.0 / 12, 1e-9);
  EXPECT_NEAR(costs[2].decode_share, -2.0 / 4, 1e-9);
  EXPECT_EQ(costs[2].augment_share, 0);
  EXPECT_EQ(costs[2].read_share, 0);  // Nothing is read there.
  EXPECT_GE(epochs.size(), 3U);       // Other draws each round.
}

TEST(TransformCosts, WhatTheirSettingsLeaveIsAllowed) {
  detail::costs_of_transforms(all_transforms(), true, [](const DataOptions& options, std::int64_t) {
    EXPECT_EQ(transform_contradiction(options.transform, ""), "");
    return detail::Making{.read_s = 0, .decode_s = 0, .augment_s = 1};
  });
}

TEST(TransformCosts, OnlyWhatIsOptionalAndOnIsWeighed) {
  const auto names = [](const DataOptions& options, bool augment) {
    std::vector<std::string> all;
    for (const auto& cost : detail::costs_of_transforms(options, augment, price)) all.push_back(cost.name);
    return all;
  };
  EXPECT_THAT(names(all_transforms(), false), IsEmpty());
  EXPECT_THAT(names(options_of(8, 0), true), IsEmpty());
  DataOptions flips = options_of(8, 0);
  flips.transform.flip_probability = 0.5;
  EXPECT_THAT(names(flips, true), testing::ElementsAre("flip"));
}

TEST(TransformCosts, ReadingRowsIsAPartOfItsOwn) {
  const auto costs = detail::costs_of_transforms(all_transforms(), true, [](const DataOptions& options, std::int64_t) {
    return detail::Making{.read_s = options.transform.pad > 0 ? 4.0 : 1.0, .decode_s = 0, .augment_s = 4};
  });
  ASSERT_EQ(costs.size(), 3U);
  EXPECT_EQ(costs[0].name, "pad");
  EXPECT_NEAR(costs[0].read_share, 3.0 / 4, 1e-9);
  EXPECT_NEAR(costs[0].share, 3.0 / 8, 1e-9);
  EXPECT_EQ(costs[1].read_share, 0);
}

TEST(TransformCosts, AMachineThatOnlyWaitsIsGivenOneRound) {
  std::int64_t last = -1;
  const auto costs = detail::costs_of_transforms(all_transforms(), true, [&](const DataOptions& options, auto epoch) {
    if (last < 0) std::this_thread::sleep_for(std::chrono::milliseconds(2200));  // A sleep is never shorter.
    last = epoch;
    return price(options, epoch);
  });
  EXPECT_EQ(last, 0);
  EXPECT_EQ(costs.size(), 3U);
}

enum class Kind { sound, small, interrupted };

// Says that its images are of 28 x 28, and notes which it was asked for.
class OddSource : public Source, protected KnownSamples {
 public:
  explicit OddSource(
      std::int64_t size, std::function<Kind(std::int64_t)> kind = [](auto) { return Kind::sound; })
      : size_(size), kind_(std::move(kind)) {}
  std::int64_t size() const override { return size_; }
  const SourceInfo& info() const override { return info_; }
  std::string name(std::int64_t index) const override { return "odd[" + std::to_string(index) + "]"; }
  Capabilities capabilities() const override { return {.known = this}; }
  std::int64_t label(std::int64_t) const override { return 0; }
  void read(std::int64_t index, Sample& sample) const override {
    asked_for.push_back(index);
    if (kind_(index) == Kind::interrupted) fail(ErrorCode::cancelled, "broken off");
    const int side = kind_(index) == Kind::small ? 20 : 28;
    sample.buffer(0).assign(static_cast<std::size_t>(side * side), 1);
    sample.image().set_pixels(sample.buffer(0), side, side, 1);
    sample.set_label(0);
  }

  mutable std::vector<std::int64_t> asked_for;  // By one thread.

 private:
  const std::int64_t size_;
  const std::function<Kind(std::int64_t)> kind_;
  const SourceInfo info_{.schema = Schema::image_and_labels(28, 28, 1), .num_classes = 1, .fingerprint = 1};
};

// Whose rows are read by themselves, which is interrupted.
class InterruptedRows final : public OddSource, ImageRows {
 public:
  InterruptedRows() : OddSource(8) {}
  Capabilities capabilities() const override { return {.rows = this, .known = this}; }
  Payload outline(std::int64_t) const override { return Payload::of_pixels({}, 28, 28, 1); }
  std::span<const std::uint8_t> read_rows(std::int64_t, int, int, std::vector<std::uint8_t>&) const override {
    fail(ErrorCode::cancelled, "rows broken off");
  }
};

DataOptions padded() {
  DataOptions options = options_of(4, 0);
  options.transform.pad = 2;
  options.on_corrupt = OnCorrupt::replace;
  return options;
}

TEST(TransformCosts, ASampleThatIsNotAsItsSourceSaysIsLeftOut) {
  const auto source = std::make_shared<OddSource>(8, [](auto index) { return index == 1 ? Kind::small : Kind::sound; });
  const auto costs = Loader(source, padded(), 1, true).transform_costs();
  ASSERT_EQ(costs.size(), 1U);
  EXPECT_EQ(costs[0].name, "pad");
}

TEST(TransformCosts, OfAListOfOperationsThereAreNone) {
  DataOptions options = padded();
  const std::vector<TransformSpec> list = transforms_of(options.transform, /*training=*/true, {28, 28});
  options.transform = {};
  options.transforms = list;  // It runs as the section would.
  const auto source = std::make_shared<OddSource>(8);
  EXPECT_THAT(Loader(source, options, 1, true).transform_costs(), IsEmpty());
}

TEST(TransformCosts, WhereNoSampleCanBeMadeThereAreNone) {
  const auto source = std::make_shared<OddSource>(8, [](auto) { return Kind::small; });
  EXPECT_THAT(Loader(source, padded(), 1, true).transform_costs(), IsEmpty());
  EXPECT_EQ(source->asked_for.size(), 8U);
}

TEST(TransformCosts, AnInterruptionIsNoSampleThatCannotBeRead) {
  const auto source =
      std::make_shared<OddSource>(8, [](auto index) { return index == 2 ? Kind::interrupted : Kind::sound; });
  const Loader whole{source, padded(), 1, true};
  EXPECT_EQ(error_of(ErrorCode::cancelled, [&] { whole.transform_costs(); }), "broken off");
  const Loader rows{std::make_shared<InterruptedRows>(), padded(), 1, true};
  EXPECT_EQ(error_of(ErrorCode::cancelled, [&] { rows.transform_costs(); }), "rows broken off");
}

TEST(TransformCosts, TheFirstSamplesWeighedAreFromAllOverTheSource) {
  const auto source = std::make_shared<OddSource>(100'000);
  Loader(source, padded(), 1, true).transform_costs();
  ASSERT_GE(source->asked_for.size(), 8U);
  const std::set<std::int64_t> first(source->asked_for.begin(), source->asked_for.begin() + 8);
  EXPECT_LT(*first.begin(), 40'000);
  EXPECT_GT(*first.rbegin(), 60'000);
}

TEST(TransformCosts, WhereNothingIsLeftOfTheMemoryLimitOneSampleIsHeld) {
  const auto source = std::make_shared<OddSource>(100);
  const auto costs = Loader(source, padded(), 1, true, /*memory_limit=*/std::int64_t{1} << 20).transform_costs();
  EXPECT_EQ(source->asked_for.size(), 1U);  // The process holds more than that.
  EXPECT_EQ(costs.size(), 1U);
}

class PackTransformCosts : public ScratchFolder {};

TEST_F(PackTransformCosts, AreOfReadingRowsToo) {
  const TinyImages images{{.classes = 2, .count = 8}};
  const auto pack = folder_ / "photos.pack";
  ASSERT_TRUE(write_pack({.source = images.uri(), .out = pack, .form = PackForm::raw},
                         [](std::int64_t, std::int64_t) { return true; }));
  const Loader loader{open_source("pack:" + pack.string(), Split::train), all_transforms(), 1, true};
  const auto costs = loader.transform_costs();
  ASSERT_EQ(costs.size(), 3U);
  for (const TransformCost& cost : costs) {
    EXPECT_TRUE(std::isfinite(cost.read_share) && cost.read_share < 1) << cost.name;
    EXPECT_EQ(cost.decode_share, 0) << cost.name;
  }
  EXPECT_TRUE(std::any_of(costs.begin(), costs.end(), [](const auto& cost) { return cost.read_share != 0; }));
  EXPECT_EQ(loader.statistics().read, 0);
}

TEST(TransformCosts, ALoaderTellsThemAndGoesOnAsBefore) {
  const TinyImages images{{.classes = 2, .count = 8}};
  const std::shared_ptr<const Source> source = open_source(images.uri(), Split::train);
  Loader reference{source, all_transforms(), 1, true}, loader{source, all_transforms(), 1, true};
  const auto expected = digests(reference.epoch(0));
  Epoch epoch = loader.epoch(0);
  std::vector<std::uint64_t> found{digest(epoch.next().value())};
  const LoaderStatistics before = loader.statistics();
  const auto costs = loader.transform_costs();
  ASSERT_EQ(costs.size(), 3U);
  for (const TransformCost& cost : costs) {
    for (const double share : {cost.share, cost.decode_share, cost.augment_share}) {
      EXPECT_TRUE(std::isfinite(share) && share < 1) << cost.name;
    }
    EXPECT_EQ(cost.read_share, 0) << cost.name;  // Files are read before.
  }
  const LoaderStatistics after = loader.statistics();
  EXPECT_EQ(after.samples, before.samples);
  EXPECT_EQ(after.read, before.read);
  EXPECT_EQ(after.index_misses, before.index_misses);
  EXPECT_EQ(loader.explain().samples, before.samples);
  while (const auto batch = epoch.next()) found.push_back(digest(*batch));
  EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace headrace
