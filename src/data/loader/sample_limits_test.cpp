// data.max_pixels and data.max_sample_bytes, on every way that a sample can come.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/loader.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/loader/allocation_count.h"
#include "data/loader/testing.h"
#include "data/pack/pack_build.h"
#include "data/store/scratch_folder.h"
#include "media/codec/test_images.h"
#include "media/codec/tiny_images.h"

namespace headrace {
namespace {

using codec::Bytes;
using testing::AllOf;
using testing::HasSubstr;

// Two bytes of height and two of width in the frame header of a JPEG that has no other 0xC0 behind a 0xFF before it.
Bytes with_size(Bytes jpeg, int height, int width) {
  for (std::size_t at = 2; at + 9 < jpeg.size(); at += 2 + jpeg[at + 2] * 256U + jpeg[at + 3]) {
    if (jpeg[at + 1] != 0xC0 && jpeg[at + 1] != 0xC2) continue;
    jpeg[at + 5] = static_cast<std::uint8_t>(height >> 8), jpeg[at + 6] = static_cast<std::uint8_t>(height);
    jpeg[at + 7] = static_cast<std::uint8_t>(width >> 8), jpeg[at + 8] = static_cast<std::uint8_t>(width);
    return jpeg;
  }
  ADD_FAILURE() << "no frame header";
  return jpeg;
}

class SampleLimitsOf : public ScratchFolder {
 protected:
  // Twelve small images and a bad one, the first of all.
  void fill(const Bytes& bad, const char* name = "0.jpg") {
    for (int i = 1; i < 13; ++i) put(fmt::format("{}/{}.jpg", i % 2 == 0 ? "a" : "b", i), codec::jpeg_of(small(i), {}));
    put(std::string("a/") + name, bad);
  }
  void put(const std::string& name, const Bytes& file) { write("set/train/" + name, {file.begin(), file.end()}); }
  static codec::Image small(int seed) { return codec::photograph(40, 50, 3, static_cast<unsigned>(seed)); }

  std::string folder_uri() const { return "folder:" + (folder_ / "set").string(); }
  std::string pack_uri() const {
    const PackPlan plan{.source = folder_uri(), .out = folder_ / "set.pack"};
    EXPECT_TRUE(write_pack(plan, [](std::int64_t, std::int64_t) { return true; }));
    return "pack:" + plan.out.string();
  }
  static DataOptions options() {
    DataOptions options = options_of(4, 1);
    options.transform.size = 16;
    options.shuffle = false;
    return options;
  }

  // The bad one ends the epoch by its name, or is replaced by another, with and without a cache.
  static void expect_refused(const std::string& uri, DataOptions options, const std::string& message) {
    const std::shared_ptr<const Source> source = open_source(uri, Split::train, options.limits());
    for (const Cache cache : {Cache::none, Cache::decoded}) {
      options.cache = cache;
      options.cache_mib = 8;
      options.on_corrupt = OnCorrupt::fail;
      Loader strict{source, options, 1, true};
      EXPECT_THAT(error_of(ErrorCode::unsupported, [&] { order(strict.epoch(0)); }),
                  AllOf(HasSubstr(source->name(0)), HasSubstr(message)));
      options.on_corrupt = OnCorrupt::replace;
      Loader lenient{source, options, 1, true};
      const std::vector<std::int64_t> delivered = order(lenient.epoch(0));
      EXPECT_NE(delivered.front(), 0);
      std::vector<std::int64_t> wanted = counting(13);
      wanted[0] = delivered[0];
      EXPECT_EQ(delivered, wanted);
      ASSERT_EQ(lenient.corrupt_samples().size(), 1U);
      EXPECT_THAT(lenient.corrupt_samples()[0].reason, HasSubstr(message));
    }
  }
};

TEST_F(SampleLimitsOf, FoldersAndPacksRefuseAnImageByTheSizeInItsHeader) {
  fill(codec::jpeg_of(codec::photograph(60, 70, 3, 1), {}));
  DataOptions tight = options();
  tight.max_pixels = 4199;
  for (const std::string& uri : {folder_uri(), pack_uri()}) {
    expect_refused(uri, tight, "60 x 70: 4200 pixels; wanted at most 4199 (data.max_pixels)");
    tight.max_pixels = 4200;
    Loader loader{open_source(uri, Split::train), tight, 1, true};
    EXPECT_EQ(order(loader.epoch(0)), counting(13));
    tight.max_pixels = 4199;
  }
}

TEST_F(SampleLimitsOf, ImagesThatAreHeldWholeMayHaveAQuarter) {
  fill(codec::jpeg_of(small(1), {.progressive = true}));
  DataOptions tight = options();
  tight.max_pixels = 4 * 40 * 50 - 1;
  expect_refused(folder_uri(), tight, "40 x 50: 2000 pixels; wanted at most 1999 (a quarter of data.max_pixels)");
}

TEST_F(SampleLimitsOf, HugeHeadersCostNoMemoryByDefault) {
  fill(with_size(codec::jpeg_of(small(1), {}), 65'500, 65'500));
  AllocationCount::reset_peak();
  expect_refused(folder_uri(), options(), "65500 x 65500: 4290250000 pixels; wanted at most 178956970");
  EXPECT_LT(AllocationCount::peak_growth(), 8 << 20);
}

TEST_F(SampleLimitsOf, FoldersAndPacksRefuseAFileOfTooManyBytesBeforeItIsRead) {
  const Bytes large = codec::jpeg_of(codec::photograph(300, 400, 3, 1), {.quality = 100});
  fill(large);
  DataOptions tight = options();
  tight.max_sample_bytes = std::ssize(large) - 1;
  const std::string message =
      fmt::format("{} bytes; wanted at most {} (data.max_sample_bytes)", large.size(), large.size() - 1);
  const std::string pack = pack_uri();
  expect_refused(folder_uri(), tight, message);
  expect_refused(pack, tight, message);
}

TEST_F(SampleLimitsOf, AFileOfNothingButSizeCostsNoMemoryByDefault) {
  fill({0xFF, 0xD8, 0xFF});
  std::filesystem::resize_file(folder_ / "set/train/a/0.jpg", std::uintmax_t{900} << 20);  // A hole.
  AllocationCount::reset_peak();
  expect_refused(folder_uri(), options(), "943718400 bytes; wanted at most 268435456 (data.max_sample_bytes)");
  EXPECT_LT(AllocationCount::peak_growth(), 8 << 20);
}

// Images of pixels, of which one is larger.
class PixelsOfManySizes : public Source, protected KnownSamples {
 public:
  std::int64_t size() const override { return 13; }
  const SourceInfo& info() const override { return info_; }
  Capabilities capabilities() const override { return {.known = this}; }
  void read(std::int64_t index, Sample& sample) const override {
    const int side = side_of(index);
    sample.buffer(0).assign(static_cast<std::size_t>(side) * side * 3, 9);
    sample.image().set_pixels(sample.buffer(0), side, side, 3);
    sample.set_label(label(index));
  }
  std::int64_t label(std::int64_t index) const override { return index % 2; }
  std::string name(std::int64_t index) const override { return fmt::format("sample {}", index); }

