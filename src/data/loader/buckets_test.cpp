// Buckets of samples that are alike in shape.
#include "data/loader/detail/buckets.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/loader.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "core/base/random.h"
#include "data/loader/detail/order.h"
#include "data/loader/testing.h"
#include "data/pack/pack_build.h"
#include "data/source/read_sample.h"
#include "data/source/sources.h"
#include "data/store/file_calls.h"
#include "data/store/file_store.h"
#include "data/store/scratch_folder.h"
#include "media/codec/tiny_images.h"

namespace headrace {
namespace {

using detail::EpochOrder;
using detail::Order;
using testing::AllOf;
using testing::HasSubstr;

// Nothing to read: shapes as photographs have them, most of them in a few sizes, landscape or portrait, the rest any.
class ShapedSource : public Source, protected ImageSizes, KnownSamples {
 public:
  explicit ShapedSource(std::int64_t size) {
    constexpr ImageSize kUsual[] = {{480, 640}, {640, 480}, {427, 640}, {333, 500}, {500, 375}};
    for (std::int64_t i = 0; i < size; ++i) {
      SampleRandom random{11, 0, i};
      const auto any = [&random] { return 200 + static_cast<int>(random.below(825)); };
      const std::uint32_t kind = random.below(8);
      shapes.push_back(kind < 5 ? kUsual[kind] : ImageSize{any(), any()});
    }
  }
  std::int64_t size() const override { return std::ssize(shapes); }
  const SourceInfo& info() const override { return info_; }
  void read(std::int64_t, Sample&) const override {}
  Capabilities capabilities() const override { return {.sizes = this, .known = this}; }
  ImageSize image_size(std::int64_t index, std::vector<std::uint8_t>&) const override {
    return shapes[static_cast<std::size_t>(index)];
  }
  // As of JPEG files: by the number of pixels, and half or twice as much by what is on them.
  std::int64_t sample_bytes(std::int64_t index) const override {
    const ImageSize& shape = shapes[static_cast<std::size_t>(index)];
    return std::int64_t{shape.height} * shape.width * (50 + SampleRandom{12, 0, index}.below(150)) / 600;
  }
  std::int64_t label(std::int64_t index) const override { return index % 4; }
  std::string name(std::int64_t index) const override { return fmt::format("shaped[{}]", index); }

  std::vector<ImageSize> shapes;

 private:
  const SourceInfo info_{.schema = Schema::image_and_labels(0, 0, 3), .num_classes = 4, .fingerprint = 1};
};

DataOptions buckets_of(BucketBy what, std::int64_t batch_size = 16, std::int64_t buckets = 16) {
  DataOptions options;
  options.batch_size = batch_size;
  options.buckets = buckets;
  options.bucket_by = what;
  return options;
}

std::vector<std::int64_t> samples_of(const Order& order, std::int64_t epoch) {
  const EpochOrder in_epoch{order, epoch};
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < order.positions(); ++i) all.push_back(in_epoch.sample_at(i));
  return all;
}

// Of the pixels of batches that are padded to their highest and widest image, those that are padding.
double padding(const ShapedSource& source, const DataOptions& options) {
  const auto samples = samples_of(Order{source, options, 3, true}, 0);
  double padded = 0, filled = 0;
  for (std::int64_t begin = 0; begin < std::ssize(samples); begin += options.batch_size) {
    const std::int64_t end = std::min(begin + options.batch_size, std::ssize(samples));
    ImageSize most;
    for (std::int64_t i = begin; i < end; ++i) {
      const ImageSize& shape = source.shapes[static_cast<std::size_t>(samples[static_cast<std::size_t>(i)])];
      most = {std::max(most.height, shape.height), std::max(most.width, shape.width)};
      filled += static_cast<double>(shape.height) * shape.width;
    }
    padded += static_cast<double>(end - begin) * most.height * most.width;
  }
  return 1 - filled / padded;
}

TEST(Buckets, ByShapeMoreThanHalveThePaddingOfAShuffledOrder) {
  const ShapedSource source{4000};
  DataOptions plain;
  plain.batch_size = 16;
  const double shuffled = padding(source, plain);  // About 0.64.
  const double by_bytes = padding(source, buckets_of(BucketBy::bytes));
  const double by_shape = padding(source, buckets_of(BucketBy::shape));
  EXPECT_GT(shuffled, 0.5);
  EXPECT_LT(by_shape, shuffled / 2);
  EXPECT_LT(by_shape, 0.6 * by_bytes);
  EXPECT_LT(padding(source, buckets_of(BucketBy::shape, 16, 250)), 0.1);  // Each step is its own bucket.
}

TEST(Buckets, ByShapeMeetEverySampleOnceInANewOrderEachEpoch) {
  for (const std::int64_t size : {1, 15, 16, 1037}) {
    const ShapedSource source{size};
    const Order order{source, buckets_of(BucketBy::shape), 3, true};
    std::set<std::vector<std::int64_t>> orders;
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      auto found = samples_of(order, epoch);
      EXPECT_EQ(found, samples_of(Order{source, buckets_of(BucketBy::shape), 3, true}, epoch));
      orders.insert(found);
      std::sort(found.begin(), found.end());
      EXPECT_EQ(found, counting(size));
    }
    EXPECT_EQ(orders.size(), size == 1 ? 1U : 3U);
    EXPECT_TRUE(size == 1 ||
                samples_of(order, 0) != samples_of(Order{source, buckets_of(BucketBy::shape), 4, true}, 0));
  }
}

