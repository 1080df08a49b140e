// The Loader on encoded images: crops, policies for corrupt samples, the cache.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/loader.h>

#include <malloc.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/base/fail.h"
#include "core/hardware/machine.h"
#include "data/loader/allocation_count.h"
#include "data/loader/detail/workspace.h"
#include "data/loader/testing.h"
#include "data/store/ram_cache.h"
#include "data/store/scratch_folder.h"
#include "data/transform/crop.h"
#include "data/transform/normalize.h"
#include "data/transform/shorthand.h"
#include "media/codec/tiny_images.h"

namespace headrace {
namespace {

using codec::Bytes;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr TinyImages::Shape kShape{};
constexpr int kClasses = 5;

// Encoded images in memory, with a hook in read().
class Files final : public Source, KnownSamples {
 public:
  explicit Files(std::int64_t size) {
    for (int i = 0; i < size; ++i) files.push_back(TinyImages::jpeg(i % kClasses, i, kShape));
    set_channels(3);
  }
  std::int64_t size() const override { return std::ssize(files); }
  const SourceInfo& info() const override { return info_; }
  std::string name(std::int64_t index) const override { return fmt::format("file[{}]", index); }
  Capabilities capabilities() const override { return {.known = this}; }
  std::int64_t label(std::int64_t index) const override { return index % kClasses; }
  // Of the images in batches; before there is a loader.
  void set_channels(int channels) {
    info_ = {.schema = Schema::image_and_labels(0, 0, channels), .num_classes = kClasses, .fingerprint = files.size()};
  }
  void read(std::int64_t index, Sample& sample) const override {
    reads.fetch_add(1);
    if (on_read) on_read(index);
    const Bytes& file = files[static_cast<std::size_t>(index)];
    std::vector<std::uint8_t>& buffer = sample.buffer(0);
    if (buffer.size() < file.size()) buffer.resize(file.size());
    std::copy(file.begin(), file.end(), buffer.begin());
    sample.image().set_file(std::span{buffer}.first(file.size()));
    sample.set_label(label(index));
  }

  std::vector<Bytes> files;
  std::function<void(std::int64_t)> on_read;  // Set while no loader runs.
  mutable std::atomic<std::int64_t> reads{0};

