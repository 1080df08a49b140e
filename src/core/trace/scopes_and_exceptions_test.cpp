// A block that an exception leaves: its scopes are closed and recorded, and the exception arrives as it was thrown.
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/stages.h>
#include <headrace/trace.h>

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace headrace {
namespace {

constexpr SpanName kOuter{"outer", "work"}, kInner{"inner", "work"}, kAfter{"after", "work"};

// No copy of it is made on the way, nor is its type lost.
struct Failure {
  explicit Failure(int given) : number(given) {}
  Failure(const Failure&) = delete;
  Failure(Failure&& other) noexcept : number(std::exchange(other.number, 0)) {}
  int number;
};

std::vector<std::string> names_of(const TraceRecord& record) {
  std::vector<std::string> names;
  for (const TraceEvent& event : record.events) names.push_back(record.names[event.name].text);
  return names;
}

void fail_within_spans() {
  const Span outer{kOuter, 1};
  const Span inner{kInner, 2};
  throw Failure{7};
}

void fail_within_stages() {
  Stages stages{kOuter, 1};
  stages.next(kInner, 2);
  throw Failure{7};
}

int caught_number(void (*function)()) {
  try {
    function();
  } catch (const Failure& failure) {
    const Span after{kAfter};
    return failure.number;
  }
  return 0;
}

TEST(ScopesAndExceptions, SpansThatAnExceptionLeavesAreRecordedInTheirOrderAndItArrivesUnchanged) {
  Trace trace;
  EXPECT_EQ(caught_number(fail_within_spans), 7);
  const TraceRecord record = trace.stop();
  ASSERT_EQ(names_of(record), (std::vector<std::string>{"outer", "inner", "after"}));
  const TraceEvent &outer = record.events[0], &inner = record.events[1], &after = record.events[2];
  EXPECT_EQ(outer.value, 1);
  EXPECT_EQ(inner.value, 2);
  EXPECT_LE(inner.end_ns, outer.end_ns);
  EXPECT_LE(outer.end_ns, after.begin_ns);  // Both were closed before the handler began.
}

TEST(ScopesAndExceptions, TheStageThatAnExceptionLeavesIsTheLastOne) {
  Trace trace;
  EXPECT_EQ(caught_number(fail_within_stages), 7);
  const TraceRecord record = trace.stop();
  ASSERT_EQ(names_of(record), (std::vector<std::string>{"outer", "inner", "after"}));
  EXPECT_EQ(record.events[0].end_ns, record.events[1].begin_ns);
  EXPECT_LE(record.events[1].end_ns, record.events[2].begin_ns);
}

TEST(ScopesAndExceptions, ATraceThatAnExceptionLeavesLeavesThePlaceToTheNext) {
  try {
    const Trace left;
    const Span open{kOuter};
    throw Error{ErrorCode::io, "made up"};
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_STREQ(error.what(), "made up");
  }
  Trace next;  // Else: a recording is running already.
  { const Span span{kAfter}; }
  EXPECT_EQ(names_of(next.stop()), std::vector<std::string>{"after"});
}

TEST(ScopesAndExceptions, NoScopeThrowsWhereItEnds) {
  static_assert(std::is_nothrow_destructible_v<Span> && std::is_nothrow_destructible_v<Stages> &&
                std::is_nothrow_destructible_v<Trace>);
  EXPECT_EQ(caught_number(fail_within_spans), 7);  // Without a Trace, too.
  EXPECT_EQ(caught_number(fail_within_stages), 7);
}

}  // namespace
}  // namespace headrace
