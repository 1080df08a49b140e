#include "data/store/record_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>

#include <string>

#include "core/base/error_of.h"
#include "core/base/hash.h"
#include "data/store/scratch_folder.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::uint8_t>;

constexpr std::int64_t kMany = 1 << 20;
constexpr std::size_t kHeadBytes = 16, kPlaceBytes = 24, kTrailerBytes = 40;

class RecordFiles : public ScratchFolder {
 protected:
  const std::filesystem::path path_ = folder_ / "records";

  static Bytes record(std::uint64_t key) {
    Bytes bytes(static_cast<std::size_t>(key % 97));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(key + i * 7);
    return bytes;
  }

  void write_records(std::uint64_t first, std::uint64_t count) const {
    RecordFileWriter writer{path_};
    for (std::uint64_t i = first; i < first + count; ++i) writer.add(key_of(i), record(key_of(i)));
    writer.commit();
  }
  static std::uint64_t key_of(std::uint64_t number) { return number * 0x9E3779B97F4A7C15U; }

  std::string content() const { return read_file(path_, 1 << 24); }
  void replace(const std::string& bytes) const { write("records", bytes); }

  std::string refusal(ErrorCode code, std::int64_t records_max = kMany) const {
    std::string message = error_of(code, [&] { RecordFile{path_, records_max}; });
    EXPECT_THAT(message, HasSubstr(path_.string()));
    return message;
  }
};

TEST_F(RecordFiles, EachIsFoundByItsKeyAndNoOtherIs) {
  write_records(1, 500);
  const RecordFile file{path_, 500};
  EXPECT_EQ(file.size(), 500);
  EXPECT_EQ(file.bytes(), static_cast<std::int64_t>(std::filesystem::file_size(path_)));
  Bytes found;
  for (std::uint64_t i = 1; i <= 500; ++i) {
    ASSERT_EQ(file.find(key_of(i), found), RecordState::whole);
    EXPECT_EQ(found, record(key_of(i)));
    EXPECT_EQ(file.find(key_of(i) + 1, found), RecordState::absent);
  }
}

TEST_F(RecordFiles, OneWithoutRecordsIsWhole) {
  write_records(1, 0);
  const RecordFile file{path_, 0};
  Bytes found;
  EXPECT_EQ(file.find(0, found), RecordState::absent);
}

TEST_F(RecordFiles, WhatIsMissingIsTakenOverFromAnotherOne) {
  write_records(1, 20);
  {
    const RecordFile before{path_, kMany};
    RecordFileWriter writer{path_};
    writer.add(key_of(20), Bytes{1, 2, 3});
    writer.add(key_of(21), Bytes{4});
    writer.add_missing(before);
    EXPECT_EQ(writer.size(), 21);
    writer.commit();
    Bytes found;
    EXPECT_EQ(before.find(key_of(20), found), RecordState::whole);  // The replaced file stays readable.
    EXPECT_EQ(found, record(key_of(20)));
  }
  const RecordFile file{path_, kMany};
  Bytes found;
  ASSERT_EQ(file.find(key_of(20), found), RecordState::whole);
  EXPECT_EQ(found, (Bytes{1, 2, 3}));
  ASSERT_EQ(file.find(key_of(7), found), RecordState::whole);
  EXPECT_EQ(found, record(key_of(7)));
}

TEST_F(RecordFiles, CutAnywhereItIsRefused) {
  write_records(1, 9);
  const std::string whole = content();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    replace(whole.substr(0, size));
    refusal(ErrorCode::corrupt_data);
  }
  replace(whole + "x");
  refusal(ErrorCode::corrupt_data);
}

