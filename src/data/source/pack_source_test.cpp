// Packs of folders and IDX files as a source, and back.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/loader.h>

#include <algorithm>
#include <fstream>
#include <numeric>

#include "core/base/files.h"
#include "core/base/temporary_folder.h"
#include "data/loader/testing.h"
#include "data/pack/pack_build.h"
#include "data/source/read_sample.h"
#include "data/store/pack_writer.h"
#include "data/store/scratch_folder.h"
#include "media/codec/tiny_images.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr TinyImages::Shape kShape{.classes = 3, .count = 12, .height = 150, .width = 200};
constexpr const char* kFashion = "/usr/share/datasets/fashion-mnist";

bool always(std::int64_t /*done*/, std::int64_t /*samples*/) {
  return true;
}

class PackOfImages : public ScratchFolder {
 protected:
  std::shared_ptr<const Source> open(const fs::path& pack, Split split = Split::train) const {
    return open_source("pack:" + pack.string(), split);
  }
  PackPlan plan(const std::string& name = "photos.pack") const {
    return {.source = images_.uri(), .out = folder_ / name, .threads = 2};
  }
  static DataOptions options(std::int64_t threads, IndexUse index = IndexUse::use) {
    DataOptions options = options_of(5, threads);
    options.index = index;
    options.transform.size = 40;
    options.transform.crop = Crop::random_resized;
    options.transform.flip_probability = 0.5;
    return options;
  }
  void expect_the_same_as_the_folder(const fs::path& pack) const {
    for (const Split split : {Split::train, Split::test}) {
      const std::shared_ptr<const Source> folder = open_source(images_.uri(), split), packed = open(pack, split);
      ASSERT_EQ(packed->size(), folder->size());
      EXPECT_EQ(packed->info().fingerprint, folder->info().fingerprint);
      EXPECT_EQ(packed->info().class_names, folder->info().class_names);
      Sample expected, found;
      for (std::int64_t i = 0; i < folder->size(); ++i) {
        folder->read(i, expected);
        packed->read(i, found);
        ASSERT_TRUE(std::ranges::equal(found.image().bytes, expected.image().bytes));
        EXPECT_EQ(found.label(), expected.label());
        EXPECT_EQ(stored_name_of(*packed, i), stored_name_of(*folder, i));
      }
    }
  }

  const TinyImages images_{kShape};
};

TEST_F(PackOfImages, HasTheSamplesLabelsNamesAndFingerprintOfTheFolder) {
  const auto summary = write_pack(plan(), always);
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->samples, 36 + 9);
  EXPECT_EQ(summary->added, 36 + 9);
  EXPECT_EQ(summary->indexed, 36 + 9);
  EXPECT_EQ(summary->files, 1);
  expect_the_same_as_the_folder(plan().out);
  EXPECT_THAT(open(plan().out)->name(0), HasSubstr("photos.pack:a/00000.jpg"));
}

TEST_F(PackOfImages, GivesTheSameBatchesForAnyThreadCountWithAndWithoutItsIndex) {
  ASSERT_TRUE(write_pack(plan(), always));
  Loader reference{open_source(images_.uri(), Split::train), options(1, IndexUse::none), 3, true};
  const auto expected = digests(reference.epoch(0));
  for (const IndexUse index : {IndexUse::none, IndexUse::use}) {
    for (const std::int64_t threads : {0, 1, 2, 7}) {
      Loader loader{open(plan().out), options(threads, index), 3, true};
      EXPECT_EQ(digests(loader.epoch(0)), expected) << threads << " threads";
      EXPECT_EQ(loader.statistics().index_hits, index == IndexUse::use ? 36 : 0);
      loader.set_cache(Cache::encoded);  // An index stays beside its file.
      EXPECT_EQ(digests(loader.epoch(0)), expected) << threads << " threads";
      EXPECT_EQ(digests(loader.epoch(0)), expected) << threads << " threads";
      EXPECT_EQ(loader.statistics().cache_hits, 36);
      EXPECT_EQ(loader.statistics().index_hits, index == IndexUse::use ? 108 : 0);
    }
  }
}

