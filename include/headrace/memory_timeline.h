// What a process held over time, by class of memory: plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

struct MemoryTimeline {
  struct Class {
    std::string name;                 // "parameters", "batches", ...
    std::vector<std::int64_t> bytes;  // One value a moment; 0 while nothing of the class existed.
  };
  std::vector<std::int64_t> at_ns;     // CLOCK_MONOTONIC, ascending.
  std::vector<std::int64_t> resident;  // One value a moment.
  std::vector<Class> classes;

  // Of moment `index`: resident beyond all classes, at least 0. Memory that is allocated and not touched yet is in a
  // class and not resident.
  std::int64_t other(std::size_t index) const;
};

}  // namespace headrace
