// Host memory that CUDA copies from by itself: how it is page-locked, and when it has been read.
#pragma once

#include <c10/core/Device.h>

#include "core/memory/page_lock.h"

namespace headrace {

// For all pools of the process. The device of the first call is the one on which memory is locked, and whose streams
// are looked at; threads that have called no CUDA yet would else make a context on device 0, some 500 MB of it. One
// call at a time, after CUDA was initialised.
PageLock cuda_page_lock(c10::DeviceIndex index);

// While one lives, blocks whose last view dies on this thread have been read, and nothing is recorded of them.
class ReadsAreDone {
 public:
  ReadsAreDone();
  ~ReadsAreDone();
  ReadsAreDone(const ReadsAreDone&) = delete;
  ReadsAreDone& operator=(const ReadsAreDone&) = delete;

 private:
  const bool before_;
};

}  // namespace headrace
