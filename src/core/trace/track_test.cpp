#include "core/trace/track.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/trace.h>

#include <string>
#include <vector>

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr SpanName kOuter{"outer", "device"}, kInner{"inner", "device"}, kOfThread{"of the thread", "step"};

std::vector<std::string> spans_of(const TraceRecord& record, const std::string& thread) {
  std::vector<std::string> names;
  for (const TraceEvent& event : record.events) {
    if (record.threads[event.thread] == thread) names.push_back(record.names[event.name].text);
  }
  return names;
}

TEST(TraceTrack, HasItsSpansInALineOfItsOwnWhicheverThreadRecordsThem) {
  TraceTrack track("cuda:0");
  Trace trace;
  name_this_thread("main");
  const TraceMoment first = trace_moment();
  { const Span span{kOfThread}; }
  const TraceMoment second = trace_moment();
  track.record(kOuter, first, second, 7);
  track.record(kInner, second, trace_moment());
  const TraceRecord record = trace.stop();
  EXPECT_THAT(spans_of(record, "cuda:0"), ElementsAre("outer", "inner"));
  EXPECT_THAT(spans_of(record, "main"), ElementsAre("of the thread"));
  for (const TraceEvent& event : record.events) {
    if (record.names[event.name].text == "outer") {
      EXPECT_EQ(event.value, 7);
      EXPECT_LE(event.begin_ns, event.end_ns);
    }
  }
}

TEST(TraceTrack, RecordsNothingWithoutATraceNorWhatBeganBeforeIt) {
  TraceTrack track("cuda:0");
  const TraceMoment before = trace_moment();
  track.record(kOuter, before, trace_moment());
  Trace trace;
  track.record(kInner, before, trace_moment());
  const TraceRecord record = trace.stop();
  EXPECT_THAT(spans_of(record, "cuda:0"), IsEmpty());
  track.record(kInner, trace_moment(), trace_moment());
  Trace next;
  EXPECT_THAT(next.stop().events, IsEmpty());
}

TEST(TraceTrack, ThatHasEndedLeavesItsSpansAndItsPlaceToTheNext) {
  Trace trace;
  for (const char* name : {"cuda:0", "cuda:1"}) {
    TraceTrack track(name);
    const TraceMoment begin = trace_moment();
    track.record(kOuter, begin, trace_moment());
  }
  const TraceRecord record = trace.stop();
  EXPECT_THAT(spans_of(record, "cuda:0"), ElementsAre("outer"));
  EXPECT_THAT(spans_of(record, "cuda:1"), ElementsAre("outer"));
}

}  // namespace
}  // namespace headrace
