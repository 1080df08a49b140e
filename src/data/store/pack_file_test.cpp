#include "data/store/pack_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include "core/base/error_of.h"
#include "core/base/files.h"
#include "data/store/pack_writer.h"
#include "data/store/scratch_folder.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::uint8_t>;
using Mode = PackFileWriter::Mode;

const std::vector<std::string> kClasses{"cat", "dog"};
constexpr std::uint64_t kFingerprint = 77;

class Packs : public ScratchFolder {
 protected:
  const std::filesystem::path path_ = folder_ / "data.pack";

  static Bytes sample(int number) {
    return Bytes(static_cast<std::size_t>(number * 13), static_cast<std::uint8_t>(number));
  }
  static Bytes index(int number) { return Bytes(static_cast<std::size_t>(number % 3), 9); }
  static std::string name(int number) { return "cat/" + std::to_string(number) + ".jpg"; }

  static void add(PackFileWriter& writer, int first, int count) {
    for (int i = first; i < first + count; ++i) {
      PackRow row{};
      row.label = static_cast<std::uint32_t>(i % 2);
      writer.add(row, name(i), sample(i), index(i));
    }
  }
  void write_pack(int count) const {
    PackFileWriter writer{path_, kFingerprint, kClasses, Mode::fresh};
    add(writer, 0, count);
    writer.commit();
  }
  void expect_samples(int count) const {
    const PackFile pack{path_};
    ASSERT_EQ(std::ssize(pack.rows()), count);
    EXPECT_EQ(pack.classes(), kClasses);
    EXPECT_EQ(pack.fingerprint(), kFingerprint);
    Bytes buffer;
    for (int i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const PackedBytes read = pack.read(at, buffer);
      EXPECT_EQ(Bytes(read.bytes.begin(), read.bytes.end()), sample(i));
      EXPECT_EQ(Bytes(read.index.begin(), read.index.end()), index(i));
      EXPECT_EQ(pack.name(at), name(i));
      EXPECT_EQ(pack.rows()[at].label, static_cast<std::uint32_t>(i % 2));
    }
  }

  std::string refusal_to_open(ErrorCode code) const {
    return error_of(code, [this] { PackFile{path_}; });
  }
  std::string content(const std::filesystem::path& path) const { return read_file(path, 1 << 24); }
};

TEST_F(Packs, SamplesAreReadAsTheyWerePacked) {
  write_pack(40);
  expect_samples(40);
  EXPECT_FALSE(std::filesystem::exists(partial_pack(path_)));
}

TEST_F(Packs, AWriterThatIsGoneIsGoneOnWith) {
  { add(*std::make_unique<PackFileWriter>(path_, kFingerprint, kClasses, Mode::fresh), 0, 7); }
  EXPECT_THAT(refusal_to_open(ErrorCode::not_found), HasSubstr("it is not finished"));
  PackFileWriter writer{path_, kFingerprint, kClasses, Mode::fresh};
  EXPECT_EQ(std::ssize(writer.rows()), 7);
  EXPECT_EQ(writer.name(6), name(6));
  add(writer, 7, 5);
  writer.commit();
  expect_samples(12);
}

// What a kill leaves is the file cut anywhere; also within the table, and behind it.
TEST_F(Packs, CutAnywhereTheWholeSamplesAreKept) {
  write_pack(5);
  const std::string whole = content(path_);
  std::vector<std::uint64_t> ends{sizeof(PackHead)};
  {
    const PackFile pack{path_};
    for (const PackRow& row : pack.rows()) ends.push_back(row.at + row.size + row.index_size);
  }
  std::filesystem::remove(path_);
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    write("data.pack.partial", whole.substr(0, size));
    PackFileWriter writer{path_, kFingerprint, kClasses, Mode::fresh};
    const auto kept = std::count_if(ends.begin() + 1, ends.end(), [size](std::uint64_t end) { return end <= size; });
    ASSERT_EQ(std::ssize(writer.rows()), kept) << size;
    if (size % 50 != 0) continue;
    add(writer, static_cast<int>(kept), static_cast<int>(5 - kept));
    writer.commit();
    EXPECT_EQ(content(path_), whole);
    std::filesystem::remove(path_);
  }
}

TEST_F(Packs, APackThatIsCutOffIsRefused) {
  write_pack(4);
  const std::string whole = content(path_);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write("data.pack", whole.substr(0, size));
    refusal_to_open(ErrorCode::corrupt_data);
  }
}

TEST_F(Packs, AnyFlippedBitIsFound) {
  write_pack(4);
  const std::string whole = content(path_);
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 1 << (at % 8));
    write("data.pack", changed);
    int damaged = 0;
    try {
      const PackFile pack{path_};
      Bytes buffer;
      for (std::size_t i = 0; i < pack.rows().size(); ++i) {
        try {
          damaged += pack.read(i, buffer).index.size() == pack.rows()[i].index_size ? 0 : 1;
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
          EXPECT_THAT(error.what(), HasSubstr("data.pack:cat/"));
          ++damaged;
        }
      }
      // Rows and names stand twice; those among the samples are for a writer that goes on.
      const PackRow* row = pack.rows().data();
      bool in_samples = false;
      for (int i = 0; i < 4; ++i, ++row) in_samples |= at >= row->at && at < row->at + row->size + row->index_size;
      EXPECT_EQ(damaged, in_samples ? 1 : 0) << at;
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::corrupt_data || error.code() == ErrorCode::unsupported) << error.what();
    }
  }
}

