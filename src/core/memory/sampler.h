// Memory over time: reads resident memory and every Account at steady intervals.
#pragma once

#include <headrace/trace.h>

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "core/memory/accounts.h"

namespace headrace {

// Owns one thread, from construction to destruction.
//
// A reading costs some 2 us (sampler_bench). At most 2,048 moments are kept, allocated when the sampler is made: when
// they are used up, of two neighbours the one with more resident memory stays, and from then on each stands for twice
// as many readings. So a run of any length is covered evenly, and no peak that was read is lost. Up to 12 classes are
// told apart; more count as other. Where the system does not tell resident memory, nothing is read.
class MemorySampler {
 public:
  // The interval: above 0. `classes` is called by the sampler's thread and by whoever calls sample() or timeline().
  explicit MemorySampler(std::chrono::nanoseconds interval = std::chrono::milliseconds(5),
                         std::function<std::vector<AccountBytes>()> classes = account_bytes);
  ~MemorySampler();

  void sample();  // One more reading, now. Any thread.
  // What was read so far and one last reading, now. Without moments: the system does not tell. Any thread.
  MemoryTimeline timeline();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