// A flipped bit is in a record, which then is damaged, or anywhere else, and then nothing is used.
TEST_F(RecordFiles, AnyFlippedBitIsFound) {
  write_records(1, 9);
  const std::string whole = content();
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 1 << (at % 8));
    replace(changed);
    const std::size_t table_at = whole.size() - kTrailerBytes - 9 * kPlaceBytes;
    if (at >= table_at || at < kHeadBytes) {
      refusal(at >= 8 && at < 12 ? ErrorCode::unsupported : ErrorCode::corrupt_data);
      continue;
    }
    const RecordFile file{path_, kMany};
    Bytes found;
    int damaged = 0;
    for (std::uint64_t i = 1; i <= 9; ++i) {
      const RecordState state = file.find(key_of(i), found);
      damaged += state == RecordState::damaged ? 1 : 0;
      if (state == RecordState::whole) {
        EXPECT_EQ(found, record(key_of(i)));
      }
    }
    EXPECT_EQ(damaged, 1) << at;
  }
}

// Whoever can write the checksums, too, can point anywhere but outside the records.
TEST_F(RecordFiles, ATableThatPointsOutsideIsRefusedWhateverItsChecksums) {
  write_records(1, 3);
  const std::string whole = content();
  const std::size_t trailer_at = whole.size() - kTrailerBytes, table_at = trailer_at - 3 * kPlaceBytes;
  const auto with = [&](std::size_t at, std::uint64_t value, std::size_t bytes) {
    std::string changed = whole;
    for (std::size_t i = 0; i < bytes; ++i) changed[at + i] = static_cast<char>(value >> (8 * i));
    const auto put_hash = [&changed](std::size_t begin, std::size_t end, std::size_t to) {
      const std::uint64_t hash = xxh3(std::as_bytes(std::span{changed}.subspan(begin, end - begin)));
      for (std::size_t i = 0; i < 8; ++i) changed[to + i] = static_cast<char>(hash >> (8 * i));
    };
    if (at < trailer_at) put_hash(table_at, trailer_at, trailer_at + 16);
    put_hash(trailer_at, trailer_at + 24, trailer_at + 24);
    return changed;
  };
  for (const std::uint64_t place : {std::uint64_t{0}, std::uint64_t{whole.size()}, ~std::uint64_t{0}}) {
    replace(with(table_at + kPlaceBytes + 8, place, 8));
    EXPECT_THAT(refusal(ErrorCode::corrupt_data), HasSubstr("a record of"));
  }
  replace(with(table_at + 16, 0xFFFFFFFF, 4));
  EXPECT_THAT(refusal(ErrorCode::corrupt_data), HasSubstr("a record of"));
  replace(with(table_at, ~std::uint64_t{0}, 8));
  EXPECT_THAT(refusal(ErrorCode::corrupt_data), HasSubstr("out of order"));
  for (const std::uint64_t count : {std::uint64_t{2}, std::uint64_t{4}, std::uint64_t{1000}}) {
    replace(with(trailer_at, count, 8));
    EXPECT_THAT(refusal(ErrorCode::corrupt_data), HasSubstr("a table of"));
  }
  replace(with(trailer_at, std::uint64_t{1} << 60, 8));
  EXPECT_THAT(refusal(ErrorCode::unsupported), HasSubstr("1152921504606846976 records; at most 1048576"));
  replace(with(trailer_at + 8, whole.size() + 5, 8));
  refusal(ErrorCode::corrupt_data);
}

TEST_F(RecordFiles, OtherFilesAreRefusedByName) {
  EXPECT_THAT(refusal(ErrorCode::not_found), HasSubstr("No such file"));
  replace(std::string(500, 'x'));
  EXPECT_THAT(refusal(ErrorCode::corrupt_data), HasSubstr("is not a record file"));
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  refusal(ErrorCode::corrupt_data);
}

TEST_F(RecordFiles, NothingIsThereBeforeTheEndAndTheOldOneStaysUntilThen) {
  write_records(1, 3);
  {
    RecordFileWriter writer{path_};
    writer.add(1, Bytes{1});
    EXPECT_EQ((RecordFile{path_, kMany}.size()), 3);
  }
  EXPECT_EQ((RecordFile{path_, kMany}.size()), 3);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);  // The unfinished one is gone.
}

}  // namespace
}  // namespace headrace