// Whoever can write the checksums, too.
TEST_F(Packs, ATableThatPointsOutsideIsRefusedWhateverItsChecksums) {
  write_pack(3);
  const std::string whole = content(path_);
  const auto with = [&](const std::function<void(PackTrailer&, PackRow*)>& change) {
    std::string changed = whole;
    PackTrailer trailer;
    std::memcpy(&trailer, changed.data() + changed.size() - sizeof trailer, sizeof trailer);
    PackRow rows[3];
    std::memcpy(rows, changed.data() + trailer.table_at, sizeof rows);
    const std::uint64_t table_at = trailer.table_at;
    change(trailer, rows);
    std::memcpy(changed.data() + table_at, rows, sizeof rows);
    const auto table = std::as_bytes(std::span{changed}).subspan(table_at, whole.size() - sizeof trailer - table_at);
    trailer.table_hash = xxh3(table);
    trailer.check = check_of(trailer);
    std::memcpy(changed.data() + changed.size() - sizeof trailer, &trailer, sizeof trailer);
    write("data.pack", changed);
  };
  constexpr std::uint64_t kHuge = ~std::uint64_t{0};
  const std::vector<std::function<void(PackTrailer&, PackRow*)>> changes{
      [](PackTrailer&, PackRow* rows) { rows[1].at = kHuge; },
      [](PackTrailer&, PackRow* rows) { rows[1].at = 0; },
      [](PackTrailer&, PackRow* rows) { rows[2].size = 0xFFFFFFFF; },
      [](PackTrailer&, PackRow* rows) { rows[2].index_size = 0xFFFFFFFF; },
      [](PackTrailer&, PackRow* rows) { rows[0].name_size = 0; },
      [](PackTrailer&, PackRow* rows) { rows[0].name_size = 0xFFFFFFFF; },
      [](PackTrailer&, PackRow* rows) { rows[2].name_size += 9; },
      [](PackTrailer& trailer, PackRow*) { trailer.samples = kHuge; },
      [](PackTrailer& trailer, PackRow*) { trailer.samples = 4; },
      [](PackTrailer& trailer, PackRow*) { trailer.names_bytes = kHuge; },
      [](PackTrailer& trailer, PackRow*) { trailer.classes_bytes = kHuge; },
      [](PackTrailer& trailer, PackRow*) { trailer.table_at = kHuge; },
      [](PackTrailer& trailer, PackRow*) { trailer.table_at = 0; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(i);
    with(changes[i]);
    refusal_to_open(ErrorCode::corrupt_data);
  }
}

TEST_F(Packs, AppendingKeepsWhatIsThereAlsoWhenItIsInterrupted) {
  write_pack(4);
  { add(*std::make_unique<PackFileWriter>(path_, 1, kClasses, Mode::append), 4, 2); }
  EXPECT_FALSE(std::filesystem::exists(path_));
  PackFileWriter writer{path_, 2, kClasses, Mode::append};
  EXPECT_EQ(std::ssize(writer.rows()), 6);
  add(writer, 6, 1);
  writer.commit();
  expect_samples(7);
}

TEST_F(Packs, WhatIsNotMeantIsRefusedAndStays) {
  write_pack(4);
  EXPECT_THAT(
      error_of(ErrorCode::invalid_argument, [&] { PackFileWriter(path_, kFingerprint, kClasses, Mode::fresh); }),
      HasSubstr("exists already"));
  EXPECT_THAT(
      error_of(ErrorCode::invalid_argument, [&] { PackFileWriter(path_, kFingerprint, {"cat"}, Mode::append); }),
      HasSubstr("has other classes"));
  expect_samples(4);
  const auto other = folder_ / "other.pack";
  { add(*std::make_unique<PackFileWriter>(other, kFingerprint, kClasses, Mode::fresh), 0, 2); }
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { PackFileWriter(other, 3, kClasses, Mode::fresh); }),
              HasSubstr("was begun with other data"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { PackFileWriter(other, kFingerprint, {}, Mode::append); }),
              HasSubstr("was begun with other classes"));
  write("third.pack.partial", std::string(100, 'x'));
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { PackFileWriter(folder_ / "third.pack", 3, {}, Mode::fresh); }),
              HasSubstr("is no unfinished pack"));
  EXPECT_EQ(content(folder_ / "third.pack.partial"), std::string(100, 'x'));
}

TEST_F(Packs, TwoWritersOfOnePackNeverMeet) {
  PackFileWriter first{path_, kFingerprint, kClasses, Mode::fresh};
  add(first, 0, 3);
  EXPECT_THAT(error_of(ErrorCode::io, [&] { PackFileWriter(path_, kFingerprint, kClasses, Mode::fresh); }),
              HasSubstr("is being written by another process"));
  add(first, 3, 3);
  first.commit();
  expect_samples(6);
}

TEST_F(Packs, OtherFilesAreRefusedByName) {
  EXPECT_THAT(refusal_to_open(ErrorCode::not_found), HasSubstr("No such file"));
  write("data.pack", std::string(500, 'x'));
  EXPECT_THAT(refusal_to_open(ErrorCode::corrupt_data), HasSubstr("data.pack is not a pack"));
}

TEST_F(Packs, OneThatShrinksUnderItsReaderIsNamed) {
  write_pack(4);
  const PackFile pack{path_};
  std::filesystem::resize_file(path_, 60);
  Bytes buffer;
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { pack.read(3, buffer); }),
              HasSubstr("the pack has become shorter"));
}

}  // namespace
}  // namespace headrace
