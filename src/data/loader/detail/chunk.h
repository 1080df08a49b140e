// Consecutive samples of a batch, read and transformed in one go: the unit that a worker takes.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>

#include "data/loader/detail/pass.h"
#include "data/loader/detail/sample_cache.h"
#include "data/loader/detail/slot.h"
#include "data/loader/detail/workspace.h"
#include "data/transform/sample_passes.h"

namespace headrace::detail {

// Enough samples that taking a chunk costs nothing beside them, few enough that a batch divides among the workers. One
// of a source in memory takes less time than the lock of the next chunk.
inline constexpr std::int64_t kChunkMax = 16, kChunkMaxInMemory = 64;

struct ChunkReport {
  std::int64_t samples = 0;  // Written; fewer than asked for after an error or a stop.
  std::int64_t zeroed = 0;   // Of them, those that only hold a place.
  std::int64_t read_ns = 0;
  std::int64_t decode_ns = 0;
  std::int64_t busy_ns = 0;
  std::int64_t read = 0;  // Samples that the source gave, and their bytes.
  std::int64_t read_bytes = 0;
  std::int64_t decoded_bytes = 0;  // Of the pixels that were wanted of images that were decoded.
  std::int64_t written_bytes = 0;
  std::int64_t cache_hits = 0;
  std::int64_t cache_misses = 0;
  SampleTotals done;
  std::exception_ptr error{};        // An Error that names its sample.
  std::int64_t error_position = -1;  // Of the sample that failed, as ChunkPlace counts.
  // Samples of the epoch, where a source of unknown size had no more.
  std::optional<std::int64_t> ended_after{};
};

// Where a chunk lies. Different chunks of one slot may be filled at the same time.
struct ChunkPlace {
  Batch::Slot& slot;
  std::int64_t position;  // Of the chunk's first sample among this rank's, for Pass::stop_at.
  std::int64_t first;     // The same sample in the slot.
  std::int64_t count;     // 1 to kChunkMaxInMemory.
};

// Fills the samples of `place`. What the pass' policy replaced or zeroed is in workspace.corrupt afterwards. `cache`
// may be null.
ChunkReport load_chunk(const Pass& pass, const ChunkPlace& place, Workspace& workspace, SampleCache* cache) noexcept;

}  // namespace headrace::detail
