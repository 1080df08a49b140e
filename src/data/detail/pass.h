// One pass over the data.
#pragma once

#include <headrace/loader.h>

#include <atomic>
#include <cstdint>
#include <limits>

#include "base/random.h"
#include "data/data_options.h"
#include "data/detail/entropy_shelf.h"
#include "image/normalize.h"

namespace headrace::detail {

// What a sample's bytes depend on. Constant while the pass runs, but for `stop_at`. Positions count the samples of the
// whole pass in their order.
struct Pass {
  std::int64_t sample_at(std::int64_t position) const { return shuffle ? order(position) : position; }

  const Source& source;
  const image::PixelForm form;  // Its table is the loader's.
  const TransformOptions& transform;
  const PictureShape shape;  // Of the batches.
  const OnCorrupt on_corrupt;
  const std::uint64_t seed;
  const std::int64_t epoch;
  const bool shuffle;
  const bool augment;
  const Permutation order;
  EntropyShelf& indices;

  // Samples from this position on are not wanted any more: the first error's position, 0 when the epoch is given up.
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  std::atomic<std::int64_t> stop_at{kNever};
};

}  // namespace headrace::detail
