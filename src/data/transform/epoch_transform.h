// What the images of one epoch are made by: what an epoch hands to whoever makes its samples.
#pragma once

#include <headrace/options/data.h>
#include <headrace/source.h>

#include <cstdint>

#include "core/base/clock.h"
#include "data/source/entropy_index_cache.h"
#include "data/transform/fused_stage.h"

namespace headrace::detail {

// Constant while the epoch runs.
struct EpochTransform {
  const ImageRows* const rows_of;      // Gives the rows of images that come without bytes. Null: all have theirs.
  const transform::FusedStage& stage;  // The loader's.
  const DataOptions& options;          // Of reading and decoding.
  const std::uint64_t seed;
  const std::int64_t epoch;
  EntropyIndexCache* const indices;                       // Null: none is used.
  std::int64_t (*const clock)() noexcept = monotonic_ns;  // That times the stages of a sample.
};

}  // namespace headrace::detail
