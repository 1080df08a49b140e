#include <headrace/stages.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headrace {
namespace {

constexpr SpanName kRead{"read", "work"}, kMake{"make", "work"}, kWrite{"write", "work"};

TEST(Stages, EachBeginsAtTheNanosecondAtWhichTheOneBeforeEnds) {
  Trace trace;
  {
    Stages stages{kRead, 1};
    stages.next(kMake, 2);
    stages.next(kWrite, 3);
  }
  const TraceRecord record = trace.stop();
  ASSERT_EQ(record.events.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(record.events[i].value, static_cast<std::int64_t>(i) + 1);
  EXPECT_EQ(record.names[record.events[0].name].text, "read");
  EXPECT_EQ(record.names[record.events[2].name].text, "write");
  // Equal moments are one clock read: two of them would differ at some of many stages.
  EXPECT_EQ(record.events[0].end_ns, record.events[1].begin_ns);
  EXPECT_EQ(record.events[1].end_ns, record.events[2].begin_ns);
}

TEST(Stages, AThousandOfThemLeaveNoGap) {
  Trace trace;
  {
    Stages stages{kRead};
    for (int i = 0; i < 1000; ++i) stages.next(i % 2 == 0 ? kMake : kWrite);
  }
  const TraceRecord record = trace.stop();
  ASSERT_EQ(record.events.size(), 1001U);
  for (std::size_t i = 1; i < record.events.size(); ++i) {
    // A stage of no ticks at all is given a nanosecond.
    EXPECT_LE(record.events[i - 1].end_ns - record.events[i].begin_ns, 1);
    EXPECT_LE(record.events[i].begin_ns, record.events[i - 1].end_ns);
  }
}

TEST(Stages, EndedAndBegunAgainTheyLeaveTheTimeBetweenOut) {
  Trace trace;
  {
    Stages stages{kRead};
    stages.end();
    { Span between{kMake}; }
    stages.next(kWrite);
  }
  const TraceRecord record = trace.stop();
  ASSERT_EQ(record.events.size(), 3U);
  EXPECT_LE(record.events[0].end_ns, record.events[1].begin_ns);
  EXPECT_LE(record.events[1].end_ns, record.events[2].begin_ns);
}

TEST(Stages, OneThatIsNotChosenLeavesAGapAndTheNextBeginsThere) {
  Trace trace{{.choice = {.names = {"read", "write"}}}};
  {
    Stages stages{kRead};
    stages.next(kMake);
    stages.next(kWrite);
  }
  const TraceRecord record = trace.stop();
  ASSERT_EQ(record.events.size(), 2U);
  EXPECT_EQ(record.names[record.events[0].name].text, "read");
  EXPECT_EQ(record.names[record.events[1].name].text, "write");
  EXPECT_GE(record.events[1].begin_ns, record.events[0].end_ns);
}

TEST(Stages, NothingIsRecordedWithoutATrace) {
  {
    Stages stages{kRead};
    Trace begun_later;
    stages.next(kMake);  // From here on.
    stages.end();
    EXPECT_EQ(begun_later.stop().events.size(), 1U);
    stages.next(kWrite);
  }
  Trace trace;
  EXPECT_TRUE(trace.stop().events.empty());
}

}  // namespace
}  // namespace headrace
