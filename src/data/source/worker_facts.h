// What a worker process tells of its source when it is ready.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/exec/control_channel.h"
#include "data/source/source_facts.h"

namespace headrace {

// For messages.
struct WorkerNames {
  std::string source;  // "photos.Photos"
  std::string worker;  // "worker 3 (process 4711)"
};

// Of a worker's first message, and of the slot that is its own, to which it may write meanwhile: what is told there is
// copied before it is read. `sizes_vary`: as with_any_size(). Error{internal}: another format or kind of message,
// lengths that the slot does not hold, no schema; Error{invalid_argument}: what no source has, or one that does not
// know its size.
SourceFacts facts_told(const ControlMessage& ready, std::span<const std::byte> slot, const WorkerNames& names,
                       bool sizes_vary);

}  // namespace headrace
