// How the pages of host memory are locked, so that a device can copy from them by itself. This module knows no device:
// whoever has one installs it (torch/device/accelerator.h).
#pragma once

#include <cstddef>

namespace headrace {

// Called from any thread, at several blocks at once; throws nothing. `lock` touches every page of a block, which takes
// some 0.1 ms a MiB, and returns false where it cannot lock it, which leaves the block as it is. `unlock` gets what
// `lock` took, before it is freed, and may come after the end of the device.
struct PageLock {
  bool (*lock)(void* memory, std::size_t bytes) = nullptr;
  void (*unlock)(void* memory) = nullptr;
};

// For the blocks that pools (core/memory/pool.h) allocate from now on; what is there stays as it is. {}: these are not
// locked. A block is unlocked by what locked it, whatever was installed later. Thread-safe.
void install_page_lock(const PageLock& page_lock);

PageLock installed_page_lock();

}  // namespace headrace