 private:
  SourceInfo info_;
};

std::shared_ptr<Files> files_of(std::int64_t size) {
  return std::make_shared<Files>(size);
}

// Random crops to 24 x 24, flips, and what pads them.
DataOptions photo_options(std::int64_t batch_size, std::int64_t threads) {
  DataOptions options = options_of(batch_size, threads);
  options.transform.size = 24;
  options.transform.crop = Crop::random_resized;
  options.transform.pad = 1;
  options.transform.flip_probability = 0.5;
  options.transform.mean = {0.4, 0.5, 0.6};
  options.transform.std = {0.2};
  return options;
}

DataOptions with_policy(DataOptions options, OnCorrupt policy) {
  options.on_corrupt = policy;
  return options;
}

// Everything of an epoch, sample by sample.
struct Delivered {
  std::vector<std::int64_t> indices, labels;
  std::vector<int> valid;
  std::vector<std::vector<float>> images;
};

Delivered deliver(Epoch epoch) {
  Delivered all;
  while (const auto batch = epoch.next()) {
    const auto size = static_cast<std::size_t>(batch->size());
    const auto& images = batch->field("image").bytes;
    const std::size_t floats = images.size() / size / sizeof(float);
    for (std::size_t i = 0; i < size; ++i) {
      std::int64_t label = 0;
      std::memcpy(&label, batch->field("labels").bytes.data() + i * sizeof label, sizeof label);
      std::vector<float> image(floats);
      std::memcpy(image.data(), images.data() + i * floats * sizeof(float), floats * sizeof(float));
      all.indices.push_back(batch->sample_indices()[i]);
      all.labels.push_back(label);
      all.valid.push_back(static_cast<int>(batch->field("valid").bytes[i]));
      all.images.push_back(std::move(image));
    }
  }
  return all;
}

// ---- Crops ----

// A sample by the modules' functions, one after the other on the whole image.
std::vector<float> specified(const Files& source, const DataOptions& options, std::uint64_t seed, std::int64_t epoch,
                             std::int64_t index, bool training) {
  const TransformOptions& transform = options.transform;
  codec::Decoder decoder;
  const auto info =
      decoder.open(source.files[static_cast<std::size_t>(index)], stored_shape(source.info().schema).channels);
  Bytes whole(static_cast<std::size_t>(info.height * info.width * info.channels));
  decoder.decode({0, 0, info.height, info.width}, whole);
  SampleRandom random{seed, epoch, index};
  const auto window = transform::choose_crop(transform::crop_of(transform, training), info.height, info.width, random);
  const auto rows = transform::needed(window.vertical), columns = transform::needed(window.horizontal);
  Bytes box;
  for (int y = rows.begin; y < rows.begin + rows.size; ++y) {
    const auto row = whole.begin() + (y * info.width + columns.begin) * info.channels;
    box.insert(box.end(), row, row + columns.size * info.channels);
  }
  const int side = static_cast<int>(transform.size);
  Bytes resized(static_cast<std::size_t>(side * side * info.channels));
  transform::Resizer{}.resize(box, window.vertical, window.horizontal, info.channels, resized);
  transform::NormalizeGeometry geometry{side, side, info.channels, 0, 0, false};
  if (training) {
    const auto places = static_cast<std::uint32_t>(2 * transform.pad + 1);
    geometry.offset_y = static_cast<int>(random.below(places)) - static_cast<int>(transform.pad);
    geometry.offset_x = static_cast<int>(random.below(places)) - static_cast<int>(transform.pad);
    geometry.flip = random.uniform() < transform.flip_probability;
  }
  const auto table = transform::make_normalize_table(transform.mean, transform.std, info.channels);
  std::vector<float> out(resized.size());
  transform::normalize(resized, geometry, {PixelType::f32, PixelLayout::nchw, &table},
                       std::as_writable_bytes(std::span{out}));
  return out;
}

TEST(PhotoLoader, AnImageIsDecodedCroppedResizedPaddedFlippedAndNormalized) {
  for (const int channels : {3, 1}) {
    const auto source = files_of(40);
    source->set_channels(channels);
    for (const bool training : {true, false}) {
      DataOptions options = photo_options(16, 2);
      options.transform.mean = {0.4};
      Loader loader{source, options, 7, training};
      EXPECT_EQ(loader.channels(), channels);
      EXPECT_EQ(loader.height(), 24);
      EXPECT_EQ(loader.width(), 24);
      EXPECT_THAT(loader.epoch(3).next()->field("image").shape, ElementsAre(16, channels, 24, 24));
      const Delivered found = deliver(loader.epoch(3));
      ASSERT_EQ(found.indices.size(), 40U);
      for (std::size_t i = 0; i < 40; ++i) {
        EXPECT_EQ(found.images[i], specified(*source, options, 7, 3, found.indices[i], training));
        EXPECT_EQ(found.labels[i], found.indices[i] % kClasses);
      }
      EXPECT_THAT(found.valid, Each(1));
    }
  }
}

// The chain SmallestMaxSize(256), RandomCrop(224, 224), Normalize, to planes of float: the crop is cut here out of the
// whole image, resized to 256 x 426.
TEST(PhotoLoader, TheClassificationChainResizesTheShorterSideAndCropsAtRandom) {
  const auto source = files_of(6);
  const codec::Image photograph = codec::photograph(300, 500, 3, 5);
  source->files.assign(6, codec::jpeg_of(photograph, {}));
  DataOptions options = options_of(6, 2);
  options.transform.size = 224;
  options.transform.resize = 256;
  options.transform.crop = Crop::random;
  options.transform.mean = {0.485, 0.456, 0.406};
  options.transform.std = {0.229, 0.224, 0.225};
  Loader loader{source, options, 7, true};
  const Batch batch = loader.epoch(0).next().value();
  const BatchField& images = batch.field("image");
  EXPECT_EQ(images.dtype, DType::f32);
  EXPECT_THAT(images.shape, ElementsAre(6, 3, 224, 224));
  EXPECT_THAT(images.strides, ElementsAre(3 * 224 * 224, 224 * 224, 224, 1));

  Bytes whole(std::size_t{300} * 500 * 3), resized(std::size_t{256} * 426 * 3);
  codec::Decoder decoder;
  decoder.open(source->files[0], 3);
  decoder.decode({0, 0, 300, 500}, whole);
  transform::Resizer{}.resize(whole, {0, 300, 256, 0, 256}, {0, 500, 426, 0, 426}, 3, resized);
  std::set<std::pair<int, int>> places;
  std::vector<float> found(std::size_t{3} * 224 * 224);
  for (std::size_t i = 0; i < 6; ++i) {
    std::memcpy(found.data(), images.bytes.data() + i * found.size() * sizeof(float), found.size() * sizeof(float));
    SampleRandom random{7, 0, batch.sample_indices()[i]};
    const auto window =
        transform::choose_crop(transform::crop_of(options.transform, /*training=*/true), 300, 500, random);
    const int top = window.vertical.out_begin, left = window.horizontal.out_begin;
    places.emplace(top, left);
    for (std::size_t at = 0; at < found.size(); ++at) {
      const std::size_t c = at / (224 * 224), y = at / 224 % 224 + top, x = at % 224 + left;
      const float scaled = static_cast<float>(resized[(y * 426 + x) * 3 + c]) / 255.0F;
      const float wanted =
          (scaled - static_cast<float>(options.transform.mean[c])) / static_cast<float>(options.transform.std[c]);
      // One level of 255: where a sum lies between two, more outputs may round it the other way.
      const double level = 1 / (255 * options.transform.std[c]);
      ASSERT_NEAR(found[at], wanted, 1.001 * level) << "sample " << i << ", channel " << c << " at " << y << ", " << x;
    }
  }
  EXPECT_GT(places.size(), 1U);
}

TEST(PhotoLoader, EveryImageOfAHundredBatchesOfMixedSizesHasTheSizeAskedFor) {
  const auto source = files_of(200);  // Of 17 heights and widths.
  for (const Crop crop : {Crop::center, Crop::random, Crop::random_resized}) {
    DataOptions options = options_of(2, 2);
    options.transform.size = 40;
    options.transform.crop = crop;
    Loader loader{source, options, 7, true};
    std::int64_t batches = 0;
    Epoch epoch = loader.epoch(0);
    while (const auto batch = epoch.next()) {
      ++batches;
      ASSERT_THAT(batch->field("image").shape, ElementsAre(2, 3, 40, 40));
      ASSERT_EQ(batch->field("image").bytes.size(), 2U * 3 * 40 * 40 * sizeof(float));
    }
    EXPECT_EQ(batches, 100);
  }
}

// float32 in planes is the specification of the other forms.
TEST(PhotoLoader, EveryTypeAndLayoutHasTheSameValues) {
  const auto source = files_of(24);
  source->files[7].resize(10);
  DataOptions options = with_policy(photo_options(24, 2), OnCorrupt::zero);
  Loader reference{source, options, 7, true};
  const Delivered wanted = deliver(reference.epoch(0));
  const auto table = transform::make_normalize_table(options.transform.mean, options.transform.std, 3);
  for (const PixelType type : {PixelType::f32, PixelType::bf16, PixelType::u8}) {
    for (const PixelLayout layout : {PixelLayout::nchw, PixelLayout::nhwc}) {
      DataOptions other = options;
      other.transform.dtype = type;
      other.transform.layout = layout;
      if (type == PixelType::u8) {
        EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                             [&] {
                               Loader{source, other, 7, true};
                             }),
                    HasSubstr("data.transform.mean and std need a float"));
        other.transform.mean = {0.0};
        other.transform.std = {1.0};
      }
      Loader loader{source, other, 7, true};
      const Batch batch = loader.epoch(0).next().value();
      const BatchField& images = batch.field("image");
      EXPECT_THAT(images.shape, ElementsAre(24, 3, 24, 24));
      const std::size_t bytes = transform::bytes_of(type);
      ASSERT_EQ(images.bytes.size(), 24U * 3 * 24 * 24 * bytes);
      for (std::size_t i = 0; i < wanted.images.size(); ++i) {
        if (wanted.valid[i] == 0) continue;  // Zeros, whatever they are.
        for (std::size_t value = 0; value < 3 * 24 * 24; ++value) {
          const std::size_t c = value / 576, y = value / 24 % 24, x = value % 24;
          const auto stride = [&](std::size_t axis) { return static_cast<std::size_t>(images.strides[axis]); };
          const std::byte* at =
              images.bytes.data() + (i * stride(0) + c * stride(1) + y * stride(2) + x * stride(3)) * bytes;
          float found = 0;
          if (type == PixelType::u8) {
            found = table.value[c][static_cast<std::size_t>(*at)];
          } else {
            std::memcpy(reinterpret_cast<std::byte*>(&found) + sizeof found - bytes, at, bytes);
          }
          // bfloat16 has 8 bits of precision.
          const float allowed = type == PixelType::bf16 ? std::abs(wanted.images[i][value]) / 256 : 0;
          ASSERT_NEAR(found, wanted.images[i][value], allowed) << i << ": " << c << ", " << y << ", " << x;
        }
      }
    }
  }
}

// What lies in memory as pixels is cropped and resized by the same code.
TEST(PhotoLoader, PixelsInMemoryAreResizedToo) {
  class Pixels final : public Source {
   public:
    Pixels() : image_(codec::photograph(30, 20, 1, 3)) {}
    std::int64_t size() const override { return 6; }
    const SourceInfo& info() const override { return info_; }
    std::string name(std::int64_t index) const override { return fmt::format("pixels[{}]", index); }
    void read(std::int64_t, Sample& sample) const override {
      sample.image().set_pixels(image_.pixels, 30, 20, 1);
      sample.set_label(0);
    }
    codec::Image image_;
    const SourceInfo info_{.schema = Schema::image_and_labels(30, 20, 1), .num_classes = 1};
  };
  const auto source = std::make_shared<Pixels>();
  Bytes file = codec::png_of(30, 20, source->image_.pixels, {.color = PNG_COLOR_TYPE_GRAY});
  const auto encoded = files_of(6);
  encoded->set_channels(1);
  for (Bytes& each : encoded->files) each = file;
  DataOptions options = photo_options(6, 1);
  options.transform.mean = {0.4};
  Loader ours{source, options, 7, true}, theirs{encoded, options, 7, true};
  EXPECT_EQ(deliver(ours.epoch(0)).images, deliver(theirs.epoch(0)).images);
}

