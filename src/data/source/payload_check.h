// Whether a payload is what its field promises.
#pragma once

#include <headrace/error.h>
#include <headrace/options/data.h>
#include <headrace/payload.h>

#include <cstdint>
#include <optional>
#include <string>

namespace headrace {

// A value and no Error: who reads knows the sample's name, and may replace a worker process instead of throwing.
struct FieldFault {
  ErrorCode code;
  std::string text;  // "field boxes: float32 (5, 3); wanted float32 (-1, 4)".
};

// What is wrong with one field of one sample; nullopt, without an allocation, when nothing is. Reads every byte of
// texts and bools, of other fields none. Codes: corrupt_data, the sample breaks its schema; unsupported, it is larger
// than `limits`, or frames of a video; internal, a range that nobody has fetched.
[[nodiscard]] std::optional<FieldFault> payload_fault(const FieldSpec& field, const Payload& payload,
                                                      const SampleLimits& limits);

// The number that a class is, be it a value or 8 bytes; nullopt: it is no such number.
std::optional<std::int64_t> class_in(const Payload& payload) noexcept;

// Throws Error: "data: photos.Photos[17]: field boxes: ...". `sample`: Source::name().
[[noreturn]] void refuse_sample(const FieldFault& fault, const std::string& sample);

}  // namespace headrace
