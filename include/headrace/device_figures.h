// What the device of a model tells: the memory of LibTorch's allocator there, and how long it works on the parts of a
// step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace headrace {

// Of LibTorch's caching allocator of one device, of everything in this process, as torch.cuda.memory_stats() has it.
struct DeviceMemory {
  struct Bytes {
    std::int64_t now = 0;
    std::int64_t peak = 0;  // Since the process began, or the last reset.
  };
  struct Pool {
    Bytes allocated;       // In blocks that tensors have.
    Bytes requested;       // What was asked for of these, before it was rounded up to blocks.
    Bytes active;          // Allocated, or freed while a stream may still use it.
    Bytes inactive_split;  // Free parts of segments of which other parts are in use: no other pool can have them.
    Bytes reserved;        // Segments got from the driver: what other processes cannot have.
  };
  Pool all;
  Pool small;                      // Of requests up to 1 MiB.
  Pool large;                      // Of larger ones.
  std::int64_t retries = 0;        // Times that the driver refused memory and what was cached was given back for it.
  std::int64_t out_of_memory = 0;  // Times that this did not help.
};

struct DeviceMemoryReport {
  std::optional<DeviceMemory> memory{};
  std::string reason{};  // Why it is unavailable, in a sentence's middle; empty: it is there.
};

// Whatever of a step the device works on. A step replayed from a CUDA graph is `replay`, from forward to optimizer.
enum class DevicePhase { transfer, forward, backward, optimizer, replay };
inline constexpr std::array<const char*, 5> kDevicePhases{"transfer", "forward", "backward", "optimizer", "replay"};

// By events on the device, of the phases that it had passed when they were read.
struct DeviceTimes {
  struct Phase {
    double seconds = 0;
    std::int64_t count = 0;
  };
  std::array<Phase, kDevicePhases.size()> phases{};
  double seconds = 0;        // From the start of the first phase to the end of the last, gaps included.
  std::int64_t waiting = 0;  // Phases that the device had not passed.
  std::int64_t dropped = 0;  // Phases that were not timed, as too many were waiting.

  const Phase& of(DevicePhase phase) const { return phases[static_cast<std::size_t>(phase)]; }
  // The part of `seconds` in which the device was at a phase: 0 to 1; nullopt: nothing was timed.
  std::optional<double> busy_share() const;
  // What to do where it is below 0.9, in a sentence without its end; empty: nothing, or too little was timed to tell.
  std::string advice() const;
};

}  // namespace headrace
