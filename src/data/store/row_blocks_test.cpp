#include "data/store/row_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <string>

#include "core/base/files.h"
#include "data/store/pack_file.h"
#include "data/store/pack_writer.h"
#include "data/store/scratch_folder.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::uint8_t>;
using Mode = PackFileWriter::Mode;

struct Shape {
  std::uint32_t height, width;
  std::uint8_t channels;
};
constexpr Shape kShapes[] = {{1, 1, 1}, {15, 7, 3}, {16, 8, 3}, {17, 5, 1}, {33, 41, 3}, {100, 30, 4}, {48, 64, 2}};

PackRow row_of(const Shape& shape, BlockForm form) {
  PackRow row{};
  row.height = shape.height;
  row.width = shape.width;
  row.channels = shape.channels;
  row.form = static_cast<std::uint8_t>(form);
  return row;
}

// A slope with some noise, as a photograph has, or noise alone.
Bytes pixels_of(const Shape& shape, bool smooth) {
  std::mt19937 random{shape.height * 1000 + shape.width};
  Bytes pixels;
  for (std::uint32_t y = 0; y < shape.height; ++y) {
    for (std::uint32_t i = 0; i < shape.width * shape.channels; ++i) {
      pixels.push_back(static_cast<std::uint8_t>(smooth ? 2 * y + i / shape.channels + random() % 4 : random()));
    }
  }
  return pixels;
}

class RowBlocks : public ScratchFolder, public testing::WithParamInterface<BlockForm> {
 protected:
  void SetUp() override {
    PackFileWriter writer{path_, 1, {"a"}, Mode::fresh};
    RowBlockWriter blocks;
    for (const bool smooth : {true, false}) {
      for (const Shape& shape : kShapes) {
        const PackRow row = row_of(shape, GetParam());
        pixels_.push_back(pixels_of(shape, smooth));
        blocks.make(pixels_.back(), row, 0);
        writer.add(row, "a/" + std::to_string(pixels_.size()), blocks.bytes(), blocks.index());
      }
    }
    writer.commit();
  }

  Bytes rows(std::size_t sample, std::uint32_t first, std::uint32_t count) const {
    const auto stride = pixels_[sample].size() / kShapes[sample % std::size(kShapes)].height;
    const auto begin = pixels_[sample].begin() + static_cast<std::ptrdiff_t>(first * stride);
    return {begin, begin + static_cast<std::ptrdiff_t>(count * stride)};
  }

  const std::filesystem::path path_ = folder_ / "images.pack";
  std::vector<Bytes> pixels_;
};

TEST_P(RowBlocks, AnyRowsAreThoseThatWerePacked) {
  const PackFile pack{path_};
  Bytes buffer;
  for (std::size_t sample = 0; sample < pixels_.size(); ++sample) {
    const std::uint32_t height = pack.rows()[sample].height;
    for (std::uint32_t first = 0; first < height; first += 1 + height / 20) {
      for (const std::uint32_t count : {1U, (height - first + 1) / 2, height - first}) {
        const auto found = pack.read_rows(sample, first, count, buffer);
        ASSERT_EQ(Bytes(found.begin(), found.end()), rows(sample, first, count)) << sample << ": " << first;
      }
    }
  }
}

TEST_P(RowBlocks, OnlyTheBlocksOfTheRowsAreRead) {
  const std::size_t sample = 5;  // Of 100 rows.
  const PackRow row = PackFile{path_}.rows()[sample];
  std::string content = read_file(path_, 1 << 20);
  content[row.at + row.size - 1] ^= 1;  // In the last block.
  write("images.pack", content);
  const PackFile pack{path_};
  Bytes buffer;
  const auto found = pack.read_rows(sample, 0, 96, buffer);
  EXPECT_EQ(Bytes(found.begin(), found.end()), rows(sample, 0, 96));
  try {
    pack.read_rows(sample, 0, 97, buffer);
    FAIL() << "damage was not found";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
    EXPECT_THAT(error.what(), HasSubstr("images.pack:a/6: its"));
  }
}

TEST_P(RowBlocks, AnyFlippedBitOfASampleOrItsTableIsFound) {
  const std::size_t sample = 3;
  const PackRow row = PackFile{path_}.rows()[sample];
  const std::string whole = read_file(path_, 1 << 20);
  Bytes buffer;
  for (std::uint64_t at = row.at; at < row.at + row.size + row.index_size; ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 1 << (at % 8));
    write("images.pack", changed);
    EXPECT_THROW(PackFile{path_}.read_rows(sample, 0, row.height, buffer), Error) << at;
  }
}