TEST(PhotoLoader, ImagesOfManySizesNeedASize) {
  const auto source = files_of(4);
  DataOptions options = options_of(4, 1);
  const auto refusal = [&] { return error_of(ErrorCode::invalid_argument, [&] { Loader{source, options, 1, true}; }); };
  EXPECT_THAT(refusal(), HasSubstr("data.transform.size"));
  options.transform.size = 24;
  source->set_channels(4);
  EXPECT_THAT(refusal(), HasSubstr("4 channels"));
}

TEST(PhotoLoader, AFolderOfImagesIsLoaded) {
  const TinyImages images{{.classes = 3, .count = 8}};
  Loader train{open_source(images.uri(), Split::train), photo_options(8, 2), 1, true};
  Loader test{open_source(images.uri(), Split::test), photo_options(8, 2), 1, false};
  EXPECT_EQ(deliver(train.epoch(0)).indices.size(), 24U);
  const Delivered found = deliver(test.epoch(0));
  EXPECT_THAT(found.labels, ElementsAre(0, 0, 1, 1, 2, 2));
  // The label shows in the first channel: that is what training can learn.
  const auto mean = [&](std::size_t i) {
    const auto& image = found.images[i];
    return std::accumulate(image.begin(), image.begin() + 24 * 24, 0.0F) / (24 * 24);
  };
  EXPECT_LT(mean(0) + 1, mean(2));
  EXPECT_LT(mean(3) + 1, mean(5));
}

// ---- The cache ----

DataOptions cached(DataOptions options, Cache cache = Cache::decoded) {
  options.cache = cache;
  return options;
}

TEST(PhotoLoader, TheCacheChangesNoByteWhateverTheThreadsColdOrWarm) {
  const auto source = files_of(107);
  source->files[11] = TinyImages::jpeg(1, 11, {.height = 200, .width = 200});
  source->files[11].resize(source->files[11].size() * 3 / 4);  // Crops of its upper part are sound.
  std::vector<std::vector<std::uint64_t>> expected;
  for (const Cache cache : {Cache::none, Cache::decoded, Cache::encoded}) {
    for (const std::int64_t threads : {0, 1, 2, 7}) {
      DataOptions options = with_policy(photo_options(32, threads), OnCorrupt::replace);
      options.cache = cache;
      options.transform.scale = {0.08, 0.3};
      Loader loader{source, options, 7, true};
      for (std::size_t epoch = 0; epoch < 12; ++epoch) {  // Cold, then warm.
        const auto found = digests(loader.epoch(static_cast<std::int64_t>(epoch)));
        if (expected.size() == epoch) expected.push_back(found);
        EXPECT_EQ(found, expected[epoch]) << threads << " threads, epoch " << epoch;
      }
      const LoaderStatistics statistics = loader.statistics();
      EXPECT_GT(statistics.corrupt, 0);
      EXPECT_LT(statistics.corrupt, 12);  // Sometimes the crop was sound.
      EXPECT_EQ(statistics.cache_hits > 0, cache != Cache::none);
    }
  }
}

TEST(PhotoLoader, TheCacheIsSwitchedWithinAnEpochWithoutChangingAByte) {
  const auto source = files_of(300);
  Loader reference{source, photo_options(16, 0), 9, true};
  Loader loader{source, photo_options(16, 2), 9, true};
  std::size_t switched = 0;
  for (std::int64_t round = 0; round < 3; ++round) {
    const auto expected = digests(reference.epoch(round));
    std::vector<std::uint64_t> found;
    auto epoch = loader.epoch(round);
    while (const auto batch = epoch.next()) {
      found.push_back(digest(*batch));
      if (found.size() % 3 == 0)
        loader.set_cache(std::array{Cache::decoded, Cache::encoded, Cache::none}[switched++ % 3]);
    }
    EXPECT_EQ(found, expected);
  }
  EXPECT_GT(loader.statistics().cache_misses, 0);
}

TEST(PhotoLoader, TheCacheIsFilledOnceAndSavesReadingAndDecoding) {
  const auto source = files_of(100);
  Loader loader{source, cached(photo_options(10, 2)), 9, true};
  EXPECT_EQ(deliver(loader.epoch(0)).indices.size(), 100U);
  const LoaderStatistics cold = loader.statistics();
  EXPECT_EQ(source->reads, 100);
  EXPECT_EQ(cold.cache_misses, 100);
  EXPECT_EQ(cold.cache_hits, 0);
  EXPECT_GT(cold.decode_ns, 0);
  EXPECT_GE(cold.cache_bytes, 100 * kShape.height * kShape.width * 3);
  EXPECT_EQ(deliver(loader.epoch(1)).indices.size(), 100U);
  const LoaderStatistics warm = loader.statistics();
  EXPECT_EQ(source->reads, 100);
  EXPECT_EQ(warm.cache_misses, 100);
  EXPECT_EQ(warm.cache_hits, 100);
  EXPECT_EQ(warm.decode_ns, cold.decode_ns);
  EXPECT_EQ(warm.cache_bytes, cold.cache_bytes);
  loader.set_cache(Cache::none);
  EXPECT_EQ(loader.statistics().cache_bytes, 0);
  EXPECT_EQ(deliver(loader.epoch(2)).indices.size(), 100U);
  EXPECT_EQ(source->reads, 200);
}

TEST(PhotoLoader, KeptAsTheyWereReadFilesAreReadOnceAndDecodedEachTime) {
  const auto source = files_of(100);
  Loader loader{source, cached(photo_options(10, 2), Cache::encoded), 9, true};
  Loader plain{source, photo_options(10, 0), 9, true};
  EXPECT_EQ(loader.applied_cache().applied, "encoded");
  EXPECT_EQ(digests(loader.epoch(0)), digests(plain.epoch(0)));
  source->reads = 0;
  EXPECT_EQ(digests(loader.epoch(1)).size(), 10U);
  EXPECT_EQ(source->reads, 0);
  const LoaderStatistics warm = loader.statistics();
  EXPECT_EQ(warm.cache_hits, 100);
  EXPECT_EQ(warm.decoded, 200);
  std::int64_t bytes = 0;
  for (const auto& file : source->files) bytes += std::ssize(file);
  EXPECT_GE(warm.cache_bytes, bytes);
  EXPECT_LE(warm.cache_bytes, bytes + 100 * 128);
  loader.set_cache(Cache::decoded);  // Its memory goes, and another begins empty.
  EXPECT_EQ(digests(loader.epoch(2)), digests(plain.epoch(2)));
  EXPECT_EQ(loader.statistics().cache_hits, 100);
  EXPECT_EQ(loader.applied_cache().applied, "decoded");
}

TEST(PhotoLoader, AnAutomaticCacheKeepsFilesWhereImagesDoNotFit) {
  const auto source = files_of(150);  // 1.4 MB of pixels.
  source->on_read = [](std::int64_t) { std::this_thread::sleep_for(std::chrono::milliseconds(10)); };
  DataOptions options = cached(photo_options(5, 1), Cache::automatic);
  options.cache_mib = 1;
  Loader loader{source, options, 9, true}, plain{files_of(150), photo_options(5, 1), 9, true};
  const auto is_judged = [&] { return !loader.decisions().empty() && loader.decisions().front().after.has_value(); };
  for (std::int64_t epoch = 0; epoch < 100 && !is_judged(); ++epoch) {
    EXPECT_EQ(digests(loader.epoch(epoch)), digests(plain.epoch(epoch)));
  }
  ASSERT_TRUE(is_judged());
  EXPECT_EQ(loader.applied_cache().applied, "encoded");
  EXPECT_FALSE(loader.decisions().front().rolled_back);
  EXPECT_GT(loader.decisions().front().after.value(), 2 * loader.decisions().front().before);
}

