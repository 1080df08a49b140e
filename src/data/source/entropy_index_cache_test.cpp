// The Loader with an entropy index beside the data: made, used, stale, hostile, cut off, and never in the bytes.
#include "data/source/entropy_index_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/loader.h>

#include <random>

#include "core/base/files.h"
#include "data/loader/allocation_count.h"
#include "data/loader/testing.h"
#include "data/pack/index_build.h"
#include "data/store/scratch_folder.h"
#include "media/codec/tiny_images.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using codec::Bytes;
using testing::HasSubstr;

constexpr TinyImages::Shape kShape{.classes = 3, .count = 12, .height = 150, .width = 200};
constexpr std::int64_t kImages = 36;

bool always(std::int64_t /*done*/) {
  return true;
}

class EntropyIndexFile : public testing::Test {
 protected:
  std::shared_ptr<const Source> source(Split split = Split::train) const { return open_source(images_.uri(), split); }
  fs::path file() const { return images_.folder() / ".headrace-index/train/entropy.records"; }
  fs::path image(const std::string& name) const { return images_.folder() / "train" / name; }

  static DataOptions options(IndexUse index, std::int64_t threads) {
    DataOptions options = options_of(5, threads);
    options.index = index;
    options.on_corrupt = OnCorrupt::zero;
    options.transform.size = 40;
    options.transform.crop = Crop::random_resized;
    options.transform.flip_probability = 0.5;
    return options;
  }

  std::vector<std::uint64_t> bytes_of(Loader& loader, std::int64_t epochs = 2) const {
    std::vector<std::uint64_t> all;
    for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
      const auto found = digests(loader.epoch(epoch));
      all.insert(all.end(), found.begin(), found.end());
    }
    return all;
  }
  std::vector<std::uint64_t> plain_bytes() const {
    Loader loader{source(), options(IndexUse::none, 1), 3, true};
    return bytes_of(loader);
  }
  // Of loaders that use the file as it is now, with the bytes of those that do not: what they counted.
  LoaderStatistics statistics_of_use() const {
    const auto expected = plain_bytes();
    LoaderStatistics statistics;
    for (const std::int64_t threads : {0, 1, 2, 7}) {
      Loader loader{source(), options(IndexUse::use, threads), 3, true};
      EXPECT_EQ(bytes_of(loader), expected) << threads << " threads";
      statistics = loader.statistics();
    }
    return statistics;
  }

  void replace(const std::string& name, const Bytes& bytes) const {
    std::ofstream stream(image(name), std::ios::binary | std::ios::trunc);
    stream.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
    ASSERT_TRUE(stream.good());
  }
  Bytes content(const std::string& name) const {
    const std::string text = read_file(image(name), 1 << 24);
    return {text.begin(), text.end()};
  }

  const TinyImages images_{kShape};
};

TEST_F(EntropyIndexFile, IsMadeInTheFirstEpochAndUsedFromThenOnWithoutChangingAByte) {
  const auto expected = plain_bytes();
  for (const std::int64_t threads : {0, 1, 2, 7}) {
    fs::remove_all(images_.folder() / ".headrace-index");
    Loader loader{source(), options(IndexUse::build, threads), 3, true};
    EXPECT_EQ(loader.applied_index().applied, "build");
    EXPECT_EQ(bytes_of(loader), expected) << threads << " threads";
    const LoaderStatistics statistics = loader.statistics();
    EXPECT_EQ(statistics.index_misses, kImages);
    EXPECT_EQ(statistics.index_hits, 2 * kImages);
    EXPECT_EQ(statistics.index_refused, 0);
    EXPECT_EQ(loader.applied_index().applied, "build");
    EXPECT_EQ(loader.applied_index().reason, "");
    EXPECT_TRUE(fs::exists(file()));
  }
  const LoaderStatistics statistics = statistics_of_use();
  EXPECT_EQ(statistics.index_hits, 2 * kImages);
  EXPECT_EQ(statistics.index_misses, 0);
}

