// Applies compute.allocator: where LibTorch's CPU tensors get their memory.
#pragma once

#include <headrace/error.h>

#include "core/hardware/compute_options.h"

namespace headrace {

// arena: tensors of 16 KiB or more, and what oneDNN needs beside them, come from an Arena of the process, whose pages
// stay from step to step; smaller ones, and all that the arena has no room for, from LibTorch's allocator as before.
// system: all from LibTorch's, which is malloc; the arena gives the pages of each tensor that ends back at once.
// Live: tensors stay where they are, and end where they began. LibTorch's place for an allocator is taken at the first
// `arena`, or by tensor_memory.h, and kept until the process ends. Not applied, with the reason, where AddressSanitizer
// watches, which checks each block by itself, where another allocator holds that place with a higher priority, and
// where the system reserves no addresses. Process-wide; one call at a time, while no other thread makes tensors.
Applied apply_allocator(Allocator allocator);
Allocator allocator_in_force();

// Has malloc map each block of 128 KiB or more by itself and unmap it when it is freed, and trim the ends of its heaps
// (mallopt), as glibc does until the first such free raises both thresholds. For the start of a program whose tensors
// come from the arena: what else is so large are buffers that grow to the largest image, or live for one checkpoint,
// and would leave holes in the heaps of whichever threads they were made on. Leaves malloc as it is where the
// environment says how it should be (MALLOC_MMAP_THRESHOLD_, GLIBC_TUNABLES). Cannot be undone, so nothing for a
// library or for a comparison with malloc as it is.
void map_large_blocks();

// Gives the pages of what is freed back to the system (the arena's, and malloc_trim), for after a phase that allocates
// otherwise than the ones that follow: both would hold what each of them needs. Costs milliseconds, and each page its
// next use as much as a new one.
void give_freed_memory_back();

}  // namespace headrace