TEST_F(PackOfImages, ShardsAreOnePack) {
  PackPlan sharded = plan("shards");
  sharded.shard_bytes = 30'000;
  const auto summary = write_pack(sharded, always);
  ASSERT_TRUE(summary);
  EXPECT_GT(summary->files, 3);
  expect_the_same_as_the_folder(sharded.out);
  const auto again = write_pack(sharded, always);  // Nothing is missing.
  ASSERT_TRUE(again);
  EXPECT_EQ(again->added, 0);
  EXPECT_EQ(again->files, summary->files);
  expect_the_same_as_the_folder(sharded.out);
}

TEST_F(PackOfImages, AShardThatIsCutOffIsNamed) {
  PackPlan sharded = plan("shards");
  sharded.shard_bytes = 30'000;
  ASSERT_TRUE(write_pack(sharded, always));
  const fs::path shard = sharded.out / "00001.pack";
  for (const std::uintmax_t bytes : {fs::file_size(shard) - 1, fs::file_size(shard) / 2, std::uintmax_t{0}}) {
    fs::resize_file(shard, bytes);
    EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { open(sharded.out); }), HasSubstr("shards/00001.pack"));
    EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { verify_pack(sharded.out, always); }),
                HasSubstr("shards/00001.pack"));
  }
}

TEST_F(PackOfImages, ItsFilesAreTheShardsThatAWindowedOrderReadsOneAfterTheOther) {
  PackPlan sharded = plan("shards");
  sharded.shard_bytes = 30'000;
  ASSERT_TRUE(write_pack(sharded, always));
  const auto source = open(sharded.out);
  const std::vector<std::int64_t> shards = source->info().shards;
  ASSERT_GT(shards.size(), 2u);
  EXPECT_EQ(std::accumulate(shards.begin(), shards.end(), std::int64_t{0}), source->size());
  for (std::int64_t i = 0; i < source->size(); ++i) {
    EXPECT_EQ(sample_bytes_of(*source, i), std::ssize(read_sample(*source, i).image().bytes));
  }
  DataOptions windowed = options(1);
  windowed.shuffle_window = 1;
  Loader loader{source, windowed, 3, true};
  std::vector<std::size_t> order;  // Of the shards, as they are entered.
  Epoch epoch = loader.epoch(0);
  while (const auto batch = epoch.next()) {
    for (std::int64_t index : batch->sample_indices()) {
      std::size_t shard = 0;
      for (; index >= shards[shard]; ++shard) index -= shards[shard];
      if (order.empty() || order.back() != shard) order.push_back(shard);
    }
  }
  EXPECT_EQ(order.size(), shards.size());
  EXPECT_FALSE(std::ranges::is_sorted(order));
}

TEST_F(PackOfImages, OneThatWasStoppedIsGoneOnWith) {
  PackPlan whole = plan("whole.pack");
  ASSERT_TRUE(write_pack(whole, always));
  EXPECT_FALSE(write_pack(plan(), [](std::int64_t done, std::int64_t) { return done == 0; }));
  EXPECT_FALSE(fs::exists(plan().out));
  ASSERT_TRUE(fs::exists(folder_ / "photos.pack.partial"));
  const auto summary = write_pack(plan(), always);
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->added, 45 - 16);  // A block was written.
  EXPECT_EQ(read_file(plan().out, 1 << 24), read_file(whole.out, 1 << 24));
}

TEST_F(PackOfImages, AppendingAddsWhatIsMissing) {
  ASSERT_TRUE(write_pack(plan(), always));
  fs::copy_file(images_.folder() / "train/a/00003.jpg", images_.folder() / "train/c/99999.jpg");
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { write_pack(plan(), always); }), HasSubstr("exists already"));
  PackPlan more = plan();
  more.append = true;
  const auto summary = write_pack(more, always);
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->added, 1);
  EXPECT_EQ(open(plan().out)->size(), 37);
  EXPECT_EQ(label_of(*open(plan().out), 36), 2);
}

