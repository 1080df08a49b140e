#include "data/store/row_blocks.h"

#include <lz4.h>
#include <lz4hc.h>

#include <algorithm>
#include <cstring>

#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr std::uint32_t kSideMax = 65'535;
constexpr std::uint32_t kRatioMax = 255;  // LZ4 makes no block smaller than this, so a smaller one is none.
constexpr std::size_t kPlanes = 8;

std::uint32_t block_count(const PackRow& row) noexcept {
  return (row.height + kBlockRows - 1) / kBlockRows;
}

std::uint32_t rows_of_block(const PackRow& row, std::uint32_t block) noexcept {
  return std::min(kBlockRows, row.height - block * kBlockRows);
}

RowBlock block_at(std::span<const std::uint8_t> index, std::uint32_t block) noexcept {
  RowBlock found;
  std::memcpy(&found, index.data() + sizeof(RowBlocksHead) + block * sizeof found, sizeof found);
  return found;
}

// Bytes of one plane of so many values.
std::size_t plane_bytes(std::size_t values) noexcept {
  return (values + 7) / 8;
}

// The bits of 8 bytes, bit j of byte i as bit i of byte j. H. S. Warren, "Hacker's Delight", 2nd edition, 7-3.
std::uint64_t transposed(std::uint64_t bits) noexcept {
  std::uint64_t swapped = (bits ^ (bits >> 7)) & 0x00AA00AA00AA00AA;
  bits ^= swapped ^ (swapped << 7);
  swapped = (bits ^ (bits >> 14)) & 0x0000CCCC0000CCCC;
  bits ^= swapped ^ (swapped << 14);
  swapped = (bits ^ (bits >> 28)) & 0x00000000F0F0F0F0;
  return bits ^ swapped ^ (swapped << 28);
}

// A difference modulo 256 with its sign in the lowest bit, so that small ones of either sign have no high bits.
std::uint8_t folded(int difference) noexcept {
  const auto value = static_cast<std::int8_t>(difference);
  return static_cast<std::uint8_t>(value * 2 ^ value >> 7);
}

void to_planes(std::span<const std::uint8_t> pixels, std::size_t stride, std::size_t channels, std::uint8_t* planes) {
  const std::size_t plane = plane_bytes(pixels.size());
  for (std::size_t at = 0; at < pixels.size(); at += 8) {
    std::uint8_t eight[8] = {};
    for (std::size_t i = 0; i < std::min<std::size_t>(8, pixels.size() - at); ++i) {
      const std::size_t place = at + i, distance = place < stride ? channels : stride;
      eight[i] = folded(pixels[place] - (place < distance ? 0 : pixels[place - distance]));
    }
    std::uint64_t bits;
    std::memcpy(&bits, eight, sizeof bits);
    bits = transposed(bits);
    for (std::size_t k = 0; k < kPlanes; ++k) planes[k * plane + at / 8] = static_cast<std::uint8_t>(bits >> 8 * k);
  }
}

// Turns the first row's differences into values, then each row's by the one above it.
void add_up(std::span<std::uint8_t> pixels, std::size_t stride, std::size_t channels) noexcept {
  for (std::size_t i = channels; i < stride; ++i) {
    pixels[i] = static_cast<std::uint8_t>(pixels[i] + pixels[i - channels]);
  }
  for (std::size_t i = stride; i < pixels.size(); ++i) {
    pixels[i] = static_cast<std::uint8_t>(pixels[i] + pixels[i - stride]);
  }
}

void from_planes(const std::uint8_t* planes, std::span<std::uint8_t> pixels) noexcept {
  const std::size_t plane = plane_bytes(pixels.size());
  for (std::size_t at = 0; at < plane; ++at) {
    std::uint64_t bits = 0;
    for (std::size_t k = 0; k < kPlanes; ++k) bits |= std::uint64_t{planes[k * plane + at]} << 8 * k;
    bits = transposed(bits);
    // Of every byte: v >> 1 ^ -(v & 1).
    const std::uint64_t signs = (bits & 0x0101010101010101) * 0xFF;
    bits = ((bits >> 1) & 0x7F7F7F7F7F7F7F7F) ^ signs;
    std::memcpy(pixels.data() + at * 8, &bits, std::min<std::size_t>(8, pixels.size() - at * 8));
  }
}

bool decode(const PackRow& row, std::span<const std::uint8_t> stored, std::span<std::uint8_t> planes,
            std::span<std::uint8_t> pixels) noexcept {
  if (stored.size() == pixels.size()) {
    std::copy(stored.begin(), stored.end(), pixels.begin());
    return true;
  }
  const auto wanted = static_cast<int>(kPlanes * plane_bytes(pixels.size()));
  const int made = LZ4_decompress_safe(reinterpret_cast<const char*>(stored.data()),
                                       reinterpret_cast<char*>(planes.data()), static_cast<int>(stored.size()), wanted);
  if (made != wanted) return false;
  from_planes(planes.data(), pixels);
  add_up(pixels, row_bytes(row), row.channels);
  return true;
}

}  // namespace

bool has_blocks(const PackRow& row) noexcept {
  return row.form == static_cast<std::uint8_t>(BlockForm::raw) || row.form == static_cast<std::uint8_t>(BlockForm::lz4);
}

std::size_t row_bytes(const PackRow& row) noexcept {
  return std::size_t{row.width} * row.channels;
}