// Whoever can write the checksums, too. What is read may be anything, but it has the size that was asked for.
TEST_P(RowBlocks, AnyTableAndBlocksAreReadOrRefused) {
  std::mt19937 random{1};
  const Shape shape{50, 40, 3};
  PackRow row = row_of(shape, GetParam());
  RowBlockWriter blocks;
  blocks.make(pixels_of(shape, true), row, 0);
  int refused = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    Bytes bytes(blocks.bytes().begin(), blocks.bytes().end()), index(blocks.index().begin(), blocks.index().end());
    for (Bytes* changed : {&bytes, &index}) {
      for (int change = trial % 3; change > 0; --change) {
        (*changed)[random() % changed->size()] = static_cast<std::uint8_t>(random());
      }
    }
    row.size = static_cast<std::uint32_t>(bytes.size());
    row.index_size = static_cast<std::uint32_t>(index.size());
    for (std::size_t block = 0, at = 0; block * sizeof(RowBlock) < index.size() - sizeof(RowBlocksHead); ++block) {
      RowBlock entry;
      std::uint8_t* const place = index.data() + sizeof(RowBlocksHead) + block * sizeof entry;
      std::memcpy(&entry, place, sizeof entry);
      if (entry.end < at || entry.end > bytes.size()) break;
      entry.check = low_check_of(std::span{bytes}.subspan(at, entry.end - at));
      at = entry.end;
      std::memcpy(place, &entry, sizeof entry);
    }
    ASSERT_TRUE(has_sound_blocks(row));
    const auto range = find_blocks(row, index, 10, 30);
    if (!range) {
      ++refused;
      continue;
    }
    ASSERT_EQ(range->rows, 48U);
    ASSERT_LE(range->begin + range->size, bytes.size());
    Bytes scratch(block_scratch_bytes(row)), made(scratch.empty() ? 0 : range->rows * row_bytes(row));
    const auto stored = std::span{bytes}.subspan(range->begin, range->size);
    if (!decode_blocks(row, index, *range, stored, scratch, made)) ++refused;
  }
  EXPECT_GT(refused, 100);
}

INSTANTIATE_TEST_SUITE_P(Forms, RowBlocks, testing::Values(BlockForm::raw, BlockForm::lz4),
                         [](const auto& tested) { return tested.param == BlockForm::raw ? "raw" : "lz4"; });

TEST(RowBlocksOfLz4, MakeSmoothImagesSmallerAndNoImageLarger) {
  const Shape shape{200, 300, 3};
  const PackRow row = row_of(shape, BlockForm::lz4);
  RowBlockWriter blocks;
  const Bytes smooth = pixels_of(shape, true), noise = pixels_of(shape, false);
  blocks.make(smooth, row, 0);
  EXPECT_LT(blocks.bytes().size(), smooth.size() * 6 / 10);
  blocks.make(noise, row, 0);
  EXPECT_EQ(blocks.bytes().size(), noise.size());
}

TEST(RowBlocksRows, ThatCannotBeAreToldBeforeMemoryIsTaken) {
  const Shape shape{100, 30, 3};
  RowBlockWriter blocks;
  for (const BlockForm form : {BlockForm::raw, BlockForm::lz4}) {
    PackRow row = row_of(shape, form);
    blocks.make(pixels_of(shape, true), row, 256);
    row.size = static_cast<std::uint32_t>(blocks.bytes().size());
    row.index_size = static_cast<std::uint32_t>(blocks.index().size());
    ASSERT_TRUE(has_sound_blocks(row));
    const std::vector<std::function<void(PackRow&)>> changes{
        [](PackRow& changed) { changed.form = 4; },
        [](PackRow& changed) { changed.height = 0; },
        [](PackRow& changed) { changed.height = 65'536; },
        [](PackRow& changed) { changed.height = changed.width = 65'535; },
        [](PackRow& changed) { changed.width = 0; },
        [](PackRow& changed) { changed.channels = 0; },
        [](PackRow& changed) { changed.channels = 5; },
        [](PackRow& changed) { changed.width *= 1000; },  // More pixels than LZ4 can put into so few bytes.
        [](PackRow& changed) { changed.size = 100 * 30 * 3 + 1; },
        [](PackRow& changed) { changed.size = 1; },
        [](PackRow& changed) { changed.index_size -= 1; },
    };
    for (std::size_t i = 0; i < changes.size(); ++i) {
      PackRow changed = row;
      changes[i](changed);
      EXPECT_FALSE(has_sound_blocks(changed)) << i;
    }
  }
}

}  // namespace
}  // namespace headrace