TEST_F(PackOfImages, UnpackedItIsTheFolderAgain) {
  ASSERT_TRUE(write_pack(plan(), always));
  EXPECT_EQ(unpack(plan().out, folder_ / "again", always), 45);
  for (const auto& entry : fs::recursive_directory_iterator(images_.folder())) {
    if (!entry.is_regular_file()) continue;
    EXPECT_EQ(read_file(entry.path(), 1 << 24),
              read_file(folder_ / "again" / fs::relative(entry.path(), images_.folder()), 1 << 24));
  }
  error_of(ErrorCode::invalid_argument, [&] { unpack(plan().out, folder_ / "again", always); });
}

TEST_F(PackOfImages, VerifyingFindsTheDamagedSampleAndItsPolicyHolds) {
  ASSERT_TRUE(write_pack(plan(), always));
  EXPECT_EQ(verify_pack(plan().out, always)->damaged, 0);
  std::string bytes = read_file(plan().out, 1 << 24);
  bytes[5000] = static_cast<char>(bytes[5000] ^ 8);
  write("photos.pack", bytes);
  const auto check = verify_pack(plan().out, always);
  ASSERT_TRUE(check);
  EXPECT_EQ(check->samples, 45);
  EXPECT_EQ(check->damaged + check->unindexed, 1);
  DataOptions zeros = options(2);
  zeros.on_corrupt = OnCorrupt::zero;
  Loader loader{open(plan().out), zeros, 3, true};
  EXPECT_EQ(order(loader.epoch(0)).size(), 36U);
  EXPECT_EQ(loader.statistics().corrupt, check->damaged);
}

TEST_F(PackOfImages, ASampleThatCannotBeReadIsNamedAndNothingIsLost) {
  write_file(images_.folder() / "test/b/00014.jpg", "");
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { write_pack(plan(), always); }),
              HasSubstr("test/b/00014.jpg is empty"));
  EXPECT_FALSE(fs::exists(plan().out));
  EXPECT_TRUE(fs::exists(folder_ / "photos.pack.partial"));
}

// Names from a file that anybody may have made.
TEST_F(PackOfImages, NamesThatLeadOutOfTheFolderAreNotUnpacked) {
  const std::vector<std::string> names{"../evil", "/tmp/evil", "a/../../evil",        "a//b",
                                       ".",       "a/",        std::string("a\0b", 3)};
  for (const std::string& name : names) {
    const fs::path path = folder_ / "hostile.pack";
    fs::remove(path);
    fs::remove_all(folder_ / "out.partial");
    PackFileWriter writer{path, 1, {"a"}, PackFileWriter::Mode::fresh};
    PackRow row{};
    row.channels = 3;
    row.form = static_cast<std::uint8_t>(ImageForm::encoded);
    writer.add(row, name, std::vector<std::uint8_t>{1, 2}, {});
    writer.commit();
    EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { unpack(path, folder_ / "out", always); }),
                HasSubstr("leads out of its folder"));
  }
  EXPECT_FALSE(fs::exists(folder_ / "evil"));
}

TEST_F(PackOfImages, RowsThatAreNoSamplesAreRefused) {
  const std::vector<std::function<void(PackRow&)>> changes{
      [](PackRow& row) { row.label = 5; },
      [](PackRow& row) { row.form = 9; },
      [](PackRow& row) { row.height = 100; },
      [](PackRow& row) { row.channels = 0; },
      [](PackRow& row) { row.form = 0, row.height = 3, row.width = 4; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const fs::path path = folder_ / fmt::format("{}.pack", i);
    PackFileWriter writer{path, 1, {"a"}, PackFileWriter::Mode::fresh};
    PackRow row{};
    row.channels = 3;
    row.form = static_cast<std::uint8_t>(ImageForm::encoded);
    changes[i](row);
    writer.add(row, "a/b", std::vector<std::uint8_t>{1, 2}, {});
    writer.commit();
    EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { open(path); }), HasSubstr(path.string())) << i;
  }
  EXPECT_THAT(error_of(ErrorCode::not_found, [&] { open(folder_ / "absent.pack"); }), HasSubstr("No such file"));
  fs::create_directory(folder_ / "empty");
  EXPECT_THAT(error_of(ErrorCode::not_found, [&] { open(folder_ / "empty"); }), HasSubstr("no file *.pack"));
}

