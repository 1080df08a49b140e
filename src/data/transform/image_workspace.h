// What one thread at a time needs to make images of samples, kept so that nothing is allocated from one to the next.
#pragma once

#include <cstdint>
#include <vector>

#include "data/source/entropy_index_cache.h"
#include "data/transform/resize.h"
#include "media/codec/decode.h"

namespace headrace::detail {

// Buffers grow to the largest image.
struct ImageWorkspace {
  std::vector<std::uint8_t> decoded;  // An image, or the part of it that a crop reads.
  std::vector<std::uint8_t> rows;     // Source::read_rows's buffer.
  std::vector<std::uint8_t> resized;
  codec::Decoder decoder;
  transform::Resizer resizer;
  EntropyIndexCache::Scratch entropy;

  std::int64_t bytes() const noexcept;  // Of the buffers, without what decoder and resizer keep.
  void clear();                         // Frees the buffers, and what decoder and resizer keep.
};

}  // namespace headrace::detail
