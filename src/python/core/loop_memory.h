// What the objects of a training loop in Python hold, by class and over time: parameters with buffers, gradients,
// optimizer state, the batch at hand.
//
// Each storage on the CPU counts once, however many tensors share it: python/headrace/_loop_memory.py. A class of which
// nobody has shown an object is not there: unavailable, and not 0. What headrace's own Loaders and Trainers hold is
// counted by their accounts; of classes that are counted here, those counts are not taken besides.
#pragma once

#include <headrace/trace.h>
#include <nanobind/nanobind.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "core/memory/accounts.h"
#include "core/memory/sampler.h"

namespace headrace::python {

// Under the GIL, but for timeline() and the destructor. Owns a thread that reads some 100 times a second what was
// counted last.
class LoopMemory {
 public:
  LoopMemory();
  ~LoopMemory();
  LoopMemory(const LoopMemory&) = delete;
  LoopMemory& operator=(const LoopMemory&) = delete;

  // Those that are known already are left out.
  void add_model(const nanobind::object& object);
  void add_optimizer(const nanobind::object& object);
  // Counts anew, at most 5 times a second each and for 1/200 of the time: it walks over every tensor, half a
  // microsecond each.
  void note_batch(nanobind::handle batch);
  void note_objects();
  MemoryTimeline timeline() { return sampler_.timeline(); }

 private:
  enum Class : std::size_t { parameters, gradients, optimizer, batches, kClasses };
  static constexpr std::int64_t kNobody = -1;  // Has counted it.

  std::vector<AccountBytes> counted() const;

  nanobind::object batch_bytes_, object_bytes_;  // Functions of headrace._loop_memory.
  nanobind::list models_, optimizers_;
  std::int64_t batch_due_ns_ = 0, objects_due_ns_ = 0;  // When they may be counted again.
  std::array<std::atomic<std::int64_t>, kClasses> bytes_{kNobody, kNobody, kNobody, kNobody};
  MemorySampler sampler_{std::chrono::milliseconds(10), [this] { return counted(); }};  // Last: it reads the rest.
};

}  // namespace headrace::python
