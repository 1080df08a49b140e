// Applies compute.allocator to glibc at run time.
#pragma once

#include <headrace/error.h>

#include "hardware/compute_options.h"

namespace headrace {

// no_trim: M_MMAP_THRESHOLD 1 GiB, M_TRIM_THRESHOLD max, M_TOP_PAD 64 MiB, so that activations of a step reuse pages
// that are already mapped. system: glibc's initial values again and malloc_trim(0). Not thread-safe against itself;
// process-wide. Reported as not applied where malloc is not glibc's (a sanitizer, jemalloc).
Applied apply_allocator(Allocator allocator);

}  // namespace headrace
