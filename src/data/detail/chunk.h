// A few consecutive samples of a batch, read and transformed in one go: the unit that a worker takes.
#pragma once

#include <headrace/loader.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <limits>
#include <vector>

#include "base/random.h"
#include "data/data_options.h"
#include "data/detail/slot.h"
#include "image/normalize.h"

namespace headrace::detail {

// Large enough that taking a chunk costs nothing beside it, small enough that a batch divides among the workers.
inline constexpr std::int64_t kChunkMax = 16;

// One pass over the data: what a sample's bytes depend on. Constant while it runs, but for `stop_at`.
// Positions count the samples of the whole pass in their order.
struct Pass {
  Pass(const Source& from, const image::NormalizeTable& values, const TransformOptions& how, std::uint64_t seed_of_run,
       std::int64_t index, bool shuffled, bool augmented)
      : source(from),
        table(values),
        transform(how),
        seed(seed_of_run),
        epoch(index),
        shuffle(shuffled),
        augment(augmented),
        order(from.size(), seed_of_run, index) {}

  std::int64_t sample_at(std::int64_t position) const { return shuffle ? order(position) : position; }

  const Source& source;
  const image::NormalizeTable& table;
  const TransformOptions& transform;
  const std::uint64_t seed;
  const std::int64_t epoch;
  const bool shuffle;
  const bool augment;
  const Permutation order;

  // Samples from this position on are not wanted any more: the first error's position, 0 when the epoch is given up.
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  std::atomic<std::int64_t> stop_at{kNever};
};

// What one thread at a time needs to fill a chunk, kept from chunk to chunk so that nothing is allocated in between.
struct Workspace {
  std::array<std::vector<std::uint8_t>, kChunkMax> files;  // Source::read's buffer of each sample of the chunk.
};

struct ChunkReport {
  std::int64_t samples = 0;  // Written; fewer than asked for after an error or a stop.
  std::int64_t read_ns = 0;
  std::int64_t busy_ns = 0;
  std::exception_ptr error{};        // An Error that names its sample.
  std::int64_t error_position = -1;  // Of the sample that failed.
};

// Fills samples [first, first + count) of the slot, whose first sample is at `position` of the pass. Different chunks
// of one slot may be filled at the same time.
ChunkReport load_chunk(const Pass& pass, Batch::Slot& slot, std::int64_t position, std::int64_t first,
                       std::int64_t count, Workspace& workspace) noexcept;

}  // namespace headrace::detail
