// One pass over the data.
#pragma once

#include <headrace/loader.h>

#include <atomic>
#include <cstdint>
#include <limits>

#include "base/clock.h"
#include "data/data_options.h"
#include "data/detail/entropy_index_cache.h"
#include "data/detail/order.h"
#include "image/normalize.h"

namespace headrace::detail {

// What a sample's bytes depend on. Constant while the pass runs, but for `stop_at`.
struct Pass {
  // What is drawn for a sample that may come again in the epoch goes by its position.
  std::int64_t draws_of(std::int64_t position, std::int64_t index) const { return repeats ? position : index; }

  const Source& source;
  const image::PixelForm form;  // Its table is the loader's.
  const DataOptions& options;
  const ImageShape shape;  // Of the batches.
  const OnCorrupt on_corrupt;
  const std::uint64_t seed;
  const std::int64_t epoch;
  const bool augment;
  const EpochOrder order;
  const bool repeats;
  const BatchSampler batch_sampler;
  EntropyIndexCache& indices;
  std::int64_t (*const clock)() noexcept = monotonic_ns;  // That times the stages of a chunk.

  // Places of this rank's batches, counted through the epoch, that are not wanted any more begin here: at the first
  // error, or at 0 when the epoch is given up.
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  std::atomic<std::int64_t> stop_at{kNever};
};

}  // namespace headrace::detail
