// What this test binary allocates through operator new, counted by its own replacement of it.
#pragma once

#include <cstdint>

namespace headrace {

// All threads together. The replacement is in loader_test.cpp.
struct AllocationCount {
  static std::int64_t allocations();  // Since the process began.
  static void reset_peak();
  static std::int64_t peak_growth();  // Bytes: the most that was allocated at once above the amount at reset_peak().
  // This thread's allocation number `number` from here on, from 1, finds no memory. 0: none of them.
  static void fail_at(std::int64_t number);
};

}  // namespace headrace
