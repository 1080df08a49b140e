// What a Loader has done since it was built, as its statistics tell it. The loader's `mutex` is held.
#pragma once

#include <headrace/loader_statistics.h>

#include <cstdint>
#include <span>
#include <vector>

#include "data/loader/detail/chunk.h"
#include "data/loader/detail/latency.h"
#include "data/loader/detail/rate_meter.h"
#include "data/transform/sample_passes.h"

namespace headrace::detail {

// Sums and a histogram: nothing is allocated but for corrupt samples.
class LoaderCounters {
 public:
  // ---- Of workers ----
  void add_chunk(const ChunkReport& chunk) noexcept;
  // Lists by index, each once, the first 1,000 that come; moves those out of `samples`.
  void add_corrupt(std::span<CorruptSample> samples);
  void add_cpu(std::int64_t ns, std::int64_t over_busy_ns) noexcept {
    totals_.cpu_ns += ns;
    totals_.cpu_busy_ns += over_busy_ns;
  }
  void add_wait_for_slot(std::int64_t ns) noexcept { totals_.wait_for_slot_ns += ns; }
  void add_workspace(std::int64_t bytes) noexcept { totals_.workspace_bytes += bytes; }  // Below 0: freed.
  void add_collating(std::int64_t ns) noexcept { totals_.collate_ns += ns; }

  // ---- Of the consumer ----
  void add_ready(std::int64_t batches) noexcept { totals_.ready_batches += batches; }  // When one was asked for.
  // `latency_ns`: since the batch was asked for.
  void add_delivery(std::int64_t samples, std::int64_t bytes, std::int64_t latency_ns) noexcept;
  void add_wait_for_batch(std::int64_t ns) noexcept { totals_.wait_for_batch_ns += ns; }
  void add_consumer_busy(std::int64_t ns) noexcept { totals_.consumer_busy_ns += ns; }

  // But for what the loader holds and has in force now, and what its threads, its entropy indices and its futures
  // count.
  LoaderStatistics statistics() const;
  WorkerTotals worker_totals() const noexcept;
  std::int64_t batches() const noexcept { return totals_.batches; }  // Delivered.
  std::int64_t workspace_bytes() const noexcept { return totals_.workspace_bytes; }
  const SampleTotals& done() const noexcept { return done_; }
  const std::vector<CorruptSample>& corrupt() const noexcept { return corrupt_; }

 private:
  LoaderStatistics totals_;
  SampleTotals done_;
  LatencyHistogram latency_;
  std::vector<CorruptSample> corrupt_;
};

}  // namespace headrace::detail
