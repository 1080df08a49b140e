#include "data/loader/detail/cache_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "core/base/error_of.h"

namespace headrace::detail {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kSamples = 10'000;
constexpr std::int64_t kMuch = std::int64_t{1} << 50;
constexpr std::int64_t kMiB = 1 << 20;

// Nothing of it is read.
class PromisedSource final : public Source {
 public:
  explicit PromisedSource(SourceInfo info) : info_(std::move(info)) {}
  std::int64_t size() const override { return kSamples; }
  const SourceInfo& info() const override { return info_; }
  void read(std::int64_t, Sample&) const override {}
  std::string name(std::int64_t index) const override { return std::to_string(index); }

 private:
  const SourceInfo info_;
};

SourceInfo files() {
  return {.schema = Schema::image_and_labels(0, 0, 3)};
}
SourceInfo pixels() {
  return {.schema = Schema::image_and_labels(32, 32, 3)};
}
SourceInfo pixels_in_memory() {
  SourceInfo info = pixels();
  info.in_memory = true;
  return info;
}

// The placement of a loader that is not there.
struct Placed {
  explicit Placed(SourceInfo info, DataOptions how = {}, std::int64_t memory_limit = kMuch)
      : source(std::move(info)),
        options(std::move(how)),
        cache({reader, fields, options, /*have_rest=*/false}, memory_limit, mutex) {}

  std::string refusal_of(Cache form) {
    cache.place(form, /*keep=*/false);
    return cache.refusal();
  }

