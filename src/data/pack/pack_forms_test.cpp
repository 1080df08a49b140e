// Packs of decoded images as a source, and back.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/loader.h>

#include <algorithm>
#include <fstream>

#include "core/base/files.h"
#include "core/base/temporary_folder.h"
#include "data/loader/testing.h"
#include "data/pack/pack_build.h"
#include "data/source/read_sample.h"
#include "data/store/pack_file.h"
#include "data/store/pack_writer.h"
#include "data/store/ram_cache.h"
#include "data/store/row_blocks.h"
#include "data/store/scratch_folder.h"
#include "data/transform/crop.h"
#include "data/transform/resize.h"
#include "media/codec/decode.h"
#include "media/codec/tiny_images.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr TinyImages::Shape kShape{.classes = 3, .count = 12, .height = 150, .width = 200};

bool always(std::int64_t /*done*/, std::int64_t /*samples*/) {
  return true;
}

std::shared_ptr<const Source> open(const fs::path& pack, Split split = Split::train) {
  return open_source("pack:" + pack.string(), split);
}

class PackForms : public ScratchFolder, public testing::WithParamInterface<PackForm> {
 protected:
  PackPlan plan(const std::string& name = "photos.pack") const {
    return {.source = images_.uri(), .out = folder_ / name, .form = GetParam(), .threads = 2};
  }
  static DataOptions options(std::int64_t threads, Cache cache = Cache::none) {
    DataOptions options = options_of(5, threads);
    options.cache = cache;
    options.transform.size = 40;
    options.transform.crop = Crop::random_resized;
    options.transform.flip_probability = 0.5;
    return options;
  }
  std::shared_ptr<const Source> folder(Split split = Split::train) const { return open_source(images_.uri(), split); }

  // Of the folder's sample, whole.
  codec::Bytes decoded(std::int64_t index, codec::ImageInfo& info) const {
    const auto source = folder();
    const Sample sample = read_sample(*source, index);
    codec::Decoder decoder;
    info = decoder.open(sample.image().bytes, 3);
    codec::Bytes pixels(static_cast<std::size_t>(info.height) * info.width * 3);
    decoder.decode({.y = 0, .x = 0, .height = info.height, .width = info.width}, pixels);
    return pixels;
  }

  const TinyImages images_{kShape};
};

TEST_P(PackForms, GiveTheBatchesOfTheFolderForAnyThreadCountAndCache) {
  ASSERT_TRUE(write_pack(plan(), always));
  Loader reference{folder(), options(1), 3, true};
  const std::vector<std::vector<std::uint64_t>> expected{digests(reference.epoch(0)), digests(reference.epoch(1))};
  for (const Cache cache : {Cache::none, Cache::decoded}) {
    for (const std::int64_t threads : {0, 1, 2, 7}) {
      Loader loader{open(plan().out), options(threads, cache), 3, true};
      EXPECT_EQ(digests(loader.epoch(0)), expected[0]) << threads << " threads";
      EXPECT_EQ(digests(loader.epoch(1)), expected[1]) << threads << " threads";
      EXPECT_EQ(loader.statistics().cache_hits, cache == Cache::decoded ? 36 : 0);
    }
  }
}

TEST_P(PackForms, HaveNoFilesToKeep) {
  ASSERT_TRUE(write_pack(plan(), always));
  const std::int64_t promised = RamCache::promised_bytes();
  Loader loader{open(plan().out), options(1, Cache::encoded), 3, true};
  EXPECT_EQ(loader.applied_cache().requested, "encoded");
  EXPECT_EQ(loader.applied_cache().applied, "none");
  EXPECT_THAT(loader.applied_cache().reason, HasSubstr("the source gives pixels, no files"));
  EXPECT_EQ(RamCache::promised_bytes(), promised);
  EXPECT_EQ(digests(loader.epoch(0)).size(), 8U);
  EXPECT_EQ(loader.statistics().cache_misses, 0);
}