// Two at once would not fit. While the consumer is slow, files are enough.
TEST(PhotoLoader, AnAutomaticCacheOfFilesGivesWayToOneOfImagesWhereOnlyOneFits) {
  const auto source = files_of(30);
  source->on_read = [](std::int64_t) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  DataOptions options = cached(photo_options(5, 1), Cache::automatic);
  options.cache_mib = 300;
  const std::int64_t limit = resident_memory().value() + RamCache::promised_bytes() + (std::int64_t{400} << 20);
  Loader loader{source, options, 9, true, limit};
  for (int epoch = 0; epoch < 2000 && loader.applied_cache().applied != "decoded"; ++epoch) {
    Epoch batches = loader.next_epoch();
    while (const auto batch = batches.next()) {
      if (loader.applied_cache().applied == "none") std::this_thread::sleep_for(std::chrono::milliseconds(6));
    }
  }
  EXPECT_EQ(loader.applied_cache().applied, "decoded");
  EXPECT_EQ(loader.applied_cache().reason.find("memory limit"), std::string::npos);
}

TEST(PhotoLoader, AnAutomaticCacheThatCannotBeHadLeavesTheOneThatIsThere) {
  const auto source = files_of(30);
  source->on_read = [](std::int64_t) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  const std::int64_t limit = resident_memory().value() + RamCache::promised_bytes() + (std::int64_t{128} << 20);
  Loader loader{source, cached(photo_options(5, 1), Cache::automatic), 9, true, limit};
  for (int epoch = 0; epoch < 100 && loader.applied_cache().applied == "none"; ++epoch) order(loader.next_epoch());
  const std::string chosen = loader.applied_cache().applied;
  ASSERT_NE(chosen, "none");
  const Cache other = chosen == "decoded" ? Cache::encoded : Cache::decoded;
  loader.set_cache(other);
  const auto crowd = static_cast<std::size_t>(2 * loader.cache_bytes_max() + (std::int64_t{16} << 20));
  const std::vector<char> neighbour(crowd, 1);
  ASSERT_EQ(loader.cache_bytes_max(), 0);
  loader.set_cache(Cache::automatic);
  EXPECT_EQ(loader.applied_cache().requested, "auto");
  EXPECT_EQ(loader.applied_cache().applied, choice_name(other));
  EXPECT_EQ(loader.applied_cache().reason.find("memory limit"), std::string::npos);
  loader.set_cache(chosen == "decoded" ? Cache::decoded : Cache::encoded);  // By name it is that or none.
  EXPECT_EQ(loader.applied_cache().applied, "none");
  EXPECT_THAT(loader.applied_cache().reason, HasSubstr("nothing is left"));
  EXPECT_EQ(neighbour.back(), 1);
}

// Images that a program makes, as a user's own decoder does.
// ---- Decoded smaller ----

// Crops of them are 8 to 30 times as large as the batch's images, or less.
std::shared_ptr<Files> large_files() {
  const auto source = files_of(8);
  for (std::size_t i = 0; i < source->files.size(); ++i) {
    const int side = i % 4 == 3 ? 40 : 500;
    const auto image = codec::photograph(side, side + 100, 3, static_cast<unsigned>(i));
    source->files[i] = codec::jpeg_of(image, {.progressive = i == 2});
  }
  source->files[5] = codec::png_of(300, 300, codec::photograph(300, 300, 3, 5).pixels, {});
  return source;
}

DataOptions scaled(DataOptions options) {
  options.scale_decode = true;
  options.on_corrupt = OnCorrupt::fail;
  return options;
}

TEST(ScaledDecode, GivesTheSameBytesForAnyThreadCountWithAndWithoutACache) {
  const auto source = large_files();
  for (const bool training : {true, false}) {
    Loader reference{source, scaled(photo_options(3, 0)), 9, training};
    const auto first = digests(reference.epoch(0)), second = digests(reference.epoch(1)),
               third = digests(reference.epoch(2));
    for (const std::int64_t threads : {0, 1, 2, 7}) {
      for (const Cache cache : {Cache::none, Cache::decoded, Cache::encoded}) {
        const DataOptions options = scaled(cached(photo_options(3, threads), cache));
        Loader loader{source, options, 9, training};
        EXPECT_EQ(digests(loader.epoch(0)), first);
        EXPECT_EQ(digests(loader.epoch(1)), second);
        EXPECT_EQ(digests(loader.epoch(2)), third);
        EXPECT_EQ(digests(loader.epoch(0)), first);
        if (cache != Cache::none) {
          EXPECT_GE(loader.statistics().cache_hits, 8);
        }
      }
    }
  }
}

// Those of an image decoded as it is, but for what a mean of pixels loses. Small images and PNG are not scaled.
TEST(ScaledDecode, IsTheSameImageAndTheSameWhereNothingIsScaled) {
  const auto source = large_files();
  DataOptions options = photo_options(8, 2);
  options.transform.dtype = PixelType::f32;
  options.transform.mean = {0.0};
  options.transform.std = {1.0};
  Loader plain{source, options, 9, false}, shrunk{source, scaled(options), 9, false};
  const Delivered wanted = deliver(plain.epoch(0)), found = deliver(shrunk.epoch(0));
  ASSERT_EQ(found.indices, wanted.indices);
  for (std::size_t i = 0; i < 8; ++i) {
    double squares = 0;
    for (std::size_t j = 0; j < found.images[i].size(); ++j) {
      squares += std::pow(static_cast<double>(found.images[i][j]) - static_cast<double>(wanted.images[i][j]), 2);
    }
    const bool is_scaled = i % 4 != 3 && i != 5;
    EXPECT_EQ(squares > 0, is_scaled) << i;
    EXPECT_LT(squares / static_cast<double>(found.images[i].size()), 1e-3) << i;  // 30 dB; half of it is noise.
  }
}

TEST(ScaledDecode, AStateOfItIsNotThatOfALoaderWithoutIt) {
  const auto source = large_files();
  Loader plain{source, photo_options(3, 0), 9, true}, shrunk{source, scaled(photo_options(3, 0)), 9, true};
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { plain.restore(shrunk.state()); }),
              HasSubstr("data.scale_decode"));
}

class MadeImages final : public Source {
 public:
  explicit MadeImages(bool of_one_size) : of_one_size_(of_one_size) {
    const Schema schema = Schema::image_and_labels(of_one_size ? 40 : 0, of_one_size ? 30 : 0, 3);
    info_ = {.schema = schema, .num_classes = 3};
  }
  std::int64_t size() const override { return 24; }
  const SourceInfo& info() const override { return info_; }
  std::string name(std::int64_t index) const override { return fmt::format("made[{}]", index); }
  void read(std::int64_t index, Sample& sample) const override {
    ++reads;
    const int height = of_one_size_ ? 40 : 40 + static_cast<int>(index);
    sample.buffer(0) = codec::photograph(height, 30, 3, static_cast<unsigned>(index)).pixels;
    sample.image().set_pixels(sample.buffer(0), height, 30, 3);
    sample.set_label(index % 3);
  }

  mutable std::atomic<int> reads{0};

 private:
  const bool of_one_size_;
  SourceInfo info_;
};

