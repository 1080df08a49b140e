// Images as blocks of whole rows. Each block has a checksum of its own and may be compressed, so that a crop reads
// the rows it needs and nothing else.
//
// A sample's bytes are its blocks, one behind the other, of kBlockRows rows each and what is left in the last one. Its
// index (data/store/pack_format.h) is RowBlocksHead and a RowBlock for each; little-endian. A block of form lz4 that
// has as many bytes as its pixels is those; else it is an LZ4 block (LZ4 block format, lz4.org) of bit planes: each
// value less the one above it, in a block's first row less the one of its channel to the left, modulo 256, with the
// sign moved to the lowest bit; of the differences, padded with zeros to a whole number of eight, first all lowest
// bits, eight a byte, then the next ones. So the upper planes of smooth images are runs of zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "data/store/pack_format.h"

namespace headrace {

constexpr std::uint32_t kBlockRows = 16;

// PackRow::form of samples in blocks; what other forms there are says whoever packs.
enum class BlockForm : std::uint8_t { raw = 2, lz4 = 3 };

struct RowBlocksHead {
  std::uint32_t short_side;  // That the image was resized to when it was longer; 0: none was asked for.
};
struct RowBlock {
  std::uint32_t end;    // Of its bytes within the sample's.
  std::uint32_t check;  // Lower half of their XXH3.
};

// By its form alone.
bool has_blocks(const PackRow& row) noexcept;
// Whether form, height and width (1 to 65,535), channels (1 to 4) and sizes are those of an image in blocks of at most
// kPackSampleBytesMax bytes of pixels, raw and stored.
bool has_sound_blocks(const PackRow& row) noexcept;
std::size_t row_bytes(const PackRow& row) noexcept;

// Makes samples in blocks; keeps its memory between them. For one thread at a time.
class RowBlockWriter {
 public:
  // pixels: HWC, of the row's height, width and channels, which must be sound for row.form. Valid until the next call
  // are:
  void make(std::span<const std::uint8_t> pixels, const PackRow& row, std::uint32_t short_side);
  std::span<const std::uint8_t> bytes() const noexcept { return bytes_; }
  std::span<const std::uint8_t> index() const noexcept { return index_; }

 private:
  void add_block(std::span<const std::uint8_t> pixels, const PackRow& row);

  std::vector<std::uint8_t> bytes_, index_, planes_;
};

// Consecutive blocks of a sample, and where they lie.
struct BlockRange {
  std::uint32_t first = 0;  // Block.
  std::uint32_t end = 0;    // One more than the last.
  std::uint32_t first_row = 0;
  std::uint32_t rows = 0;   // Of all of them together.
  std::uint64_t begin = 0;  // Of their bytes within the sample's.
  std::uint64_t size = 0;
};

// The blocks that hold rows [first_row, first_row + rows), at least one, of a sample with sound blocks. nullopt: the
// index, whatever its bytes, is not of such a sample.
std::optional<BlockRange> find_blocks(const PackRow& row, std::span<const std::uint8_t> index, std::uint32_t first_row,
                                      std::uint32_t rows) noexcept;

// What decode_blocks() needs beside the pixels it writes; 0 where it writes none, as the stored bytes are the pixels.
std::size_t block_scratch_bytes(const PackRow& row) noexcept;

// Whether `stored`, the bytes of the range, are those that were packed. Of form lz4 their pixels are written to
// `pixels`, all rows of the range; false also where they are none. Reads and writes nothing else, whatever the bytes.
bool decode_blocks(const PackRow& row, std::span<const std::uint8_t> index, const BlockRange& range,
                   std::span<const std::uint8_t> stored, std::span<std::uint8_t> scratch,
                   std::span<std::uint8_t> pixels) noexcept;

}  // namespace headrace