TEST_F(EntropyIndexFile, IsSmallAndTheSameWhoeverMakesIt) {
  Loader loader{source(), options(IndexUse::build, 2), 3, true};
  bytes_of(loader, 1);
  const RecordFile by_loader{file(), kImages};
  std::vector<std::uint8_t> record, same;
  ASSERT_EQ(by_loader.size(), kImages);
  fs::remove(file());
  const auto summary = build_entropy_index(*source(), 2, always);
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->images, kImages);
  EXPECT_EQ(summary->indexed, kImages);
  EXPECT_EQ(summary->known, 0);
  EXPECT_EQ(summary->index_bytes, by_loader.bytes());
  EXPECT_LT(summary->index_bytes, summary->data_bytes / 10);
  const RecordFile by_hand{file(), kImages};
  for (const RecordPlace& place : by_loader.places()) {
    ASSERT_EQ(by_loader.find(place.key, record), RecordState::whole);
    ASSERT_EQ(by_hand.find(place.key, same), RecordState::whole);
    EXPECT_EQ(record, same);
  }
}

// Otherwise other threads may read all of a small split, and whoever wants to stop is never asked.
TEST_F(EntropyIndexFile, WhoWantsToStopIsAskedBeforeTheFirstImage) {
  std::vector<std::int64_t> asked;
  const auto summary = build_entropy_index(*source(), 2, [&](std::int64_t done) {
    asked.push_back(done);
    return false;
  });
  EXPECT_FALSE(summary);
  EXPECT_EQ(asked, std::vector<std::int64_t>{0});
  EXPECT_FALSE(fs::exists(file()));
}

TEST_F(EntropyIndexFile, NothingIsWrittenUnlessItIsAskedFor) {
  Loader loader{source(), options(IndexUse::use, 1), 3, true};
  bytes_of(loader, 1);
  EXPECT_EQ(loader.applied_index().applied, "use");
  EXPECT_EQ(loader.statistics().index_misses, 0);  // Nobody looked.
  EXPECT_FALSE(fs::exists(images_.folder() / ".headrace-index"));
}

// One of the same name, size and time: only the content tells.
TEST_F(EntropyIndexFile, AnImageThatHasChangedIsDecodedWithoutItsOldIndex) {
  const fs::path changed = image("a/00003.jpg");
  const Bytes before = content("a/00003.jpg");
  ASSERT_TRUE(build_entropy_index(*source(), 1, always));
  Bytes after;
  for (int number = 100; after.empty(); ++number) {
    Bytes other = TinyImages::jpeg(0, number, kShape);
    if (other.size() <= before.size()) after = std::move(other);
  }
  after.resize(before.size());  // What follows a JPEG's end is nobody's.
  const auto time = fs::last_write_time(changed);
  replace("a/00003.jpg", after);
  fs::last_write_time(changed, time);
  const LoaderStatistics statistics = statistics_of_use();
  EXPECT_EQ(statistics.index_misses, 2);
  EXPECT_EQ(statistics.index_hits, 2 * kImages - 2);
  const auto summary = build_entropy_index(*source(), 1, always);
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->known, kImages - 1);
  EXPECT_EQ(statistics_of_use().index_misses, 0);
}

TEST_F(EntropyIndexFile, FollowsFilesThatWereMovedAndCopied) {
  ASSERT_TRUE(build_entropy_index(*source(), 1, always));
  fs::rename(image("a/00003.jpg"), image("b/again.jpg"));
  fs::copy_file(image("a/00004.jpg"), image("c/too.jpg"));
  EXPECT_EQ(statistics_of_use().index_misses, 0);
}

TEST_F(EntropyIndexFile, FilesThatNoIndexIsUsedForAreKnownAsSuch) {
  replace("a/00001.jpg", codec::jpeg_of(codec::photograph(90, 120, 3, 1), {.progressive = true}));
  Bytes cut = content("a/00002.jpg");
  cut.resize(cut.size() * 2 / 3);
  replace("a/00002.jpg", cut);
  replace("a/00003.png", codec::png_of(60, 60, Bytes(60 * 60 * 3, 9), {}));
  replace("b/00001.jpg", Bytes{'n', 'o'});
  const auto summary = build_entropy_index(*source(), 2, always);
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->plain, 4);
  EXPECT_EQ(summary->indexed, kImages + 1 - 4);
  const LoaderStatistics statistics = statistics_of_use();
  EXPECT_EQ(statistics.index_misses, 0);
  EXPECT_EQ(statistics.index_refused, 0);
  EXPECT_EQ(statistics.index_hits, 2 * (kImages + 1 - 4));
}