TEST(PhotoLoader, PixelsThatASourceMakesAreKeptAsDecodedImagesAre) {
  for (const bool of_one_size : {true, false}) {
    const auto made = std::make_shared<MadeImages>(of_one_size), again = std::make_shared<MadeImages>(of_one_size);
    Loader loader{made, cached(photo_options(5, 2)), 9, true}, reference{again, photo_options(5, 2), 9, true};
    EXPECT_EQ(loader.applied_cache().applied, "decoded");
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      EXPECT_EQ(digests(loader.epoch(epoch)), digests(reference.epoch(epoch)));
    }
    EXPECT_EQ(made->reads, 24);
    EXPECT_EQ(again->reads, 3 * 24);
    EXPECT_EQ(loader.statistics().cache_hits, 2 * 24);
  }
}

TEST(PhotoLoader, AFullCacheKeepsWhatItHasAndDecodesTheRestAnew) {
  const auto source = files_of(200);  // Some 2.3 MB decoded.
  DataOptions options = cached(photo_options(10, 2));
  options.cache_mib = 1;
  Loader loader{source, options, 9, true}, reference{source, photo_options(10, 2), 9, true};
  std::vector<std::int64_t> hits;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    EXPECT_EQ(digests(loader.epoch(epoch)), digests(reference.epoch(epoch)));
    hits.push_back(loader.statistics().cache_hits);
  }
  EXPECT_EQ(hits[0], 0);
  EXPECT_GT(hits[1], 60);
  EXPECT_LT(hits[1], 140);
  EXPECT_EQ(hits[2], 2 * hits[1]);
  EXPECT_LE(loader.statistics().cache_bytes, 1 << 20);
}

TEST(PhotoLoader, CachesShareWhatTheMemoryLimitLeaves) {
  const auto source = files_of(20);
  const std::int64_t promised = RamCache::promised_bytes();
  constexpr std::int64_t kFree = std::int64_t{400} << 20;
  const std::int64_t limit = resident_memory().value() + promised + kFree;
  const auto near = [](std::int64_t bytes, std::int64_t wanted) { return std::abs(bytes - wanted) < kFree / 10; };
  {
    Loader first{source, cached(photo_options(10, 1)), 9, true, limit};
    EXPECT_TRUE(near(RamCache::promised_bytes() - promised, kFree / 2));
    Loader second{source, cached(photo_options(10, 1)), 9, false, limit};
    EXPECT_TRUE(near(RamCache::promised_bytes() - promised, kFree * 3 / 4));
    DataOptions options = cached(photo_options(10, 1));
    options.cache_mib = 300;
    EXPECT_THAT(error_of(ErrorCode::out_of_memory,
                         [&] {
                           Loader{source, options, 9, true, limit};
                         }),
                AllOf(HasSubstr("data.cache_mib asks for 314572800 bytes"), HasSubstr(std::to_string(limit))));
  }
  EXPECT_EQ(RamCache::promised_bytes(), promised);
  DataOptions options = photo_options(10, 1);
  options.cache_mib = 1000;
  Loader loader{source, options, 9, true, limit};
  EXPECT_THROW(loader.set_cache(Cache::decoded), Error);
  EXPECT_EQ(loader.applied_cache().applied, "none");
  EXPECT_EQ(deliver(loader.epoch(0)).indices.size(), 20U);
}

TEST(PhotoLoader, ACacheOfAnotherFormHasTheBytesOfTheOneThatItReplaces) {
  const auto source = files_of(20);
  const std::int64_t promised = RamCache::promised_bytes();
  constexpr std::int64_t kFree = std::int64_t{400} << 20, kBound = std::int64_t{300} << 20;
  const std::int64_t limit = resident_memory().value() + promised + kFree;
  const auto grown = [promised] { return RamCache::promised_bytes() - promised; };
  {
    Loader half{source, cached(photo_options(10, 1)), 9, true, limit};
    for (const Cache form : {Cache::encoded, Cache::decoded, Cache::encoded}) {
      half.set_cache(form);
      EXPECT_LT(std::abs(grown() - kFree / 2), kFree / 10) << choice_name(form);
      EXPECT_LT(std::abs(half.cache_bytes_max() - kFree / 2), kFree / 10) << choice_name(form);
    }
  }
  DataOptions options = cached(photo_options(10, 1));
  options.cache_mib = kBound >> 20;
  Loader loader{source, options, 9, true, limit};
  order(loader.epoch(0));
  for (const Cache form : {Cache::encoded, Cache::decoded}) {
    loader.set_cache(form);
    EXPECT_EQ(loader.applied_cache().applied, choice_name(form));
    EXPECT_LE(grown(), kBound);
    EXPECT_GT(grown(), kBound / 2);
    order(loader.epoch(1));
  }
  loader.set_cache(Cache::none, /*keep=*/true);
  loader.set_cache(Cache::automatic, /*keep=*/true);  // What is kept goes when it places one.
  EXPECT_EQ(loader.applied_cache().requested, "auto");
  loader.set_cache(Cache::decoded, /*keep=*/true);
  EXPECT_GE(loader.statistics().cache_bytes, 20 * kShape.height * kShape.width * 3);
  // The one that is kept goes on holding its memory.
  EXPECT_THROW(loader.set_cache(Cache::encoded, /*keep=*/true), Error);
  EXPECT_EQ(loader.applied_cache().applied, "decoded");
}

