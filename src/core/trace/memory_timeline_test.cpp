#include <gtest/gtest.h>
#include <headrace/trace.h>

#include <algorithm>
#include <string>
#include <vector>

namespace headrace {
namespace {

// Three moments a second apart, from `first_ns` on.
MemoryTimeline timeline_from(std::int64_t first_ns) {
  return {{first_ns, first_ns + 1000, first_ns + 2000},
          {100, 300, 200},
          {{"parameters", {40, 40, 40}}, {"batches", {0, 250, 300}}}};
}

TraceRecord record_of_a_step() {
  TraceRecord record;
  record.names = {{"step", "step"}};
  record.threads = {"main"};
  record.events = {{0, 0, 500, 1800, 7}};
  record.start_ns = 10'000;
  record.duration_ns = 2000;
  return record;
}

std::vector<std::string> told(const TraceRecord& record) {
  std::vector<std::string> lines;
  for (const TraceEvent& event : record.events) {
    lines.push_back(std::to_string(event.begin_ns) + " " + record.names[event.name].text + " " +
                    std::to_string(event.value));
  }
  return lines;
}

TEST(MemoryTimeline, OtherIsWhatIsResidentBeyondTheClassesAndNeverBelowZero) {
  const MemoryTimeline timeline = timeline_from(0);
  EXPECT_EQ(timeline.other(0), 60);
  EXPECT_EQ(timeline.other(1), 10);
  EXPECT_EQ(timeline.other(2), 0);  // Allocated and not touched: 340 of 200.
}

TEST(MemoryTimeline, LiesInARecordInOrderBetweenItsSpans) {
  TraceRecord record = record_of_a_step();
  add_memory(record, timeline_from(10'000));
  EXPECT_EQ(record.threads, (std::vector<std::string>{"main", "memory"}));
  EXPECT_EQ(
      told(record),
      (std::vector<std::string>{
          "0 memory.parameters 40", "0 memory.batches 0", "0 memory.other 60", "0 memory.resident 100", "500 step 7",
          "1000 memory.parameters 40", "1000 memory.batches 250", "1000 memory.other 10", "1000 memory.resident 300",
          "2000 memory.parameters 40", "2000 memory.batches 300", "2000 memory.other 0", "2000 memory.resident 200"}));
}

TEST(MemoryTimeline, MomentsBeforeAndAfterARecordHaveNoPlaceInIt) {
  TraceRecord record = record_of_a_step();
  add_memory(record, timeline_from(9'000));  // -1000, 0, 1000.
  EXPECT_EQ(record.events.size(), 1U + 2 * 4);
  record = record_of_a_step();
  add_memory(record, timeline_from(12'000));  // 2000, 3000, 4000.
  EXPECT_EQ(record.events.size(), 1U + 4);
}

}  // namespace
}  // namespace headrace
