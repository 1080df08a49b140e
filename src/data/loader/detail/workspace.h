// What one thread at a time needs to make samples, kept so that nothing is allocated from sample to sample.
#pragma once

#include <headrace/loader.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "data/transform/image_workspace.h"

namespace headrace::detail {

// Samples of a chunk that are read before the first is transformed.
inline constexpr std::int64_t kReadTogether = 16;

// Buffers grow to the largest image. What images of ordinary size need stays, in training also between epochs; more
// is given back by trim().
struct Workspace {
  static constexpr std::int64_t kKeptMax = ImageWorkspace::kKeptMax;

  // `fields`: of a sample. `announced_max`: indices that a source is told of together.
  explicit Workspace(std::size_t fields, std::int64_t announced_max = 0);

  // For a plan that is more than one pass: room for what operations change, and for so many partners.
  void make_room_for(std::size_t partners);

  std::vector<Sample> samples;  // kReadTogether, those read ahead together, then partners of one of them.
  std::vector<Sample> changed;  // What operations changed of each of them; none as long as none does.
  ImageWorkspace images;
  std::vector<std::uint8_t> rest;       // Of one sample, on its way into the cache.
  std::vector<CorruptSample> corrupt;   // Of the chunk.
  std::vector<std::int64_t> announced;  // Indices of a batch, for a source that expects them.

  bool reads_into_samples = true;  // False of a source in memory: their buffers stay empty, and nobody looks at them.
  std::int64_t counted = 0;        // Of bytes(), those that the loader's counters know of.

  std::int64_t bytes() const noexcept;  // Of the buffers, without what decoder and resizer keep, and indices.
  void trim();                          // As ImageWorkspace's, of all buffers together.
  void clear();                         // Frees the buffers, and what decoder and resizer keep.
};

}  // namespace headrace::detail
