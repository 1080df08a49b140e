// Memory over time: reads resident memory and every Account at steady intervals while a Trace records.
#pragma once

#include <chrono>
#include <memory>

namespace headrace {

// Owns one thread; the destructor ends it and puts what was read into the Trace that records then, under the names of
// headrace/trace.h's namespace memory: per moment the stack "memory.<class>" (bytes of the accounts, and "other":
// resident beyond them, at least 0) and memory::kResident. Make it after the Trace and destroy it before stop().
//
// A reading costs some 2 us (sampler_bench). At most 2,048 moments are kept, allocated when the sampler is made: when
// they are used up, of two neighbours the one with more resident memory stays, and from then on each stands for twice
// as many readings. So a run of any length is covered evenly, and no peak that was read is lost. Up to 12 classes are
// told apart; more count as other. Where the system does not tell resident memory, nothing is recorded.
class MemorySampler {
 public:
  explicit MemorySampler(std::chrono::nanoseconds interval = std::chrono::milliseconds(5));  // Above 0.
  ~MemorySampler();

  void sample();  // One more reading, now. Any thread.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
