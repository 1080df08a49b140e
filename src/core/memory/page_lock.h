// How the pages of host memory are locked, so that a device can copy from them by itself, and how to know when it has.
// This module knows no device: whoever has one installs it (torch/device/accelerator.h).
#pragma once

#include <cstddef>

namespace headrace {

// What a device may still read of a block whose last view has died.
struct PageMark {
  enum class Reads {
    none,     // All of it is read.
    queued,   // What was queued before `end`.
    unknown,  // Nobody can tell when they end, as of copies that a captured graph makes at each replay.
  };
  Reads reads = Reads::none;
  void* end = nullptr;  // Of queued ones.
};

// Called from any thread, at several blocks at once; throws nothing and calls nothing of ours. None of it calls a
// device after that has ended, or in a forked child, in which no block is locked or read.
struct PageLock {
  // Touches every page of a block, which takes some 0.1 ms a MiB. False: it cannot be locked and is as it was.
  bool (*lock)(void* memory, std::size_t bytes) = nullptr;
  void (*unlock)(void* memory) = nullptr;  // Of what `lock` took, before it is freed.
  // Of what this thread has queued by now, on the stream that is current on it. Some microseconds; does not wait.
  PageMark (*mark)() = nullptr;
  // Of PageMark::end. Does not wait. Once it has returned true, or after `wait`, the mark must not be used any more.
  bool (*has_passed)(void* end) = nullptr;
  void (*wait)(void* end) = nullptr;  // Until it has passed.
};

// For the blocks that pools (core/memory/pool.h) allocate from now on; what is there stays as it is. {}: these are not
// locked. A block is unlocked by what locked it, whatever was installed later. Thread-safe.
void install_page_lock(const PageLock& page_lock);

PageLock installed_page_lock();

}  // namespace headrace
