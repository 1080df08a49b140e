// The one symbol of libheadrace_gpu.so, which src/gpu defines and accelerator_of() looks up.
#pragma once

#include <string>

#include "core/memory/page_lock.h"
#include "torch/device/accelerator.h"

// The Accelerator of a CUDA device, the same each time; index -1: of the current device. One call at a time. Throws
// nothing; nullptr: `reason` says why there is none. `version` is what the caller was built as, and it is looked at
// before anything else is: the classes of another build may be others. It stays the first argument. Fills `page_lock`
// where it returns an Accelerator.
extern "C" [[gnu::visibility("default")]] headrace::Accelerator* headrace_gpu_accelerator(
    const char* version, int index, std::string* reason, headrace::PageLock* page_lock);