// Each batch of equal images: as many of each shape as fill whole buckets.
TEST(Buckets, OfAFewShapesGiveBatchesOfOneShapeEach) {
  ShapedSource source{256};
  constexpr ImageSize kShapes[] = {{100, 200}, {200, 100}, {100, 100}, {200, 200}};
  for (std::size_t i = 0; i < 256; ++i) source.shapes[i] = kShapes[i % 4];
  EXPECT_EQ(padding(source, buckets_of(BucketBy::shape, 16, 4)), 0);
}

class SilentSource final : public ShapedSource {
 public:
  using ShapedSource::ShapedSource;
  Capabilities capabilities() const override { return {}; }
};

TEST(Buckets, OfASourceThatDoesNotTellSizesAreRefusedByTheOptionsName) {
  const SilentSource source{600};
  const auto refusal = error_of(ErrorCode::invalid_argument, [&] {
    Order{source, buckets_of(BucketBy::shape), 3, true};
  });
  EXPECT_THAT(refusal, AllOf(HasSubstr("data.bucket_by is \"shape\""), HasSubstr("shaped[0]"), HasSubstr("\"bytes\"")));
  EXPECT_EQ((Order{source, buckets_of(BucketBy::shape), 3, false}.positions()), 600);  // An evaluation has no buckets.
}

TEST(Buckets, BucketByWithoutBucketsIsRefused) {
  const auto options = buckets_of(BucketBy::shape, 16, 0);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] {
                         Loader{std::make_shared<ShapedSource>(100), options, 3, true};
                       }),
              HasSubstr("data.bucket_by has no effect without data.buckets"));
}

class CountingCalls final : public FileCalls {
 public:
  ssize_t read_at(int file, void* target, std::size_t size, off_t at) const override {
    const ssize_t got = FileCalls::read_at(file, target, size, at);
    bytes += got;
    return got;
  }
  mutable std::atomic<std::int64_t> bytes{0};
};

class BucketsOfFiles : public ScratchFolder {
 protected:
  static DataOptions options(std::int64_t threads) {
    DataOptions options = buckets_of(BucketBy::shape, 5, 6);
    options.num_workers = threads;
    options.transform.size = 40;
    options.transform.crop = Crop::random_resized;
    return options;
  }
  void truncate(const char* name, const char* content) const {
    std::ofstream file(images_.folder() / "train" / name, std::ios::binary | std::ios::trunc);
    file << content;
  }

  const TinyImages images_{{.classes = 3, .count = 20, .height = 150, .width = 200}};
};

TEST_F(BucketsOfFiles, ReadTheHeadersAlone) {
  const CountingCalls calls;
  const auto source = detail::open_image_folder(images_.folder(), Split::train, [&](const std::filesystem::path& root) {
    return std::make_unique<FileStore>(root, calls);
  });
  std::vector<std::uint8_t> buffer;
  for (std::int64_t i = 0; i < source->size(); ++i) {
    const ImageSize told = source->capabilities().sizes->image_size(i, buffer);
    const codec::Image image =
        TinyImages::image(static_cast<int>(i / 20), static_cast<int>(i % 20), {.height = 150, .width = 200});
    EXPECT_EQ(told.height, image.height);
    EXPECT_EQ(told.width, image.width);
  }
  EXPECT_EQ(calls.bytes.load(), 60 * 4096);
  EXPECT_GT(sample_bytes_of(*source, 0), 2 * 4096);
}