  const PromisedSource source;
  const DataOptions options;
  const SampleReader reader{source};
  const SampleFields fields{source.info().schema};
  std::mutex mutex;
  CachePlacement cache;
};

DataOptions with_cache_mib(std::int64_t mib) {
  DataOptions options;
  options.cache_mib = mib;
  return options;
}

TEST(CachePlacement, WhatIsInMemoryIsNotHeldTwice) {
  Placed placed{pixels_in_memory()};
  EXPECT_EQ(placed.refusal_of(Cache::decoded), "the source's images are pixels in memory already");
  EXPECT_EQ(placed.cache.in_force(), Cache::none);
  EXPECT_EQ(placed.cache.fit({}).decoded, 0);
}

TEST(CachePlacement, ASourceOfPixelsHasNoFilesToKeep) {
  Placed placed{pixels()};
  EXPECT_EQ(placed.refusal_of(Cache::encoded), "the source gives pixels, no files");
  Placed of_files{files()};
  EXPECT_EQ(of_files.refusal_of(Cache::encoded), "");
  EXPECT_EQ(of_files.cache.in_force(), Cache::encoded);
}

TEST(CachePlacement, ARefusedFormLeavesTheOneInForce) {
  Placed placed{pixels()};
  EXPECT_EQ(placed.refusal_of(Cache::decoded), "");
  const SampleCache* const first = placed.cache.cache().get();
  EXPECT_NE(placed.refusal_of(Cache::encoded), "");
  EXPECT_EQ(placed.cache.cache().get(), first);
  EXPECT_EQ(placed.refusal_of(Cache::decoded), "");  // It is in force already: it stays, and nothing is refused.
  EXPECT_EQ(placed.cache.cache().get(), first);
  EXPECT_EQ(placed.refusal_of(Cache::none), "");
  EXPECT_EQ(placed.cache.in_force(), Cache::none);
}

TEST(CachePlacement, NothingIsPlacedWhereNothingIsLeftOfTheMemoryLimit) {
  Placed placed{files(), {}, /*memory_limit=*/1};
  EXPECT_EQ(placed.refusal_of(Cache::decoded), "nothing is left for it of the memory limit of 1 bytes");
  EXPECT_EQ(placed.cache.in_force(), Cache::none);
}

TEST(CachePlacement, BytesThatAreAskedForAndNotLeftAreAnErrorThatChangesNothing) {
  Placed placed{files(), with_cache_mib(1), /*memory_limit=*/1};
  EXPECT_THAT(error_of(ErrorCode::out_of_memory, [&] { placed.cache.place(Cache::decoded, /*keep=*/false); }),
              HasSubstr("data.cache_mib asks for 1048576 bytes; "));
  EXPECT_EQ(placed.cache.in_force(), Cache::none);
  EXPECT_EQ(placed.cache.refusal(), "");
}

TEST(CachePlacement, AKeptCacheComesBackWithWhatItHolds) {
  Placed placed{files(), with_cache_mib(1)};
  placed.cache.place(Cache::encoded, /*keep=*/false);
  const SampleCache* const first = placed.cache.cache().get();
  const std::array<std::uint8_t, 3> bytes{1, 2, 3};
  ASSERT_TRUE(placed.cache.cache()->entries.admit(7, {bytes}));
  const std::int64_t held = placed.cache.bytes();
  placed.cache.remove(/*keep=*/true);
  EXPECT_EQ(placed.cache.in_force(), Cache::none);
  EXPECT_TRUE(placed.cache.holds(Cache::encoded));
  EXPECT_EQ(placed.cache.bytes(), held);  // It is off, and its memory is not free.
  placed.cache.place(Cache::encoded, /*keep=*/true);
  EXPECT_EQ(placed.cache.cache().get(), first);
  EXPECT_TRUE(placed.cache.cache()->entries.find(7).has_value());
  placed.cache.remove(/*keep=*/false);
  EXPECT_FALSE(placed.cache.holds(Cache::encoded));
  EXPECT_EQ(placed.cache.bytes(), 0);
}

TEST(CachePlacement, ANewCacheHasTheMemoryOfTheOneThatItReplaces) {
  Placed placed{files(), with_cache_mib(1)};
  EXPECT_EQ(placed.cache.bytes_replaced(/*keep=*/false), 0);
  placed.cache.place(Cache::decoded, /*keep=*/false);
  EXPECT_EQ(placed.cache.bytes_replaced(/*keep=*/false), kMiB);
  EXPECT_EQ(placed.cache.bytes_replaced(/*keep=*/true), 0);
  placed.cache.place(Cache::encoded, /*keep=*/true);
  EXPECT_EQ(placed.cache.bytes_replaced(/*keep=*/false), 2 * kMiB);
  EXPECT_EQ(placed.cache.bytes_replaced(/*keep=*/true), kMiB);  // The kept one makes room for the one in force.
}

TEST(CachePlacement, FitGoesByTheMeanSizesOfWhatHasPassed) {
  SampleTotals done;
  Placed of_pixels{pixels(), with_cache_mib(1)};
  EXPECT_EQ(of_pixels.cache.fit(done).decoded, 0);  // Nothing is known yet.
  done.add(SamplePass::read, 800, 800);
  done.add(SamplePass::read, 1200, 1200);
  EXPECT_DOUBLE_EQ(of_pixels.cache.fit(done).decoded, kMiB / ((1000. + 64) * kSamples));
  EXPECT_EQ(of_pixels.cache.fit(done).encoded, 0);

  Placed of_files{files(), with_cache_mib(1)};
  done.add(SamplePass::decode_whole, 800, 5000);
  done.whole = 5000;
  EXPECT_DOUBLE_EQ(of_files.cache.fit(done).decoded, kMiB / ((5000. + 64) * kSamples));
  EXPECT_DOUBLE_EQ(of_files.cache.fit(done).encoded, kMiB / ((1000. + 64) * kSamples));

  Placed large{files(), with_cache_mib(1024)};
  EXPECT_EQ(large.cache.fit(done).encoded, 1);
  DataOptions of_two = with_cache_mib(1024);
  of_two.world_size = 2;
  EXPECT_EQ(Placed(files(), of_two).cache.fit(done).encoded, 0.5);
  EXPECT_EQ(Placed(files(), with_cache_mib(1), /*memory_limit=*/1).cache.fit(done).encoded, 0);
}

}  // namespace
}  // namespace headrace::detail
