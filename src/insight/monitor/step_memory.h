// Resident memory between two moments: now, the most, and the mean.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

namespace headrace {

struct StepMemory {
  std::int64_t current = 0, peak = 0;  // Bytes.
  double mean = 0;
};

// Owns one thread, from construction to destruction, which reads resident memory at steady intervals.
// What lasts less than one may be missed; the kernel's own peak (VmHWM) is left alone, as others reset it.
class StepMemoryReader {
 public:
  // The interval: above 0.
  explicit StepMemoryReader(std::chrono::nanoseconds interval = std::chrono::milliseconds(5));
  ~StepMemoryReader();

  // Since construction or the last call, with a reading now. Any thread. nullopt: the system does not tell.
  std::optional<StepMemory> take();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