TEST_P(PackForms, GiveTheBatchesOfTheFolderForEveryTransform) {
  ASSERT_TRUE(write_pack(plan(), always));
  const std::vector<std::function<void(TransformOptions&)>> changes{
      [](TransformOptions& transform) { transform.crop = Crop::center; },
      [](TransformOptions& transform) { transform.crop = Crop::random, transform.pad = 3; },
      [](TransformOptions& transform) { transform.dtype = PixelType::u8, transform.layout = PixelLayout::nhwc; },
      [](TransformOptions& transform) { transform.crop = Crop::center, transform.size = 150, transform.resize = 150; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    DataOptions changed = options(2);
    changes[i](changed.transform);
    for (const bool training : {true, false}) {
      const Split split = training ? Split::train : Split::test;
      Loader reference{folder(split), changed, 3, training}, loader{open(plan().out, split), changed, 3, training};
      EXPECT_EQ(digests(loader.epoch(0)), digests(reference.epoch(0))) << i;
    }
  }
}

TEST_P(PackForms, AreResizedAsTheFolderWouldBe) {
  PackPlan small = plan();
  small.short_side = 48;
  ASSERT_TRUE(write_pack(small, always));
  const auto packed = open(small.out);
  transform::Resizer resizer;
  Sample sample;
  for (std::int64_t i = 0; i < packed->size(); ++i) {
    codec::ImageInfo info;
    const codec::Bytes whole = decoded(i, info);
    packed->read(i, sample);
    const Payload& found = sample.image();
    ASSERT_EQ(std::min(found.height(), found.width()), 48);
    ASSERT_EQ(found.width(), 48 * info.width / info.height);
    const auto vertical = transform::resized_axis(info.height, info.height, 48);
    const auto horizontal = transform::resized_axis(info.width, info.height, 48);
    codec::Bytes wanted(static_cast<std::size_t>(48) * found.width() * 3);
    resizer.resize(whole, vertical, horizontal, 3, wanted);
    EXPECT_TRUE(std::ranges::equal(found.bytes, wanted));
  }
  PackPlan large = plan("large.pack");  // Nothing is enlarged.
  large.short_side = 1000;
  ASSERT_TRUE(write_pack(large, always));
  EXPECT_EQ(read_sample(*open(large.out), 0).image().height(), 150);
}

TEST_P(PackForms, OneThatWasStoppedIsGoneOnWithAndOnlyInItsForm) {
  PackPlan whole = plan("whole.pack");
  ASSERT_TRUE(write_pack(whole, always));
  EXPECT_FALSE(write_pack(plan(), [](std::int64_t done, std::int64_t) { return done == 0; }));
  PackPlan other = plan();
  other.short_side = 99;
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { write_pack(other, always); }),
              HasSubstr("was begun with other data or in another form"));
  const auto summary = write_pack(plan(), always);
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->added, 45 - 16);  // A block was written.
  EXPECT_EQ(read_file(plan().out, 1 << 24), read_file(whole.out, 1 << 24));
}

TEST_P(PackForms, ShardsAreOnePackAndSamplesAreAddedInTheSameForm) {
  PackPlan sharded = plan("shards");
  sharded.shard_bytes = 300'000;
  sharded.short_side = 100;
  ASSERT_GT(write_pack(sharded, always)->files, 2);
  fs::copy_file(images_.folder() / "train/a/00003.jpg", images_.folder() / "train/c/99999.jpg");
  sharded.append = true;
  EXPECT_EQ(write_pack(sharded, always)->added, 1);
  EXPECT_EQ(open(sharded.out)->size(), 37);

  ASSERT_TRUE(write_pack(plan(), always));
  fs::copy_file(images_.folder() / "train/a/00003.jpg", images_.folder() / "train/c/99998.jpg");
  for (const auto& [form, short_side] : {std::pair{PackForm::stored, 0}, std::pair{GetParam(), 100}}) {
    PackPlan more = plan();
    more.append = true;
    more.form = form;
    more.short_side = short_side;
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { write_pack(more, always); }), HasSubstr("holds images as"));
    EXPECT_EQ(open(plan().out)->size(), 37);  // It stays whole.
  }
}

TEST_P(PackForms, UnpackedTheyAreTheSamePixelsInPngFiles) {
  ASSERT_TRUE(write_pack(plan(), always));
  ASSERT_EQ(unpack(plan().out, folder_ / "again", always), 45);
  const auto again = open_source("folder:" + (folder_ / "again").string(), Split::train);
  const auto packed = open(plan().out);
  ASSERT_EQ(again->size(), packed->size());
  Sample one, other;
  codec::Decoder decoder;
  for (std::int64_t i = 0; i < packed->size(); ++i) {
    EXPECT_EQ(stored_name_of(*again, i), stored_name_of(*packed, i) + ".png");
    EXPECT_EQ(label_of(*again, i), label_of(*packed, i));
    packed->read(i, one);
    again->read(i, other);
    const Payload& wanted = one.image();
    const codec::ImageInfo info = decoder.open(other.image().bytes, 3);
    ASSERT_EQ(info.height, wanted.height());
    codec::Bytes pixels(wanted.bytes.size());
    decoder.decode({.y = 0, .x = 0, .height = info.height, .width = info.width}, pixels);
    EXPECT_TRUE(std::ranges::equal(pixels, wanted.bytes));
  }
}

