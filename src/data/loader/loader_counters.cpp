#include "data/loader/detail/loader_counters.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace headrace {
namespace detail {

void LoaderCounters::add_chunk(const ChunkReport& chunk) noexcept {
  totals_.samples += chunk.samples;
  totals_.busy_ns += chunk.busy_ns;
  totals_.read_ns += chunk.read_ns;
  totals_.decode_ns += chunk.decode_ns;
  totals_.read += chunk.read;
  totals_.read_bytes += chunk.read_bytes;
  totals_.decoded += chunk.done.decoded().samples;
  totals_.decoded_bytes += chunk.decoded_bytes;
  totals_.written_bytes += chunk.written_bytes;
  done_ += chunk.done;
  totals_.cache_hits += chunk.cache_hits;
  totals_.cache_misses += chunk.cache_misses;
}

void LoaderCounters::add_corrupt(std::span<CorruptSample> samples) {
  constexpr std::size_t kListedMax = 1000;
  totals_.corrupt += std::ssize(samples);
  for (CorruptSample& sample : samples) {
    const auto place = std::lower_bound(corrupt_.begin(), corrupt_.end(), sample.index,
                                        [](const auto& known, std::int64_t index) { return known.index < index; });
    const bool known = place != corrupt_.end() && place->index == sample.index;
    if (!known && corrupt_.size() < kListedMax) corrupt_.insert(place, std::move(sample));
  }
}

void LoaderCounters::add_delivery(std::int64_t samples, std::int64_t bytes, std::int64_t latency_ns) noexcept {
  ++totals_.batches;
  totals_.delivered += samples;
  totals_.delivered_bytes += bytes;
  latency_.add(latency_ns);
}

LoaderStatistics LoaderCounters::statistics() const {
  LoaderStatistics now = totals_;
  now.latency_ns_p50 = latency_.reached_by(0.50);
  now.latency_ns_p95 = latency_.reached_by(0.05);
  now.latency_ns_p99 = latency_.reached_by(0.01);
  return now;
}

WorkerTotals LoaderCounters::worker_totals() const noexcept {
  return {.samples = totals_.samples,
          .busy_ns = totals_.busy_ns,
          .room_ns = totals_.wait_for_slot_ns,
          .cpu_ns = totals_.cpu_ns,
          .cpu_busy_ns = totals_.cpu_busy_ns,
          .read_ns = totals_.read_ns,
          .read = totals_.read,
          .decode_ns = totals_.decode_ns,
          .decoded = totals_.decoded};
}

}  // namespace detail

std::array<LoaderStage, 4> LoaderStatistics::stages() const {
  constexpr std::int64_t kStarvedPart = 50;  // A consumer that waits for less than 1 in so many is not starved.
  std::array<LoaderStage, 4> all;
  all[0] = {
      .name = "read", .records = read, .busy_ns = read_ns, .wait_for_output_ns = wait_for_slot_ns, .bytes = read_bytes};
  all[1] = {.name = "decode", .records = decoded, .busy_ns = decode_ns, .bytes = decoded_bytes};
  all[2] = {.name = "transform", .records = samples, .busy_ns = busy_ns - read_ns - decode_ns, .bytes = written_bytes};
  all[3] = {.name = "consume",
            .records = delivered,
            .busy_ns = consumer_busy_ns,
            .wait_for_input_ns = wait_for_batch_ns,
            .bytes = delivered_bytes,
            .queue = batches == 0 ? 0 : static_cast<double>(ready_batches) / static_cast<double>(batches)};
  if (samples == 0) return all;
  if (wait_for_batch_ns < (consumer_busy_ns + wait_for_batch_ns) / kStarvedPart) {
    all[3].limits = true;
  } else {
    std::max_element(all.begin(), all.begin() + 3, [](const auto& a, const auto& b) {
      return a.busy_ns < b.busy_ns;
    })->limits = true;
  }
  return all;
}

}  // namespace headrace
