#include "core/trace/lock_wait.h"

#include <gtest/gtest.h>

#include <string>

namespace headrace {
namespace {

constexpr SpanName kLock{"lock_test", "wait"};

// Held by somebody else until lock() is called, or free.
class Lock {
 public:
  explicit Lock(bool is_free) : is_free_(is_free) {}
  bool try_lock() {
    calls += "try ";
    return is_free_;
  }
  void lock() { calls += "lock "; }

  std::string calls;

 private:
  bool is_free_;
};

TraceRecord record_of(Lock& lock) {
  Trace trace;
  lock_traced(lock, kLock);
  return trace.stop();
}

TEST(LockWait, OfALockThatSomebodyHoldsIsOneSpan) {
  Lock held{false};
  const TraceRecord record = record_of(held);
  EXPECT_EQ(held.calls, "try lock ");
  ASSERT_EQ(record.events.size(), 1U);
  EXPECT_EQ(record.names[record.events[0].name].text, "lock_test");
  EXPECT_EQ(record.names[record.events[0].name].category, "wait");
}

TEST(LockWait, OfAFreeLockNothingIsRecordedAndItIsTakenOnce) {
  Lock free{true};
  EXPECT_TRUE(record_of(free).events.empty());
  EXPECT_EQ(free.calls, "try ");
}

TEST(LockWait, WithoutATraceALockIsWaitedForAllTheSame) {
  Lock held{false};
  lock_traced(held, kLock);
  EXPECT_EQ(held.calls, "try lock ");
}

}  // namespace
}  // namespace headrace
