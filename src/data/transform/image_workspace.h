// What one thread at a time needs to make images of samples, kept so that nothing is allocated from one to the next.
#pragma once

#include <headrace/operation.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "data/source/entropy_index_cache.h"
#include "data/transform/resize.h"
#include "media/codec/decode.h"

namespace headrace::detail {

// Buffers grow to the largest image. What images of ordinary size need stays; more is given back by trim().
struct ImageWorkspace {
  static constexpr std::int64_t kKeptMax = std::int64_t{64} << 20;

  std::vector<std::uint8_t> decoded;  // An image, or the part of it that a crop reads.
  std::vector<std::uint8_t> rows;     // Source::read_rows's buffer.
  std::vector<std::uint8_t> resized;
  // Of a list that is more than one pass: what lies between two of them, in turns; images before each operation; draws.
  std::array<std::vector<std::byte>, 2> between;
  std::vector<ImageSpec> images;
  std::vector<Drawn> drawn;
  // Fields that an operation reads, and by operation those that it leaves.
  std::vector<Payload> fields;
  std::vector<Sample> outputs;
  // Of an operation with partners: images before it, its own sample's first; the partners, their fields and draws.
  std::vector<std::vector<std::byte>> tiles;
  std::vector<Partner> partners;
  std::vector<std::vector<Payload>> partner_fields;
  std::vector<ImageSpec> partner_images;
  std::vector<Drawn> partner_drawn;
  codec::Decoder decoder;
  transform::Resizer resizer;
  EntropyIndexCache::Scratch entropy;

  std::int64_t bytes() const noexcept;  // Of the buffers, without what decoder and resizer keep.
  // Frees images between passes when the buffers together are larger than kKeptMax, and clears all when they still are.
  void trim();
  void free_between();  // Decoder and resizer keep what the next image needs.
  void clear();         // Frees the buffers, and what decoder and resizer keep.
};

}  // namespace headrace::detail
