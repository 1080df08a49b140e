#include "data/source/sample_reader.h"

#include <cstddef>

#include "data/source/detail/field_fault.h"
#include "data/source/payload_check.h"

namespace headrace {

namespace {

// Who takes rows sets the label beside them.
Capabilities usable(Capabilities can) {
  if (can.known == nullptr) can.rows = nullptr;
  return can;
}

}  // namespace

SampleReader::SampleReader(const Source& source, const SampleLimits& limits)
    : source_(source), info_(source.info()), can_(usable(source.capabilities())), limits_(limits) {}

void SampleReader::fetch_ranges(std::int64_t index, Sample& sample) const {
  for (std::size_t i = 0; i < sample.size(); ++i) {
    Payload& payload = sample[i];
    if (payload.kind != Payload::Kind::range) continue;
    const FieldSpec& field = info_.schema[i];
    if (payload.offset < 0 || payload.size < 0) {
      refuse_sample(detail::field_fault(ErrorCode::invalid_argument, field,
                                        "{} bytes from byte {} on of {}; neither may be negative", payload.size,
                                        payload.offset, can_.store->text_of(payload.key)),
                    name(index));
    }
    if (payload.size > limits_.bytes) {
      refuse_sample(
          detail::field_fault(ErrorCode::unsupported, field, "{} bytes; wanted at most {} (data.max_sample_bytes)",
                              payload.size, limits_.bytes),
          name(index));
    }
    payload.bytes = can_.store->get(payload.key, {.offset = payload.offset, .size = payload.size}, sample.buffer(i));
    payload.kind = Payload::Kind::bytes;
  }
}

}  // namespace headrace
