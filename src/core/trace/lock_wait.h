// Locks whose waits a trace tells apart.
#pragma once

#include <headrace/trace.h>

namespace headrace {

// Locks `lock`. Where somebody else holds it, the wait is a span of `name`, which has the category "wait" and a text
// that begins with "lock" (Waits of headrace/wall_split.h). Free, it costs one try_lock() and no clock read.
template <class Lock>
void lock_traced(Lock& lock, const SpanName& name) {
  if (lock.try_lock()) return;
  Span span{name};
  lock.lock();
}

}  // namespace headrace
