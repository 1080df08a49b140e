// For tests and benches: a sample in memory of its own.
#pragma once

#include <headrace/source.h>

#include <cstdint>

namespace headrace {

inline Sample read_sample(const Source& source, std::int64_t index) {
  Sample sample{source.schema().size()};
  source.read(index, sample);
  return sample;
}

}  // namespace headrace