// Whoever can write to the data's folder may say anything, with checksums that hold.
TEST_F(EntropyIndexFile, OneThatIsHostileLosesNoSampleAndIsCounted) {
  const auto all = source();
  const auto write = [&](const auto& record_of) {
    fs::remove(file());
    fs::create_directories(file().parent_path());
    RecordFileWriter writer{file()};
    Sample sample;
    for (std::int64_t i = 0; i < kImages; ++i) {
      all->read(i, sample);
      writer.add(detail::index_key(sample.image().bytes), record_of(sample.image().bytes));
    }
    writer.commit();
  };
  std::mt19937 random{4};
  write([&](const auto&) {
    Bytes noise(200);
    for (auto& byte : noise) byte = static_cast<std::uint8_t>(random());
    return noise;
  });
  EXPECT_EQ(statistics_of_use().index_refused, 2 * kImages);  // None can be used: the bytes are the plain ones.
  const Bytes other = codec::serialise(codec::index_entropy(TinyImages::jpeg(5, 77, kShape)).value());
  write([&](const auto&) { return other; });
  EXPECT_EQ(statistics_of_use().index_refused, 2 * kImages);
  write([&](const auto& bytes) {  // The file's own, but for its positions.
    codec::EntropyIndex index = codec::index_entropy(bytes).value();
    for (auto& position : index.positions) position.means = {};
    std::reverse(index.positions.begin(), index.positions.end());
    std::sort(index.positions.begin(), index.positions.end(),
              [](const auto& left, const auto& right) { return left.byte < right.byte; });
    for (auto& position : index.positions) position.bit = static_cast<std::uint8_t>(random() % 8);
    std::uint64_t last = 0;
    for (auto& position : index.positions) {  // In order, as serialise() wants them.
      last = std::max(last, std::uint64_t{position.byte} * 8 + position.bit);
      position.byte = static_cast<std::uint32_t>(last / 8);
      position.bit = static_cast<std::uint8_t>(last % 8);
    }
    return codec::serialise(index);
  });
  Loader loader{all, options(IndexUse::use, 2), 3, true};
  bytes_of(loader);  // Of some images or other: the address sanitizer looks on.
  const LoaderStatistics statistics = loader.statistics();
  EXPECT_EQ(statistics.index_hits + statistics.index_refused, 2 * kImages);
  EXPECT_EQ(statistics.corrupt, 0);
}

TEST_F(EntropyIndexFile, OneThatIsCutOffOrDamagedIsNotUsedAndSaysWhy) {
  ASSERT_TRUE(build_entropy_index(*source(), 1, always));
  const auto size = fs::file_size(file());
  for (const std::uintmax_t left : {size - 1, size / 2, std::uintmax_t{0}}) {
    fs::resize_file(file(), left);
    Loader loader{source(), options(IndexUse::use, 1), 3, true};
    EXPECT_EQ(loader.applied_index().applied, "none");
    EXPECT_THAT(loader.applied_index().reason, HasSubstr(file().string()));
    EXPECT_EQ(statistics_of_use().index_hits, 0);
  }
  Loader builder{source(), options(IndexUse::build, 1), 3, true};
  EXPECT_EQ(builder.applied_index().applied, "build");
  bytes_of(builder, 1);
  EXPECT_EQ(statistics_of_use().index_hits, 2 * kImages);
}

TEST_F(EntropyIndexFile, ADamagedRecordCostsItsImageAlone) {
  ASSERT_TRUE(build_entropy_index(*source(), 1, always));
  std::string text = read_file(file(), 1 << 24);
  text[40] = static_cast<char>(text[40] ^ 1);
  write_file(file(), text);
  const LoaderStatistics statistics = statistics_of_use();
  EXPECT_EQ(statistics.index_refused, 2);
  EXPECT_EQ(statistics.index_hits, 2 * kImages - 2);
  const auto summary = build_entropy_index(*source(), 1, always);
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->known, kImages - 1);
}

TEST_F(EntropyIndexFile, AnEpochThatIsLeftWritesNothing) {
  {
    Loader loader{source(), options(IndexUse::build, 2), 3, true};
    {
      auto epoch = loader.epoch(0);
      EXPECT_TRUE(epoch.next());
    }
    EXPECT_FALSE(fs::exists(file()));
  }
  int left = 0;
  for (const auto& entry : fs::directory_iterator(file().parent_path())) left += entry.path().filename() != "lock";
  EXPECT_EQ(left, 0);
}

