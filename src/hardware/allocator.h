// Applies compute.allocator to glibc at run time.
#pragma once

#include <headrace/error.h>

#include "hardware/compute_options.h"

namespace headrace {

// no_trim: M_MMAP_THRESHOLD 1 GiB, M_TRIM_THRESHOLD max, M_TOP_PAD 64 MiB, so that activations of a step reuse pages
// that are already mapped. system: what was in force before the first no_trim, and malloc_trim(0). glibc raises its
// mmap threshold by itself as blocks are freed and stops doing so for good once one was set: the value that it had
// grown to is found then and put back here, or the system's side of a comparison would be slower than it is. And glibc
// looks for a free range in its heap before it maps a block, so that the ranges which no_trim left there would go on
// serving what is otherwise mapped and given back in every step: system takes those of 128 KiB or more out of
// circulation (untouched: address space, and a page each), the next no_trim gives them back
// (docs/decisions/0013-no-trim-is-undone-by-plugs.md). Only of the main heap: call it on the process' first thread or
// on one that shares its heap; the heaps of other threads end at 64 MiB each. Without an earlier no_trim, system
// changes nothing. Not thread-safe against itself; process-wide. Reported as not applied where
// malloc is not glibc's (a sanitizer, jemalloc).
Applied apply_allocator(Allocator allocator);

// Gives the pages of freed blocks back to the system (malloc_trim), for after a phase that allocates otherwise than the
// ones that follow: what it leaves between longer-lived blocks would stay for good. Does nothing while no_trim is in
// force, or where malloc is not glibc's. Costs milliseconds, and each page its next use as much as a new one.
void give_freed_memory_back();

}  // namespace headrace