TEST_F(PackOfImages, HoldsValBesideTrainAndTestAndGivesThemBackApart) {
  const TinyImages others{{.classes = 3, .count = 4, .height = 150, .width = 200}};
  fs::copy(others.folder() / "train", images_.folder() / "val", fs::copy_options::recursive);
  ASSERT_EQ(write_pack(plan(), always)->samples, 36 + 12 + 9);
  EXPECT_THAT(splits_of("pack:" + plan().out.string()), testing::ElementsAre(Split::train, Split::val, Split::test));
  expect_the_same_as_the_folder(plan().out);
  ASSERT_EQ(unpack(plan().out, folder_ / "again", always), 36 + 12 + 9);
  for (const Split split : {Split::train, Split::val, Split::test}) {
    const std::shared_ptr<const Source> folder = open_source(images_.uri(), split), packed = open(plan().out, split);
    EXPECT_EQ(packed->info().fingerprint, folder->info().fingerprint);
    EXPECT_EQ(open_source("folder:" + (folder_ / "again").string(), split)->info().fingerprint,
              folder->info().fingerprint);
  }
}

// Made by a version that packed DIR/val as test.
TEST_F(PackOfImages, OfAnEarlierVersionHasTheSplitsThatItRecords) {
  const fs::path earlier = fs::path("tests/earlier/val_as_test.pack");
  EXPECT_THAT(splits_of("pack:" + earlier.string()), testing::ElementsAre(Split::train, Split::test));
  EXPECT_EQ(open(earlier)->size(), 4);
  EXPECT_EQ(open(earlier, Split::test)->size(), 2);
  EXPECT_EQ(stored_name_of(*open(earlier, Split::test), 1), "dog/0.png");
  EXPECT_THAT(error_of(ErrorCode::not_found, [&] { open(earlier, Split::val); }),
              HasSubstr("has no split val; there is train, test"));
}

TEST_F(PackOfImages, OfAnEarlierVersionIsNotGivenItsValTwice) {
  ASSERT_TRUE(write_pack(plan(), always));  // Its test is what an earlier version makes of a folder's val.
  fs::rename(images_.folder() / "test", images_.folder() / "val");
  PackPlan again = plan();
  again.append = true;
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { write_pack(again, always); }),
              testing::AllOf(HasSubstr("holds a/00012.jpg as test"), HasSubstr("pack the data anew")));
}

TEST(PackOfPixels, IsTheSameAsTheIdxFilesAndBecomesThemAgain) {
  const TemporaryFolder temporary;
  const fs::path& folder = temporary.path();
  ASSERT_TRUE(write_pack({.source = std::string("idx:") + kFashion, .out = folder / "f.pack", .threads = 2}, always));
  ASSERT_EQ(unpack(folder / "f.pack", folder / "idx", always), 70'000);
  for (const Split split : {Split::train, Split::test}) {
    const auto idx = open_source(std::string("idx:") + kFashion, split);
    const auto pack = open_source("pack:" + (folder / "f.pack").string(), split);
    const auto again = open_source("idx:" + (folder / "idx").string(), split);
    ASSERT_EQ(pack->size(), idx->size());
    EXPECT_EQ(again->info().fingerprint, idx->info().fingerprint);
    EXPECT_EQ(pack->info().num_classes, idx->info().num_classes);
    EXPECT_EQ(pack->info().class_names, idx->info().class_names);
    Sample expected, found;
    for (std::int64_t i = 0; i < idx->size(); i += 997) {
      idx->read(i, expected);
      pack->read(i, found);
      ASSERT_TRUE(std::ranges::equal(found.image().bytes, expected.image().bytes));
      EXPECT_EQ(found.label(), expected.label());
      EXPECT_EQ(found.image().height(), 28);
    }
  }
  Loader from_idx{open_source(std::string("idx:") + kFashion, Split::test), options_of(100, 2), 3, true};
  Loader from_pack{open_source("pack:" + (folder / "f.pack").string(), Split::test), options_of(100, 2), 3, true};
  EXPECT_EQ(digests(from_pack.epoch(0)), digests(from_idx.epoch(0)));
}

}  // namespace
}  // namespace headrace