TEST_F(EntropyIndexFile, OneOfTwoBuildersBuildsAndTheOtherLoadsWithout) {
  const auto expected = plain_bytes();
  Loader first{source(), options(IndexUse::build, 2), 3, true}, second{source(), options(IndexUse::build, 2), 3, true};
  EXPECT_EQ(first.applied_index().applied, "build");
  EXPECT_EQ(second.applied_index().requested, "build");
  EXPECT_EQ(second.applied_index().applied, "none");
  EXPECT_THAT(second.applied_index().reason, HasSubstr("is in use by process"));
  EXPECT_THAT(error_of(ErrorCode::io, [&] { build_entropy_index(*source(), 1, always); }),
              HasSubstr("is in use by process"));
  EXPECT_EQ(bytes_of(second), expected);
  EXPECT_EQ(bytes_of(first), expected);
  EXPECT_EQ(statistics_of_use().index_hits, 2 * kImages);
}

TEST_F(EntropyIndexFile, AFolderThatCannotBeWrittenIsSaidAndLoadedWithout) {
  const auto expected = plain_bytes();
  fs::permissions(images_.folder(),
                  fs::perms::all & ~fs::perms::owner_write & ~fs::perms::group_write & ~fs::perms::others_write);
  {
    const Unprivileged guard;
    Loader loader{source(), options(IndexUse::build, 2), 3, true};
    EXPECT_EQ(loader.applied_index().applied, "none");
    EXPECT_THAT(loader.applied_index().reason, HasSubstr("Permission denied"));
    EXPECT_EQ(bytes_of(loader), expected);
  }
  fs::permissions(images_.folder(), fs::perms::all);
}

TEST_F(EntropyIndexFile, ABuildThatIsStoppedChangesNothing) {
  // On one thread: of two, the one that asks may find every image taken.
  EXPECT_FALSE(build_entropy_index(*source(), 1, [](std::int64_t done) { return done < 5; }));
  EXPECT_FALSE(fs::exists(file()));
  EXPECT_TRUE(build_entropy_index(*source(), 2, always));
}

TEST_F(EntropyIndexFile, AnImageThatCannotBeReadIsCountedAndNamed) {
  const auto all = source();
  fs::remove(image("b/00002.jpg"));
  const auto summary = build_entropy_index(*all, 2, always);
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->unreadable, 1);
  EXPECT_EQ(summary->indexed, kImages - 1);
  EXPECT_THAT(summary->first_unreadable, HasSubstr("b/00002.jpg"));
}

TEST(EntropyIndexUse, PixelsHaveNone) {
  const std::shared_ptr<const Source> pixels = open_source("idx:/usr/share/datasets/fashion-mnist", Split::test);
  DataOptions options = options_of(100, 1);
  options.index = IndexUse::build;
  Loader loader{pixels, options, 1, false};
  EXPECT_EQ(loader.applied_index().applied, "none");
  EXPECT_THAT(loader.applied_index().reason, HasSubstr("no folder of JPEG files"));
  error_of(ErrorCode::invalid_argument, [&] { build_entropy_index(*pixels, 1, always); });
}

TEST_F(EntropyIndexFile, DecodingByItAllocatesOneHandleABatchInTheSteadyState) {
  ASSERT_TRUE(build_entropy_index(*source(), 1, always));
  for (const std::int64_t threads : {0, 2}) {
    Loader loader{source(), options(IndexUse::use, threads), 3, true};
    // Each worker meets its largest image and crop some time. An allocation a sample would never end.
    std::int64_t found = 0;
    for (std::int64_t index = 0; index < 60 && found != 5; ++index) {
      auto epoch = loader.epoch(index);
      std::optional<Batch> batch = epoch.next();
      const std::int64_t before = AllocationCount::allocations();
      for (int i = 0; i < 5; ++i) batch = epoch.next();
      found = AllocationCount::allocations() - before;
    }
    EXPECT_EQ(found, 5) << threads << " threads";
  }
}

}  // namespace
}  // namespace headrace
