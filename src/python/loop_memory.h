// What the objects of a training loop in Python hold, by class and over time: parameters with buffers, gradients,
// optimizer state, the batch at hand.
//
// Each storage on the CPU counts once, however many tensors share it. A class of which nobody has shown an object is
// not there: unavailable, and not 0. What headrace's own Loaders and Trainers hold is counted by their accounts; of
// classes that are counted here, those counts are not taken besides.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/trace.h>
#include <pybind11/pybind11.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <unordered_set>
#include <vector>

#include "core/memory/accounts.h"
#include "core/memory/sampler.h"

namespace headrace::python {

// Sums the bytes of storages that were not met before.
class StorageSum {
 public:
  // Of one tensor; 0 where its storage is known already or not on the CPU.
  std::int64_t add(const at::Tensor& tensor);
  // Of every tensor in a value of Python's (python/tensors_in.h). Under the GIL.
  std::int64_t add_all(pybind11::handle value);

 private:
  bool is_new(const void* storage);

  // A batch has a few, which are looked through, and allocates nothing; then all are in the set.
  std::array<const void*, 8> few_{};
  std::size_t few_size_ = 0;
  std::unordered_set<const void*> many_;
};

// Of the storages of a batch; 0 for a headrace.Batch, whose Loader counts it. Under the GIL.
std::int64_t batch_bytes(pybind11::handle batch);

// Under the GIL, but for timeline(). Owns a thread that reads some 100 times a second what was counted last.
class LoopMemory {
 public:
  LoopMemory() = default;
  LoopMemory(const LoopMemory&) = delete;
  LoopMemory& operator=(const LoopMemory&) = delete;

  // Those that are known already are left out.
  void add_model(const pybind11::object& object);
  void add_optimizer(const pybind11::object& object);
  // Counts anew, at most 5 times a second each: it walks over every tensor.
  void note_batch(pybind11::handle batch);
  void note_objects();
  MemoryTimeline timeline() { return sampler_.timeline(); }

 private:
  enum Class : std::size_t { parameters, gradients, optimizer, batches, kClasses };
  static constexpr std::int64_t kNobody = -1;  // Has counted it.

  std::vector<AccountBytes> counted() const;

  std::vector<pybind11::object> models_, optimizers_;
  std::int64_t batch_noted_ns_ = 0, objects_noted_ns_ = 0;
  std::array<std::atomic<std::int64_t>, kClasses> bytes_{kNobody, kNobody, kNobody, kNobody};
  MemorySampler sampler_{std::chrono::milliseconds(10), [this] { return counted(); }};  // Last: it reads the rest.
};

}  // namespace headrace::python