TEST(PhotoLoader, ACacheThatIsNotOnSaysWhy) {
  Loader plain{files_of(20), photo_options(10, 1), 9, true};
  EXPECT_EQ(plain.applied_cache().requested, "none");
  EXPECT_EQ(plain.applied_cache().applied, "none");
  EXPECT_EQ(plain.applied_cache().reason, "");
  plain.set_cache(Cache::decoded);
  EXPECT_EQ(plain.applied_cache().key, "data.cache");
  EXPECT_EQ(plain.applied_cache().requested, "decoded");
  EXPECT_EQ(plain.applied_cache().applied, "decoded");
  const std::int64_t resident = resident_memory().value();
  Loader crowded{files_of(20), cached(photo_options(10, 1)), 9, true, resident / 2};
  EXPECT_EQ(crowded.applied_cache().requested, "decoded");
  EXPECT_EQ(crowded.applied_cache().applied, "none");
  EXPECT_THAT(crowded.applied_cache().reason, HasSubstr("nothing is left"));
  const std::string fashion = "idx:/usr/share/datasets/fashion-mnist";
  Loader pixels{open_source(fashion, Split::test), cached(options_of(100, 1)), 9, true};
  EXPECT_EQ(pixels.applied_cache().applied, "none");
  EXPECT_THAT(pixels.applied_cache().reason, HasSubstr("in memory already"));
  EXPECT_EQ(order(pixels.epoch(0)).size(), 10'000U);
  EXPECT_EQ(pixels.statistics().cache_misses, 0);
  const std::int64_t promised = RamCache::promised_bytes();
  Loader made{std::make_shared<MadeImages>(/*of_one_size=*/true), cached(photo_options(5, 1)), 9, true};
  EXPECT_EQ(made.applied_cache().applied, "decoded");
  made.set_cache(Cache::encoded);
  EXPECT_EQ(made.applied_cache().applied, "none");
  EXPECT_THAT(made.applied_cache().reason, HasSubstr("the source gives pixels, no files"));
  EXPECT_EQ(RamCache::promised_bytes(), promised);
}

// ---- Corrupt samples ----

// Which samples of a source are corrupt, and what for.
const std::vector<std::int64_t> kBad{3, 17, 40, 41, 77};

std::shared_ptr<Files> files_with_bad_ones(std::int64_t size) {
  const auto source = files_of(size);
  source->files[3].resize(source->files[3].size() / 2);
  source->files[17] = Bytes{'h', 'e', 'l', 'l', 'o'};
  source->files[40].clear();
  source->files[41] = codec::png_of(1, 1, Bytes{1, 2, 3}, {});
  source->files[41].resize(40);
  source->on_read = [](std::int64_t index) {
    if (index == 77) fail(ErrorCode::not_found, "fake: file[77]: No such file");
  };
  return source;
}

std::vector<std::int64_t> indices_of(const std::vector<CorruptSample>& samples) {
  std::vector<std::int64_t> all;
  for (const CorruptSample& sample : samples) all.push_back(sample.index);
  return all;
}

// Evaluation reads whole images' centers here: a crop that spares the damage would be sound.
DataOptions whole_images(std::int64_t threads) {
  DataOptions options = photo_options(16, threads);
  options.transform.crop = Crop::center;
  options.transform.resize = 24;
  return options;
}

TEST(OnCorrupt, FailNamesTheFirstCorruptSampleAfterTheBatchesBeforeIt) {
  const auto source = files_with_bad_ones(100);
  source->files[3] = source->files[4];
  for (const std::int64_t threads : {0, 1, 7}) {
    Loader loader{source, whole_images(threads), 1, false};
    auto epoch = loader.epoch(0);
    EXPECT_TRUE(epoch.next().has_value());
    const std::string message = error_of(ErrorCode::corrupt_data, [&] { epoch.next(); });
    EXPECT_THAT(message, AllOf(HasSubstr("data: file[17]: "), HasSubstr("\"hello\"")));
    EXPECT_EQ(message.find('\n'), std::string::npos);
    EXPECT_FALSE(epoch.next().has_value());
    EXPECT_THAT(loader.corrupt_samples(), IsEmpty());
  }
}

TEST(OnCorrupt, ReplaceTakesAnotherSampleDrawnFromTheSeed) {
  const auto source = files_with_bad_ones(100);
  DataOptions options = with_policy(whole_images(2), OnCorrupt::replace);
  Loader clean{files_of(100), options, 5, true};
  const Delivered wanted = deliver(clean.epoch(2));
  std::vector<std::vector<std::uint64_t>> expected;
  for (const std::int64_t threads : {0, 1, 2, 7}) {
    options.num_workers = threads;
    Loader loader{source, options, 5, true};
    const Delivered found = deliver(loader.epoch(2));
    ASSERT_EQ(found.indices.size(), 100U);
    EXPECT_THAT(found.valid, Each(1));
    for (std::size_t i = 0; i < 100; ++i) {
      const bool bad = std::count(kBad.begin(), kBad.end(), wanted.indices[i]) > 0;
      EXPECT_EQ(found.indices[i] != wanted.indices[i], bad);
      EXPECT_EQ(std::count(kBad.begin(), kBad.end(), found.indices[i]), 0);
      EXPECT_EQ(found.labels[i], found.indices[i] % kClasses);
      if (!bad) {
        EXPECT_EQ(found.images[i], wanted.images[i]);
      }
    }
    EXPECT_EQ(indices_of(loader.corrupt_samples()), kBad);
    EXPECT_GE(loader.statistics().corrupt, 5);
    EXPECT_EQ(loader.statistics().samples, 100);
    expected.push_back(digests(loader.epoch(2)));
    EXPECT_EQ(expected.back(), expected.front());
    EXPECT_EQ(indices_of(loader.corrupt_samples()), kBad);  // Each once.
  }
  Loader loader{source, options, 5, true};
  const auto in_place_of = [&](std::int64_t epoch) {
    const Delivered plain = deliver(clean.epoch(epoch)), found = deliver(loader.epoch(epoch));
    std::vector<std::int64_t> drawn;
    for (const std::int64_t bad : kBad) {
      const auto at = std::find(plain.indices.begin(), plain.indices.end(), bad) - plain.indices.begin();
      drawn.push_back(found.indices[static_cast<std::size_t>(at)]);
    }
    return drawn;
  };
  EXPECT_NE(in_place_of(0), in_place_of(1));
}

TEST(OnCorrupt, CorruptSamplesTellNameAndReason) {
  const auto source = files_with_bad_ones(100);
  Loader loader{source, with_policy(whole_images(2), OnCorrupt::zero), 5, true};
  deliver(loader.epoch(0));
  const auto found = loader.corrupt_samples();
  ASSERT_EQ(indices_of(found), kBad);
  EXPECT_EQ(found[1].name, "file[17]");
  EXPECT_THAT(found[0].reason, HasSubstr("data: file[3]: "));
  EXPECT_THAT(found[2].reason, HasSubstr("0 bytes"));
  EXPECT_EQ(found[4].reason, "fake: file[77]: No such file");
}

TEST(OnCorrupt, ZeroKeepsThePlaceAndTheLabelAndDoesNotCount) {
  const auto source = files_with_bad_ones(100);
  for (const bool training : {true, false}) {
    // In evaluation another sample would count twice, so replace is zero there.
    for (const OnCorrupt policy : {OnCorrupt::zero, OnCorrupt::replace}) {
      if (training && policy == OnCorrupt::replace) continue;
      Loader loader{source, with_policy(whole_images(2), policy), 5, training};
      const Delivered found = deliver(loader.epoch(0));
      for (std::size_t i = 0; i < 100; ++i) {
        const bool bad = std::count(kBad.begin(), kBad.end(), found.indices[i]) > 0;
        EXPECT_EQ(found.valid[i], bad ? 0 : 1);
        EXPECT_EQ(found.labels[i], found.indices[i] % kClasses);
        const bool zeros = std::all_of(found.images[i].begin(), found.images[i].end(), [](float v) { return v == 0; });
        EXPECT_EQ(zeros, bad);
      }
      EXPECT_EQ(std::set<std::int64_t>(found.indices.begin(), found.indices.end()).size(), 100U);
      EXPECT_EQ(loader.statistics().corrupt, 5);
      EXPECT_EQ(loader.statistics().samples, 100);
    }
  }
}

TEST(OnCorrupt, APlaceTurnsFromCorruptToSoundWithoutATrace) {
  const auto source = files_of(20);
  std::atomic<bool> broken = true;
  source->on_read = [&](std::int64_t index) {
    if (broken && index == 4) fail(ErrorCode::io, "fake: file[4]: Input/output error");
  };
  Loader loader{source, with_policy(whole_images(1), OnCorrupt::zero), 5, false};
  EXPECT_EQ(deliver(loader.epoch(0)).valid[4], 0);
  broken = false;
  const Delivered found = deliver(loader.epoch(0));
  EXPECT_THAT(found.valid, Each(1));
  EXPECT_EQ(found.images[4], specified(*source, whole_images(1), 5, 0, 4, false));
}

TEST(OnCorrupt, WhatIsNotTheSamplesFaultEndsTheEpochWhateverThePolicy) {
  for (const OnCorrupt policy : {OnCorrupt::replace, OnCorrupt::zero}) {
    for (const std::int64_t threads : {0, 2}) {
      const auto source = files_of(50);
      Loader loader{source, with_policy(whole_images(threads), policy), 5, true};
      source->on_read = [](std::int64_t index) {
        if (index == 30) throw std::runtime_error("disk on fire");
      };
      EXPECT_EQ(error_of(ErrorCode::internal, [&] { deliver(loader.epoch(0)); }), "data: file[30]: disk on fire");
      source->on_read = [](std::int64_t index) {
        if (index == 30) throw std::bad_alloc();
      };
      EXPECT_EQ(error_of(ErrorCode::out_of_memory, [&] { deliver(loader.epoch(0)); }), "data: file[30]: out of memory");
      EXPECT_THAT(loader.corrupt_samples(), IsEmpty());
    }
  }
}

TEST(OnCorrupt, AnEpochInWhichEverySampleIsCorruptEndsWithAnError) {
  const auto source = files_of(50);
  for (Bytes& file : source->files) file = {'n', 'o'};
  for (const std::int64_t threads : {0, 1, 7}) {
    Loader replacing{source, with_policy(whole_images(threads), OnCorrupt::replace), 5, true};
    const std::string message = error_of(ErrorCode::corrupt_data, [&] { deliver(replacing.epoch(0)); });
    EXPECT_THAT(message, AllOf(HasSubstr("the 32 samples drawn in its place are corrupt too"), HasSubstr("\"no\"")));
    for (const bool training : {true, false}) {
      Loader zeroing{source, with_policy(whole_images(threads), OnCorrupt::zero), 5, training};
      for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
        EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { deliver(zeroing.epoch(epoch)); }),
                    AllOf(HasSubstr(fmt::format("all 50 samples of epoch {} are corrupt", epoch)),
                          HasSubstr("data: file[0]: ")));
      }
      EXPECT_EQ(zeroing.corrupt_samples().size(), 50U);
      EXPECT_EQ(deliver(zeroing.epoch(0, 3)).valid, (std::vector<int>{0, 0}));  // The rest of an epoch may be so.
    }
  }
}