TEST_P(PackForms, DamageIsFoundByVerifyingAndItsSampleIsLeftOut) {
  PackPlan small = plan();
  small.short_side = 64;
  ASSERT_TRUE(write_pack(small, always));
  const PackRow block = PackFile{small.out}.rows()[3], table = PackFile{small.out}.rows()[5];
  std::string bytes = read_file(small.out, 1 << 24);
  bytes[block.at + block.size / 2] ^= 8;
  bytes[table.at + table.size + 7] ^= 8;
  write("photos.pack", bytes);
  const auto check = verify_pack(small.out, always);
  ASSERT_TRUE(check);
  EXPECT_EQ(check->samples, 45);
  EXPECT_EQ(check->damaged, 2);
  EXPECT_THAT(check->first, HasSubstr("photos.pack:a/00003.jpg"));
  EXPECT_EQ(check->form, GetParam());
  EXPECT_EQ(check->short_side, 64);
  DataOptions zeros = options(2);
  zeros.on_corrupt = OnCorrupt::zero;
  zeros.transform.crop = Crop::center;
  Loader loader{open(small.out), zeros, 3, true};
  EXPECT_EQ(order(loader.epoch(0)).size(), 36U);
  EXPECT_EQ(loader.statistics().corrupt, 2);
  Loader strict{open(small.out), options(2), 3, false};
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { order(strict.epoch(0)); }), HasSubstr("photos.pack:a/00003.jpg"));
}

TEST_P(PackForms, APackIsASourceOfOthers) {
  PackPlan first = plan("first.pack");
  ASSERT_TRUE(write_pack(first, always));
  PackPlan second = plan("second.pack");
  second.source = "pack:" + first.out.string();
  second.form = GetParam() == PackForm::raw ? PackForm::lz4 : PackForm::raw;
  ASSERT_TRUE(write_pack(second, always));
  PackPlan stored = second;
  stored.form = PackForm::stored;
  stored.out = folder_ / "third.pack";
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { write_pack(stored, always); }),
              HasSubstr("holds decoded images"));
  Loader one{open(first.out), options(2), 3, true}, other{open(second.out), options(2), 3, true};
  EXPECT_EQ(digests(other.epoch(0)), digests(one.epoch(0)));
}

TEST_P(PackForms, WhatCannotBeDecodedIsNamed) {
  write_file(images_.folder() / "test/b/00014.jpg", "no image");
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { write_pack(plan(), always); }), HasSubstr("test/b/00014.jpg"));
  EXPECT_FALSE(fs::exists(plan().out));
}

// As a folder of them cannot be.
TEST_P(PackForms, ImagesOfOneSizeNeedNoTransform) {
  const TinyImages alike{{.classes = 2, .count = 1, .height = 32, .width = 32}};
  PackPlan plan_of_alike = plan("alike.pack");
  plan_of_alike.source = alike.uri();
  ASSERT_TRUE(write_pack(plan_of_alike, always));
  const auto source = open(plan_of_alike.out);
  EXPECT_EQ(stored_shape(source->info().schema).height, 32);
  DataOptions as_stored = options_of(2, 1);
  as_stored.transform.dtype = PixelType::u8;
  as_stored.transform.layout = PixelLayout::nhwc;
  Loader loader{source, as_stored, 3, false};
  auto epoch = loader.epoch(0);
  const auto batch = epoch.next();
  const Sample sample = read_sample(*source, 0);
  const auto first = std::as_bytes(sample.image().bytes);
  EXPECT_TRUE(std::ranges::equal(batch->field("image").bytes.first(first.size()), first));
}

INSTANTIATE_TEST_SUITE_P(Decoded, PackForms, testing::Values(PackForm::raw, PackForm::lz4),
                         [](const auto& tested) { return std::string(choice_name(tested.param)); });

// Rows that no `headrace pack` writes.
TEST(PackRows, OfDifferentKindsOrImpossibleSizesAreRefused) {
  const TemporaryFolder temporary;
  const fs::path& folder = temporary.path();
  const std::vector<std::function<void(PackRow&)>> changes{
      [](PackRow& row) { row.form = 4; },      [](PackRow& row) { row.form = 1; },
      [](PackRow& row) { row.height = 17; },   [](PackRow& row) { row.channels = 1; },
      [](PackRow& row) { row.width = 70000; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const fs::path path = folder / fmt::format("{}.pack", i);
    PackFileWriter writer{path, 1, {"a"}, PackFileWriter::Mode::fresh};
    RowBlockWriter blocks;
    PackRow row{};
    row.height = 16, row.width = 4, row.channels = 3, row.form = static_cast<std::uint8_t>(BlockForm::raw);
    blocks.make(std::vector<std::uint8_t>(16 * 4 * 3), row, 0);
    writer.add(row, "a/1", blocks.bytes(), blocks.index());
    changes[i](row);
    writer.add(row, "a/2", blocks.bytes(), blocks.index());
    writer.commit();
    EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { open(path); }), HasSubstr(path.string())) << i;
  }
}

}  // namespace
}  // namespace headrace
