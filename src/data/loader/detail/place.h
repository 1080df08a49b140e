// Where in the order of all epochs a loader stands.
#pragma once

#include <cstdint>

namespace headrace::detail {

// A position between two batches. The end of an epoch is the start of the next.
struct Place {
  std::int64_t epoch = 0;
  std::int64_t position = 0;  // Of the epoch's samples, all ranks'.
  std::uint64_t order = 0;    // Hash of the given order that it is a position of; 0: of any.
};

}  // namespace headrace::detail