TEST_F(BucketsOfFiles, AreTheSameForAFolderAndItsPacksAndAnyNumberOfThreads) {
  const std::shared_ptr<const Source> folder = open_source(images_.uri(), Split::train);
  Loader loader{folder, options(0), 3, true};
  const auto expected = sample_digests(loader.epoch(2));
  for (const PackForm form : {PackForm::stored, PackForm::raw, PackForm::lz4}) {
    const auto pack = folder_ / fmt::format("{}.pack", choice_name(form));
    ASSERT_TRUE(write_pack({.source = images_.uri(), .out = pack, .form = form},
                           [](std::int64_t, std::int64_t) { return true; }));
    for (const std::int64_t threads : {1, 7}) {
      Loader packed{open_source("pack:" + pack.string(), Split::train), options(threads), 3, true};
      EXPECT_EQ(sample_digests(packed.epoch(2)), expected) << choice_name(form);
    }
  }
}

TEST_F(BucketsOfFiles, AnEpochGoesOnInTheMiddleOnOtherThreadsAndRanks) {
  const std::shared_ptr<const Source> source = open_source(images_.uri(), Split::train);
  auto halves = options(2);
  halves.batch_size = 4;
  Loader alone{source, halves, 3, true};
  const auto expected = sample_digests(alone.epoch(1));
  LoaderState state;
  {
    Loader first{source, halves, 3, true};
    auto epoch = first.epoch(1);
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(epoch.next());
    state = first.state();
  }
  halves.batch_size = 2;  // The same step of both ranks together.
  halves.world_size = 2;
  std::vector<std::uint64_t> found[2];
  for (halves.rank = 0; halves.rank < 2; ++halves.rank) {
    halves.num_workers = halves.rank * 3;
    Loader part{source, halves, 3, true};
    part.restore(state);
    found[halves.rank] = sample_digests(part.next_epoch());
  }
  std::vector<std::uint64_t> assigned;
  for (std::size_t i = 0; i < found[0].size(); i += 2) {
    for (const auto& of_rank : found) assigned.insert(assigned.end(), of_rank.begin() + i, of_rank.begin() + i + 2);
  }
  EXPECT_EQ(assigned, (std::vector<std::uint64_t>{expected.begin() + 20, expected.end()}));
}

TEST_F(BucketsOfFiles, AnImageThatCannotBeReadObeysThePolicy) {
  truncate("a/00003.jpg", "");          // Its size is 0 when the folder is listed.
  truncate("b/00005.jpg", "no image");  // Its header tells no size.
  const std::shared_ptr<const Source> source = open_source(images_.uri(), Split::train);
  std::filesystem::remove(images_.folder() / "train/c/00007.jpg");
  EXPECT_THAT(error_of(ErrorCode::corrupt_data,
                       [&] {
                         Loader{source, options(1), 3, true};
                       }),
              HasSubstr("a/00003.jpg"));
  auto zero = options(1);
  zero.on_corrupt = OnCorrupt::zero;
  Loader loader{source, zero, 3, true};
  EXPECT_EQ(sample_digests(loader.epoch(0)).size(), 57U);
  EXPECT_EQ(loader.corrupt_samples().size(), 3U);
  zero.world_size = 2;  // What is missing here may be there in the other rank, which would have another order.
  EXPECT_THAT(error_of(ErrorCode::not_found, [&] { Loader{source, zero, 3, true}; }), HasSubstr("c/00007.jpg"));
}

TEST_F(BucketsOfFiles, AFileAboveTheLimitOfBytesIsNotReadForItsHeader) {
  auto small = options(1);
  small.max_sample_bytes = 100;
  EXPECT_THAT(error_of(ErrorCode::unsupported,
                       [&] {
                         Loader{open_source(images_.uri(), Split::train), small, 3, true};
                       }),
              HasSubstr("data.max_sample_bytes"));
}

}  // namespace
}  // namespace headrace
