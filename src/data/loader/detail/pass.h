// One pass over the data.
#pragma once

#include <headrace/options/data.h>

#include <atomic>
#include <cstdint>
#include <limits>

#include "data/loader/detail/batch_layout.h"
#include "data/loader/detail/order.h"
#include "data/source/field_bytes.h"
#include "data/source/sample_reader.h"
#include "data/transform/epoch_transform.h"
#include "data/transform/plan.h"

namespace headrace::detail {

// What a sample's bytes depend on. Constant while the pass runs, but for `stop_at` and where an open end is. On cache
// lines of its own, as a stage.
struct alignas(64) Pass : EpochTransform {
  std::int64_t draws_of(std::int64_t position, std::int64_t index) const { return order.draws_of(position, index); }

  const SampleReader& source;
  const OnCorrupt on_corrupt;
  const EpochOrder order;
  BatchSampler batch_sampler;   // Of a source of unknown size it changes once, while nobody works.
  const BatchLayout& layout;    // The loader's,
  const transform::Plan& plan;  // likewise: what is done with samples,
  const FieldBytes* const
      rest;  // and how a cache keeps fields beside the image. Null: there is but a label, known without.

  // Places of this rank's batches, counted through the epoch, that are not wanted any more begin here: at the first
  // error, where the data end, or at 0 when the epoch is given up.
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  std::atomic<std::int64_t> stop_at{kNever};
};

}  // namespace headrace::detail