bool has_sound_blocks(const PackRow& row) noexcept {
  if (!has_blocks(row) || row.height < 1 || row.height > kSideMax || row.width < 1 || row.width > kSideMax ||
      row.channels < 1 || row.channels > 4) {
    return false;
  }
  const std::uint64_t pixels = std::uint64_t{row.height} * row_bytes(row);
  const bool raw = row.form == static_cast<std::uint8_t>(BlockForm::raw);
  return pixels <= kPackSampleBytesMax &&
         row.index_size == sizeof(RowBlocksHead) + block_count(row) * sizeof(RowBlock) &&
         (raw ? row.size == pixels : row.size <= pixels && row.size >= pixels / kRatioMax);
}

void RowBlockWriter::make(std::span<const std::uint8_t> pixels, const PackRow& row, std::uint32_t short_side) {
  HEADRACE_CHECK(
      pixels.size() == row.height * row_bytes(row) && pixels.size() <= kPackSampleBytesMax && has_blocks(row),
      "store: {} bytes of pixels as {} x {} x {} of form {}", pixels.size(), row.height, row.width, row.channels,
      row.form);
  const RowBlocksHead head{short_side};
  index_.resize(sizeof head);
  std::memcpy(index_.data(), &head, sizeof head);
  bytes_.clear();
  for (std::uint32_t block = 0; block < block_count(row); ++block) {
    const std::size_t size = rows_of_block(row, block) * row_bytes(row);
    add_block(pixels.first(size), row);
    pixels = pixels.subspan(size);
  }
}

void RowBlockWriter::add_block(std::span<const std::uint8_t> pixels, const PackRow& row) {
  const std::size_t begin = bytes_.size();
  int compressed = 0;
  if (row.form == static_cast<std::uint8_t>(BlockForm::lz4)) {
    planes_.resize(kPlanes * plane_bytes(pixels.size()));
    to_planes(pixels, row_bytes(row), row.channels, planes_.data());
    bytes_.resize(begin + pixels.size());
    compressed =
        LZ4_compress_HC(reinterpret_cast<const char*>(planes_.data()), reinterpret_cast<char*>(bytes_.data() + begin),
                        static_cast<int>(planes_.size()), static_cast<int>(pixels.size()) - 1, LZ4HC_CLEVEL_DEFAULT);
    bytes_.resize(begin + static_cast<std::size_t>(compressed));
  }
  if (compressed == 0) bytes_.insert(bytes_.end(), pixels.begin(), pixels.end());
  const RowBlock block{static_cast<std::uint32_t>(bytes_.size()),
                       low_check_of(std::span<const std::uint8_t>{bytes_}.subspan(begin))};
  const auto* const entry = reinterpret_cast<const std::uint8_t*>(&block);
  index_.insert(index_.end(), entry, entry + sizeof block);
}

std::optional<BlockRange> find_blocks(const PackRow& row, std::span<const std::uint8_t> index, std::uint32_t first_row,
                                      std::uint32_t rows) noexcept {
  HEADRACE_CHECK(has_sound_blocks(row) && rows >= 1 && first_row < row.height && rows <= row.height - first_row,
                 "store: rows {} + {} of {}", first_row, rows, row.height);
  if (index.size() != row.index_size) return std::nullopt;
  BlockRange range;
  range.first = first_row / kBlockRows;
  range.end = (first_row + rows - 1) / kBlockRows + 1;
  range.first_row = range.first * kBlockRows;
  range.rows = std::min(range.end * kBlockRows, row.height) - range.first_row;
  const bool raw = row.form == static_cast<std::uint8_t>(BlockForm::raw);
  std::uint64_t at = range.begin = range.first == 0 ? 0 : block_at(index, range.first - 1).end;
  for (std::uint32_t block = range.first; block < range.end; ++block) {
    const std::uint64_t end = block_at(index, block).end, pixels = rows_of_block(row, block) * row_bytes(row);
    if (end <= at || end > row.size || end - at > pixels || (raw && end - at != pixels)) return std::nullopt;
    at = end;
  }
  range.size = at - range.begin;
  return range;
}

std::size_t block_scratch_bytes(const PackRow& row) noexcept {
  if (row.form == static_cast<std::uint8_t>(BlockForm::raw)) return 0;
  return kPlanes * plane_bytes(std::min(kBlockRows, row.height) * row_bytes(row));
}

bool decode_blocks(const PackRow& row, std::span<const std::uint8_t> index, const BlockRange& range,
                   std::span<const std::uint8_t> stored, std::span<std::uint8_t> scratch,
                   std::span<std::uint8_t> pixels) noexcept {
  const bool raw = row.form == static_cast<std::uint8_t>(BlockForm::raw);
  std::uint64_t at = range.begin;
  for (std::uint32_t block = range.first; block < range.end; ++block) {
    const RowBlock entry = block_at(index, block);
    const auto bytes = stored.subspan(at - range.begin, entry.end - at);
    at = entry.end;
    if (low_check_of(bytes) != entry.check) return false;
    if (raw) continue;
    const auto target = pixels.first(rows_of_block(row, block) * row_bytes(row));
    pixels = pixels.subspan(target.size());
    if (!decode(row, bytes, scratch, target)) return false;
  }
  return true;
}

}  // namespace headrace
