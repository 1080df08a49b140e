// What this test binary allocates through operator new, counted by its own replacement of it.
#pragma once

#include <headrace/loader.h>

#include <cstdint>
#include <optional>

namespace headrace {

// All threads together. The replacement is in loader_test.cpp.
struct AllocationCount {
  static std::int64_t allocations();  // Since the process began.
  static void reset_peak();
  static std::int64_t peak_growth();  // Bytes: the most that was allocated at once above the amount at reset_peak().
  // This thread's allocation number `number` from here on, from 1, finds no memory. 0: none of them.
  static void fail_at(std::int64_t number);
};

// Of the next `batches` of an epoch, behind `before` of them: one each, the handle, in the steady state.
inline std::int64_t allocations_of(Epoch& epoch, int before, int batches) {
  std::optional<Batch> batch;
  for (int i = 0; i < before; ++i) batch = epoch.next();
  const std::int64_t at_first = AllocationCount::allocations();
  for (int i = 0; i < batches; ++i) batch = epoch.next();
  return AllocationCount::allocations() - at_first;
}

}  // namespace headrace
