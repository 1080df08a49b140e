#include "data/loader/detail/loader_counters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace headrace::detail {
namespace {

using testing::ElementsAre;

std::vector<CorruptSample> samples_of(const std::vector<std::int64_t>& indices, const std::string& reason) {
  std::vector<CorruptSample> all;
  for (const std::int64_t index : indices) all.push_back({index, "sample " + std::to_string(index), reason});
  return all;
}

TEST(LoaderCounters, CorruptSamplesAreListedByIndexAsTheyWereFoundFirst) {
  LoaderCounters counters;
  auto first = samples_of({7, 2}, "first"), second = samples_of({2, 5}, "second");
  counters.add_corrupt(first);
  counters.add_corrupt(second);
  std::vector<std::string> found;
  for (const CorruptSample& sample : counters.corrupt()) found.push_back(sample.name + " " + sample.reason);
  EXPECT_THAT(found, ElementsAre("sample 2 first", "sample 5 second", "sample 7 first"));
  EXPECT_EQ(counters.statistics().corrupt, 4);
}

TEST(LoaderCounters, AThousandCorruptSamplesAreListedAndAllAreCounted) {
  LoaderCounters counters;
  std::vector<std::int64_t> indices;
  for (std::int64_t index = 1500; index-- > 0;) indices.push_back(index);
  auto samples = samples_of(indices, "torn");
  counters.add_corrupt(samples);
  ASSERT_EQ(counters.corrupt().size(), 1000U);
  EXPECT_EQ(counters.corrupt().front().index, 500);
  EXPECT_EQ(counters.corrupt().back().index, 1499);
  EXPECT_EQ(counters.statistics().corrupt, 1500);
}

TEST(LoaderCounters, LatencyIsToldFromTheFirstDeliveryOn) {
  LoaderCounters counters;
  EXPECT_FALSE(counters.statistics().latency_ns_p50.has_value());
  counters.add_delivery(/*samples=*/16, /*bytes=*/4096, /*latency_ns=*/8);
  const LoaderStatistics now = counters.statistics();
  EXPECT_EQ(now.latency_ns_p50, 8);
  EXPECT_EQ(now.latency_ns_p99, 8);
  EXPECT_EQ(now.batches, 1);
  EXPECT_EQ(now.delivered, 16);
  EXPECT_EQ(now.delivered_bytes, 4096);
}

// What AUTOTUNE goes by is what the statistics tell.
TEST(LoaderCounters, TotalsOfWorkersAreThoseOfTheStatistics) {
  LoaderCounters counters;
  ChunkReport chunk;
  chunk.samples = 16;
  chunk.busy_ns = 900;
  chunk.read = 12;
  chunk.read_ns = 300;
  chunk.decode_ns = 400;
  chunk.cache_hits = 4;
  chunk.done.add(SamplePass::decode_region, 100, 200);
  counters.add_chunk(chunk);
  counters.add_chunk(chunk);
  counters.add_cpu(50, 60);
  counters.add_wait_for_slot(70);
  counters.add_workspace(4096);
  counters.add_workspace(-96);
  const WorkerTotals workers = counters.worker_totals();
  EXPECT_EQ(workers.samples, 32);
  EXPECT_EQ(workers.busy_ns, 1800);
  EXPECT_EQ(workers.room_ns, 70);
  EXPECT_EQ(workers.cpu_ns, 50);
  EXPECT_EQ(workers.cpu_busy_ns, 60);
  EXPECT_EQ(workers.read_ns, 600);
  EXPECT_EQ(workers.read, 24);
  EXPECT_EQ(workers.decode_ns, 800);
  EXPECT_EQ(workers.decoded, 2);
  const LoaderStatistics now = counters.statistics();
  EXPECT_EQ(now.samples, workers.samples);
  EXPECT_EQ(now.wait_for_slot_ns, workers.room_ns);
  EXPECT_EQ(now.decoded, workers.decoded);
  EXPECT_EQ(now.cache_hits, 8);
  EXPECT_EQ(now.workspace_bytes, 4000);
}

}  // namespace
}  // namespace headrace::detail