TEST(OnCorrupt, OneSoundSampleIsEnoughToReplaceAllOthers) {
  const auto source = files_of(4);
  for (const std::size_t i : {0U, 1U, 3U}) source->files[i].clear();
  Loader loader{source, with_policy(whole_images(1), OnCorrupt::replace), 5, true};
  EXPECT_THAT(deliver(loader.epoch(0)).indices, Each(2));
}

TEST(OnCorrupt, NoMoreThanAThousandAreListed) {
  const auto source = files_of(1);
  source->files.resize(1500, Bytes{'n', 'o'});
  Loader loader{source, with_policy(whole_images(2), OnCorrupt::zero), 5, false};
  EXPECT_EQ(deliver(loader.epoch(0)).indices.size(), 1500U);
  EXPECT_EQ(loader.corrupt_samples().size(), 1000U);
  EXPECT_EQ(loader.statistics().corrupt, 1499);
}

TEST(OnCorrupt, PixelsOfASourceInMemoryObeyThePolicyToo) {
  class Odd final : public Source, KnownSamples {
   public:
    std::int64_t size() const override { return 8; }
    const SourceInfo& info() const override { return info_; }
    std::string name(std::int64_t index) const override { return fmt::format("odd[{}]", index); }
    Capabilities capabilities() const override { return {.known = this}; }
    std::int64_t label(std::int64_t index) const override { return index == 5 ? 9 : index % 2; }
    void read(std::int64_t index, Sample& sample) const override {
      sample.image().set_pixels(pixels_, 2, 2, 1);
      sample.set_label(label(index));
    }

   private:
    std::array<std::uint8_t, 4> pixels_{10, 20, 30, 40};
    const SourceInfo info_{.schema = Schema::image_and_labels(2, 2, 1), .num_classes = 2};
  };
  Loader loader{std::make_shared<Odd>(), with_policy(options_of(8, 1), OnCorrupt::zero), 5, false};
  const Delivered found = deliver(loader.epoch(0));
  EXPECT_THAT(found.valid, ElementsAre(1, 1, 1, 1, 1, 0, 1, 1));
  EXPECT_THAT(found.labels, ElementsAre(0, 1, 0, 1, 0, 0, 0, 1));  // A label that is none would stop the loss.
}

// ---- Files of every kind ----

// The header of a baseline JPEG claims side x side pixels.
Bytes with_size(Bytes file, int side) {
  for (std::size_t i = 0; i + 8 < file.size(); ++i) {
    if (file[i] != 0xFF || file[i + 1] != 0xC0) continue;  // SOF0: length, precision, height, width.
    for (const std::size_t at : {i + 5, i + 7}) {
      file[at] = static_cast<std::uint8_t>(side >> 8);
      file[at + 1] = static_cast<std::uint8_t>(side & 0xFF);
    }
    return file;
  }
  ADD_FAILURE() << "no SOF0";
  return file;
}

class PhotoFolder : public ScratchFolder {
 protected:
  PhotoFolder() {
    for (int i = 0; i < 12; ++i) put(fmt::format("train/a/{:02d}.jpg", i), TinyImages::jpeg(0, i, kShape));
  }
  void put(const std::string& name, const Bytes& bytes) { write(name, std::string(bytes.begin(), bytes.end())); }
  void open() { source_ = open_source("folder:" + folder_.string(), Split::train); }

  // The samples left out, by file name; each with one line that names it.
  std::vector<std::string> corrupt(OnCorrupt policy = OnCorrupt::zero) {
    Loader loader{source_, with_policy(whole_images(2), policy), 1, false};
    std::vector<std::string> names;
    const Delivered found = deliver(loader.epoch(0));
    EXPECT_EQ(std::ssize(found.indices), source_->size());
    for (const CorruptSample& sample : loader.corrupt_samples()) {
      EXPECT_THAT(sample.reason, HasSubstr(sample.name));
      EXPECT_EQ(sample.reason.find('\n'), std::string::npos);
      names.push_back(sample.name.substr(sample.name.rfind('/') + 1));
      reasons_[names.back()] = sample.reason;
    }
    return names;
  }

  std::shared_ptr<const Source> source_;
  std::map<std::string, std::string> reasons_;
};

TEST_F(PhotoFolder, ImagesOfEveryKindAreLoaded) {
  const auto image = codec::photograph(40, 50, 3, 1);
  put("train/a/progressive.jpg", codec::jpeg_of(image, {.progressive = true}));
  put("train/a/cmyk.jpg", codec::jpeg_of(codec::photograph(40, 50, 4, 1), {}));
  put("train/a/grey.jpg", codec::jpeg_of(codec::photograph(40, 50, 1, 1), {}));
  put("train/a/deep.png", codec::png_of(40, 25, image.pixels, {.color = PNG_COLOR_TYPE_RGB, .depth = 16}));
  put("train/a/interlaced.png", codec::png_of(40, 50, image.pixels, {.interlaced = true}));
  put("train/a/png-inside.jpg", codec::png_of(40, 50, image.pixels, {}));
  open();
  EXPECT_EQ(source_->size(), 18);
  EXPECT_THAT(corrupt(), IsEmpty());
}

