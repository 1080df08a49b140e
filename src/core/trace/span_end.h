// Where a span ends that two moments bound.
#pragma once

#include <headrace/trace.h>

namespace headrace {

// `end`, or the moment behind `begin` where it is no later than that: a span without length would pass for a gauge.
inline TraceMoment span_end(TraceMoment begin, TraceMoment end) noexcept {
  return end.ticks > begin.ticks ? end : TraceMoment{begin.ticks + 1};
}

}  // namespace headrace
