// Page-locked blocks for Loaders in Python: core/memory/page_lock.h by the CUDA runtime that torch has loaded, whatever
// torch that is. The GPU plugin does the same for a Trainer (src/gpu/host_pages.h), where it is there.
#pragma once

#include <cstdint>
#include <string>

namespace headrace::python {

// Of the process; for blocks that were allocated since lock_pages_by() was first called.
struct PageLocking {
  bool is_installed = false;  // By whomever: blocks of pools are locked from now on.
  std::int64_t asked = 0;     // Blocks that were to be locked here, and those that CUDA refused.
  std::int64_t refused = 0;
  std::string last_refusal;  // "": none.
};

// Has pools lock the blocks that they allocate from now on, for `device`, in relaxed capture mode, so that no capture
// of another thread ends. `library`: the path of torch's libtorch_cuda.so, which is in the process already and brings
// CUDA's runtime; its C functions are called, because torch.cuda.cudart() would want the GIL where a pool's lock is
// held. CUDA was initialised before. "": they are locked, by this or by who did it before; else why not. Each batch
// that is dropped then costs an event of CUDA's, some microseconds. Nothing of CUDA is called in a forked child, nor
// once the process ends. Thread-safe.
std::string lock_pages_by(const std::string& library, std::int32_t device);

PageLocking page_locking();

}  // namespace headrace::python