TEST_F(PhotoFolder, DamagedFilesAreLeftOutByName) {
  Bytes cut = TinyImages::jpeg(0, 50, kShape);
  cut.resize(cut.size() / 2);
  put("train/a/cut.jpg", cut);
  write("train/a/text.jpg", "This is not an image.\nNeither is this.");
  write("train/a/empty.jpg", "");
  put("train/a/wide.jpg", with_size(TinyImages::jpeg(0, 51, kShape), 65'535));
  put("train/a/large.jpg", with_size(TinyImages::jpeg(0, 52, kShape), 60'000));
  std::filesystem::permissions(write("train/a/secret.jpg", "x"), std::filesystem::perms::none);
  open();
  AllocationCount::reset_peak();
  {
    const Unprivileged guard;
    EXPECT_THAT(corrupt(), ElementsAre("cut.jpg", "empty.jpg", "large.jpg", "secret.jpg", "text.jpg", "wide.jpg"));
  }
  EXPECT_LT(AllocationCount::peak_growth(), 4 << 20);
  EXPECT_THAT(reasons_["empty.jpg"], HasSubstr("is empty"));
  EXPECT_THAT(reasons_["secret.jpg"], HasSubstr("Permission denied"));
  EXPECT_THAT(reasons_["text.jpg"], HasSubstr("This is not an i"));
  EXPECT_THAT(reasons_["wide.jpg"], HasSubstr("65500"));  // libjpeg's bound.
  EXPECT_THAT(reasons_["large.jpg"], HasSubstr("60000 x 60000"));
}

TEST_F(PhotoFolder, AFolderThatChangesUnderTheRunLosesOnlyWhatChanged) {
  open();
  Loader loader{source_, with_policy(whole_images(2), OnCorrupt::zero), 1, false};
  EXPECT_THAT(deliver(loader.epoch(0)).valid, Each(1));
  std::filesystem::remove(folder_ / "train/a/03.jpg");
  std::filesystem::resize_file(folder_ / "train/a/05.jpg", 100);
  put("train/a/07.jpg", TinyImages::jpeg(0, 99, {.height = 90}));
  EXPECT_THAT(deliver(loader.epoch(1)).valid, ElementsAre(1, 1, 1, 0, 1, 0, 1, 0, 1, 1, 1, 1));
  const auto found = loader.corrupt_samples();
  ASSERT_EQ(indices_of(found), (std::vector<std::int64_t>{3, 5, 7}));
  EXPECT_THAT(found[0].reason, AllOf(HasSubstr("/03.jpg"), HasSubstr("No such file")));
  EXPECT_THAT(found[1].reason, AllOf(HasSubstr("/05.jpg"), HasSubstr("has 100 bytes; it had")));
  EXPECT_THAT(found[2].reason, AllOf(HasSubstr("/07.jpg"), HasSubstr("when it was listed")));
  Loader strict{source_, whole_images(2), 1, false};
  EXPECT_THAT(error_of(ErrorCode::not_found, [&] { deliver(strict.epoch(0)); }), HasSubstr("/03.jpg"));
}

TEST_F(PhotoFolder, ACachedImageNoLongerNeedsItsFile) {
  open();
  Loader loader{source_, cached(whole_images(2)), 1, false};
  const Delivered before = deliver(loader.epoch(0));
  std::filesystem::remove_all(folder_ / "train");
  EXPECT_EQ(deliver(loader.epoch(1)).images, before.images);
}

// ---- Memory ----

TEST(PhotoLoader, SteadyStateAllocatesOneHandleABatch) {
  const TinyImages images{{.classes = 4, .count = 100}};
  for (const Cache cache : {Cache::none, Cache::decoded}) {
    for (const std::int64_t threads : {0, 2}) {
      DataOptions options = photo_options(4, threads);
      options.cache = cache;
      Loader loader{open_source(images.uri(), Split::train), options, 1, true};
      EXPECT_EQ(order(loader.epoch(0)).size(), 400U);
      EXPECT_EQ(order(loader.epoch(1)).size(), 400U);
      const auto allocations_of_90_batches = [&](std::int64_t index) {
        auto epoch = loader.epoch(index);
        return allocations_of(epoch, 5, 90);
      };
      // Each worker meets its largest image and crop some time. An allocation a sample would never end.
      std::int64_t found = 0;
      for (std::int64_t index = 2; index < 50 && found != 90; ++index) found = allocations_of_90_batches(index);
      EXPECT_EQ(found, 90) << threads << " threads";
    }
  }
}

TEST(PhotoLoader, RoomForAHugeImageIsGivenBackAfterIt) {
  const auto source = files_of(8);
  const Bytes row(8000 * 3, 77);
  Bytes rows;
  for (int y = 0; y < 3000; ++y) rows.insert(rows.end(), row.begin(), row.end());
  source->files[3] = codec::png_of(3000, 8000, rows, {});  // 72 MB decoded.
  for (const std::int64_t threads : {0, 1}) {
    DataOptions options = photo_options(1, threads);
    options.transform.crop = Crop::center;
    options.transform.resize = 0;
    options.transform.size = 2000;  // 2,286 x 6,095, and its center: nearly all of the image's height.
    Loader loader{source, options, 1, true};
    const std::int64_t before = loader.statistics().workspace_bytes;
    EXPECT_EQ(before, 0);
    EXPECT_EQ(order(loader.epoch(0)).size(), 8U);
    EXPECT_GT(loader.statistics().workspace_bytes, 0);
    EXPECT_LE(loader.statistics().workspace_bytes, detail::Workspace::kKeptMax);
    loader.set_num_workers(0);
    if (threads == 1) {
      EXPECT_EQ(loader.statistics().workspace_bytes, 0);
    }
  }
}

TEST(PhotoLoader, AnEvaluationLeavesNoBuffersBehind) {
  const TinyImages images{{.classes = 2, .count = 20}};
  for (const std::int64_t threads : {0, 2}) {
    Loader loader{open_source(images.uri(), Split::train), photo_options(4, threads), 1, false};
    EXPECT_EQ(order(loader.epoch(0)).size(), 40U);
    // Workers come to rest some time after the last batch is out.
    while (loader.statistics().workspace_bytes != 0) std::this_thread::yield();
    EXPECT_EQ(order(loader.epoch(1)).size(), 40U);
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // Their malloc has other books.
// Those of the whole image's coefficients are kept from image to image.
TEST(PhotoLoader, AnEvaluationLeavesNoDecodersMemoryBehind) {
  const auto source = files_of(4);
  source->files[1] = codec::jpeg_of(codec::photograph(1000, 1500, 3, 1), {.progressive = true});
  ASSERT_EQ(::mallopt(M_MMAP_THRESHOLD, 1 << 20), 1);  // Blocks from this size on are counted by hblkhd.
  for (const std::int64_t threads : {0, 1}) {
    Loader loader{source, photo_options(1, threads), 1, false};
    const std::size_t before = ::mallinfo2().hblkhd;
    EXPECT_EQ(order(loader.epoch(0)).size(), 4U);
    while (loader.statistics().workspace_bytes != 0) std::this_thread::yield();
    EXPECT_LT(::mallinfo2().hblkhd, before + (std::size_t{1} << 20)) << threads << " threads";
  }
}
#endif

TEST(PhotoLoader, LeavingEarlyStopsWithinAFewImages) {
  const auto source = files_of(64);
  std::latch let_go{1};
  source->on_read = [&](std::int64_t) { let_go.wait(); };
  Loader loader{source, photo_options(32, 1), 1, true};
  std::jthread told;
  {
    auto epoch = loader.epoch(0);
    told = std::jthread([&let_go, future = epoch.request()]() mutable {
      error_of(ErrorCode::cancelled, [&] { future.get(); });
      let_go.count_down();  // The epoch is given up by now.
    });
    while (source->reads == 0) std::this_thread::yield();
  }
  EXPECT_LT(source->reads, 16);  // A chunk.
  EXPECT_EQ(order(loader.epoch(1)).size(), 64U);
}

}  // namespace
}  // namespace headrace
