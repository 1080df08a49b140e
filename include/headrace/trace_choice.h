// Which spans and gauges a Trace records: by name, every n-th step, or within a time. What is left out costs no clock
// read, but one where there is a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

struct TraceChoice {
  // Patterns of names: * stands for any text, ? for one character; what matches one of them is recorded. Empty: every
  // name. A name is compared once and looked up from then on, some nanoseconds.
  std::vector<std::string> names{};
  // Records steps whose number is a multiple of this, as begin_traced_step() tells them, and nothing before the first
  // one; 1: all the time. A loop that tells no steps leaves an empty record then.
  std::int64_t every_steps = 1;
  // Records what begins from `from_ns` on after the Trace was built, for `length_ns`; 0: to its end. With either of
  // them, building a Trace within 5 ms of the library's loading waits until these are over, to know the clock's rate.
  std::int64_t from_ns = 0;
  std::int64_t length_ns = 0;
  // Patterns of names that are recorded at all times, whatever the rest says: what somebody who watches a loop cannot
  // do without. A name that is left out then costs two look-ups, in steps that are left out one.
  std::vector<std::string> kept{};
};

}  // namespace headrace
