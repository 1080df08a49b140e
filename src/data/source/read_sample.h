// For tests and benches: a sample in memory of its own, and what is known of one.
#pragma once

#include <headrace/source.h>

#include <cstdint>
#include <string>

#include "data/source/sample_reader.h"

namespace headrace {

inline Sample read_sample(const Source& source, std::int64_t index) {
  const SampleReader reader{source};
  Sample sample{reader.info().schema.size()};
  reader.read(index, sample);
  return sample;
}

inline std::int64_t label_of(const Source& source, std::int64_t index) {
  return SampleReader{source}.label(index);
}

inline std::int64_t sample_bytes_of(const Source& source, std::int64_t index) {
  return SampleReader{source}.sample_bytes(index);
}

inline std::string stored_name_of(const Source& source, std::int64_t index) {
  const StoredNames* const names = source.capabilities().names;
  return names == nullptr ? "" : names->stored_name(index);
}

}  // namespace headrace
