// Whether a sample is what its source says and within the limits. Whoever reads one asks before it is decoded. The
// sentences about images are here; what else a payload can break, payload_fault() tells.
#pragma once

#include <headrace/options/data.h>
#include <headrace/source.h>

#include "data/loader/detail/sample_fields.h"

#include <cstdint>

namespace headrace::detail {

// `source` names the sample, here and below. `bytes`: of the sample, read or to be read. Error{unsupported} names the
// sample and data.max_sample_bytes.
[[noreturn, gnu::cold]] void refuse_size(const Source& source, std::int64_t bytes, std::int64_t index,
                                         const SampleLimits& limits);
inline void check_limit(const Source& source, std::int64_t bytes, std::int64_t index, const SampleLimits& limits) {
  if (bytes > limits.bytes) refuse_size(source, bytes, index, limits);
}

// `fields`: the source's, as many as the sample has. `whole`: the image's bytes are there. Error{corrupt_data} or
// {unsupported} names the sample, what was wanted and what was found; Error{internal}: the source contradicts itself.
void check_sample(const Source& source, const SampleFields& fields, const Sample& sample, std::int64_t index,
                  const SampleLimits& limits, bool whole);

}  // namespace headrace::detail
