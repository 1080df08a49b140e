// What the images of one epoch are made by: what an epoch hands to whoever makes its samples.
#pragma once

#include <headrace/options/data.h>

#include <cstdint>

#include "core/base/clock.h"
#include "data/source/entropy_index_cache.h"
#include "data/source/sample_reader.h"
#include "data/transform/normalize.h"

namespace headrace::detail {

// Constant while the epoch runs.
struct EpochTransform {
  const SampleReader& source;
  const transform::PixelForm form;  // Its table is the loader's.
  const DataOptions& options;
  const int channels, height, width;  // Of an image in a batch.
  const std::uint64_t seed;
  const std::int64_t epoch;
  const bool augment;
  EntropyIndexCache& indices;
  std::int64_t (*const clock)() noexcept = monotonic_ns;  // That times the stages of a sample.
};

}  // namespace headrace::detail
