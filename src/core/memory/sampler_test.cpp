#include "core/memory/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/trace.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/temporary_folder.h"
#include "core/memory/accounts.h"

namespace headrace {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kMegabyte = 1'000'000;

// The gauges of a record by moment and name.
using Moments = std::map<std::int64_t, std::map<std::string, std::int64_t>>;
Moments gauges(const TraceRecord& record) {
  Moments moments;
  for (const TraceEvent& event : record.events) {
    if (event.begin_ns == event.end_ns) moments[event.begin_ns][record.names[event.name].text] = event.value;
  }
  return moments;
}

// The same as a trace of the time since `trace` began tells it.
Moments moments_of(Trace& trace, const MemoryTimeline& timeline) {
  TraceRecord record = trace.stop();
  add_memory(record, timeline);
  return gauges(record);
}

// Resident pages of its own; what is freed goes back to the system. The kernel fills them in: a sanitizer that sees
// them written would make its own pages for them.
class Touched {
 public:
  explicit Touched(std::size_t bytes) : bytes_(bytes) {
    memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    EXPECT_NE(memory_, MAP_FAILED);
  }
  ~Touched() { ::munmap(memory_, bytes_); }
  Touched(const Touched&) = delete;
  Touched& operator=(const Touched&) = delete;

 private:
  std::size_t bytes_;
  void* memory_;
};

TEST(MemorySampler, EveryMomentHasResidentMemoryTheAccountsAndTheRest) {
  // Less than any process has: what accounts claim beyond it leaves nothing for the rest.
  std::atomic<std::int64_t> held{300'000};
  const Account account{"held", [&] { return held.load(); }};
  Trace trace;
  MemorySampler sampler{1h};  // What is asked for alone, and the thread's first.
  sampler.sample();
  held = 500'000;
  const Moments moments = moments_of(trace, sampler.timeline());
  EXPECT_GE(moments.size(), 2U);
  std::vector<std::int64_t> seen;
  for (const auto& [at, values] : moments) {
    ASSERT_EQ(values.size(), 3U);
    EXPECT_GT(values.at("memory.resident"), 0);
    EXPECT_EQ(values.at("memory.other"), values.at("memory.resident") - values.at("memory.held"));
    seen.push_back(values.at("memory.held"));
  }
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.back(), 500'000);
}

TEST(MemorySampler, TakesTheClassesOfAnotherReaderInThePlaceOfTheAccounts) {
  const Account account{"cache", [] { return std::int64_t{5}; }};
  MemorySampler sampler{1h, [] { return std::vector<AccountBytes>{{"batches", 7}}; }};
  const MemoryTimeline timeline = sampler.timeline();
  ASSERT_EQ(timeline.classes.size(), 1U);
  EXPECT_EQ(timeline.classes[0].name, "batches");
  EXPECT_EQ(timeline.classes[0].bytes.back(), 7);
}

TEST(MemorySampler, ReadsByItselfUntilItIsDestroyed) {
  std::atomic<int> asked{0};
  const Account account{"asked", [&] { return ++asked; }};
  {
    MemorySampler sampler{100us};
    while (asked < 20) std::this_thread::sleep_for(100us);
    EXPECT_GE(sampler.timeline().at_ns.size(), 20U);
  }
  const int after = asked;
  std::this_thread::sleep_for(2ms);
  EXPECT_EQ(asked, after);
}

// The acceptance of memory profiling over time: what is allocated in a span shows at that span's time in the export.
TEST(MemorySampler, StaircaseOf100MegabytesShowsInTheExportAtTheRightTimes) {
  static constexpr SpanName kStair{"stair", "work"};
  constexpr std::size_t kStairs = 5, kBytes = 100 * kMegabyte;
  std::atomic<std::int64_t> held{0};
  const Account account{"blocks", [&] { return held.load(); }};
  Trace trace;
  MemoryTimeline timeline;
  {
    std::vector<std::unique_ptr<Touched>> blocks;
    MemorySampler sampler{1h};  // Its own readings could fall between a span's last one here and the span's end.
    for (std::size_t stair = 0; stair <= kStairs; ++stair) {
      if (stair > 0) blocks.push_back(std::make_unique<Touched>(kBytes));
      held = static_cast<std::int64_t>(blocks.size() * kBytes);
      Span span{kStair, static_cast<std::int64_t>(stair)};
      sampler.sample();
      sampler.sample();
    }
    timeline = sampler.timeline();
  }
  TraceRecord taken = trace.stop();
  add_memory(taken, timeline);
  const TemporaryFolder folder;
  write_chrome_trace(taken, folder.path() / "trace.json");
  const TraceRecord record = read_chrome_trace(folder.path() / "trace.json");

  const Moments moments = gauges(record);
  std::int64_t ground = 0;
  std::size_t stairs = 0;
  for (const TraceEvent& event : record.events) {
    if (record.names[event.name].text != "stair") continue;
    const auto within = moments.lower_bound(event.begin_ns);
    ASSERT_NE(within, moments.end());
    if (event.value == 0) ground = within->second.at("memory.resident");
    for (auto moment = within; moment != moments.end() && moment->first <= event.end_ns; ++moment) {
      const std::int64_t height = event.value * static_cast<std::int64_t>(kBytes);
      EXPECT_EQ(moment->second.at("memory.blocks"), height);
      EXPECT_NEAR(static_cast<double>(moment->second.at("memory.resident") - ground), static_cast<double>(height), 5e6);
    }
    ++stairs;
  }
  EXPECT_EQ(stairs, kStairs + 1);
}

TEST(MemorySampler, LongRunsAreCoveredEvenlyAndKeepTheirPeaks) {
  constexpr int kReadings = 20'000, kPeakAt = 7'777;
  std::atomic<std::int64_t> reading{0};
  const Account account{"reading", [&] { return reading.load(); }};
  MemorySampler sampler{1h};
  for (int i = 0; i < kReadings; ++i) {
    reading = i;
    if (i == kPeakAt) {
      const Touched spike{50 * kMegabyte};
      sampler.sample();
    } else {
      sampler.sample();
    }
  }
  const MemoryTimeline timeline = sampler.timeline();
  const std::vector<std::int64_t>& readings = timeline.classes.at(0).bytes;
  EXPECT_LE(readings.size(), 2048U);
  EXPECT_GE(readings.size(), 1024U);
  std::int64_t before = 0;
  for (const std::int64_t at : readings) {  // Evenly: one in ten or so, and one neighbour or the other.
    EXPECT_LE(at - before, 2 * 16);
    before = at;
  }
  EXPECT_GE(before, kReadings - 16);
  EXPECT_TRUE(std::is_sorted(timeline.at_ns.begin(), timeline.at_ns.end()));
  const auto peak = std::max_element(timeline.resident.begin(), timeline.resident.end()) - timeline.resident.begin();
  EXPECT_EQ(readings[static_cast<std::size_t>(peak)], kPeakAt);
}

TEST(MemorySampler, ClassesThatComeAndGoHoldNothingWhileTheyAreGone) {
  MemorySampler sampler{1h};
  {
    const Account account{"brief", [] { return 1000; }};
    sampler.sample();
  }
  const MemoryTimeline timeline = sampler.timeline();
  ASSERT_EQ(timeline.classes.size(), 1U);
  EXPECT_EQ(timeline.classes[0].name, "brief");
  const std::vector<std::int64_t>& seen = timeline.classes[0].bytes;
  EXPECT_THAT(seen, testing::Contains(1000).Times(testing::Ge(1)));
  EXPECT_EQ(seen.back(), 0);
}

TEST(MemorySampler, MoreClassesThanItTellsApartCountAsOther) {
  std::vector<std::unique_ptr<Account>> accounts;
  for (int i = 0; i < 20; ++i) {
    accounts.push_back(std::make_unique<Account>("class " + std::to_string(i), [] { return 10; }));
  }
  MemorySampler sampler{1h};
  const MemoryTimeline timeline = sampler.timeline();
  EXPECT_EQ(timeline.classes.size(), 12U);
  ASSERT_GE(timeline.at_ns.size(), 1U);
  for (std::size_t i = 0; i < timeline.at_ns.size(); ++i) EXPECT_EQ(timeline.other(i), timeline.resident[i] - 120);
}

TEST(MemorySampler, AReadingBeforeATraceBeganHasNoPlaceInIt) {
  MemorySampler sampler{1h};
  sampler.sample();
  Trace trace;
  const MemoryTimeline timeline = sampler.timeline();
  TraceRecord record = trace.stop();
  add_memory(record, timeline);
  const auto within = std::count_if(timeline.at_ns.begin(), timeline.at_ns.end(),
                                    [&](std::int64_t at) { return at >= record.start_ns; });
  EXPECT_LT(static_cast<std::size_t>(within), timeline.at_ns.size());
  EXPECT_EQ(gauges(record).size(), static_cast<std::size_t>(within));
}

}  // namespace
}  // namespace headrace