 protected:
  static int side_of(std::int64_t index) { return index == 0 ? 30 : 20; }

 private:
  const SourceInfo info_{.schema = Schema::image_and_labels(0, 0, 3), .num_classes = 2, .fingerprint = 13};
};

TEST_F(SampleLimitsOf, SourcesOfOnesOwnAreHeldToThem) {
  const auto source = std::make_shared<PixelsOfManySizes>();
  const auto refusal = [&](std::int64_t pixels, std::int64_t bytes) {
    DataOptions tight = options();
    tight.max_pixels = pixels;
    tight.max_sample_bytes = bytes;
    Loader loader{source, tight, 1, true};
    return error_of(ErrorCode::unsupported, [&] { order(loader.epoch(0)); });
  };
  EXPECT_THAT(refusal(899, 1 << 20), HasSubstr("sample 0: 30 x 30: 900 pixels; wanted at most 899 (data.max_pixels)"));
  EXPECT_THAT(refusal(900, 2699), HasSubstr("sample 0: 2700 bytes; wanted at most 2699 (data.max_sample_bytes)"));
  Loader loader{source, options(), 1, true};
  EXPECT_EQ(order(loader.epoch(0)), counting(13));
}

// The same, which tell their sizes beforehand.
class PixelsOfKnownSizes : public PixelsOfManySizes, ImageRows {
 public:
  Capabilities capabilities() const override { return {.rows = this, .known = this}; }
  Payload outline(std::int64_t index) const override {
    return Payload::of_pixels({}, side_of(index), side_of(index), 3);
  }
  std::span<const std::uint8_t> read_rows(std::int64_t, int, int, std::vector<std::uint8_t>&) const override {
    return {};
  }
  void read(std::int64_t index, Sample& sample) const override {
    if (index == 0) ++reads_of_the_large;
    PixelsOfManySizes::read(index, sample);
  }
  mutable std::atomic<int> reads_of_the_large = 0;
};

TEST_F(SampleLimitsOf, AnImageThatIsKnownToBeTooLargeIsNotReadForTheCacheEither) {
  const auto source = std::make_shared<PixelsOfKnownSizes>();
  DataOptions tight = options();
  tight.max_pixels = 899;
  tight.cache = Cache::decoded;
  Loader loader{source, tight, 1, true};
  EXPECT_THAT(error_of(ErrorCode::unsupported, [&] { order(loader.epoch(0)); }), HasSubstr("sample 0: 30 x 30"));
  EXPECT_EQ(source->reads_of_the_large, 0);
}

}  // namespace
}  // namespace headrace
