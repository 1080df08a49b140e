#include "data/source/payload_check.h"

#include <algorithm>

#include "core/base/fail.h"
#include "core/base/utf8.h"
#include "data/source/detail/field_fault.h"

namespace headrace {
namespace {

using detail::corrupt_field;
using detail::field_fault;

std::string wanted(const FieldSpec& field) {
  return array_text(field.dtype, field.shape);
}

bool has_shape_of(const FieldSpec& field, const Payload& payload) {
  if (payload.rank != field.shape.size()) return false;
  const std::int64_t shortest = field.encoding == Encoding::image ? 1 : 0;
  for (std::size_t axis = 0; axis < field.shape.size(); ++axis) {
    const std::int64_t side = payload.extents[axis], fixed = field.shape[axis];
    if (fixed == kRagged ? side < shortest || side > kExtentMax : side != fixed) return false;
  }
  return true;
}

std::optional<FieldFault> fault_in_number(const FieldSpec& field, const Payload& payload) {
  if (!field.shape.empty()) return corrupt_field(field, "a number; wanted {}", wanted(field));
  if (payload.rank != 0) return corrupt_field(field, "a number of {} axes", payload.rank);
  if (payload.value_bytes != bytes_of(field.dtype)) {
    return corrupt_field(field, "a number of {} bytes; wanted {}, of {}", payload.value_bytes, bytes_of(field.dtype),
                         name_of(field.dtype));
  }
  const auto first = std::to_integer<int>(payload.value[0]);
  if (field.dtype == DType::boolean && first > 1) return corrupt_field(field, "a bool of {}; wanted 0 or 1", first);
  return std::nullopt;
}

std::optional<FieldFault> fault_in_file(const FieldSpec& field, const Payload& payload) {
  const bool takes_files = field.encoding == Encoding::image && field.shape[0] == kRagged && field.shape[1] == kRagged;
  if (!takes_files) return corrupt_field(field, "an encoded image; wanted {}", wanted(field));
  if (payload.rank != 0) {
    return corrupt_field(field, "an encoded image of {} axes; only its bytes tell them", payload.rank);
  }
  if (payload.bytes.empty()) return corrupt_field(field, "an encoded image of 0 bytes");
  return std::nullopt;
}

// Of texts and bools, whose bytes are not all of them elements.
std::optional<FieldFault> fault_in_elements(const FieldSpec& field, const Payload& payload) {
  const auto bytes = payload.bytes;
  if (field.encoding == Encoding::text) {
    const std::size_t good = utf8_length({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    if (good == bytes.size()) return std::nullopt;
    return corrupt_field(field, "byte {} of {}, 0x{:02X}, is not UTF-8", good, bytes.size(), bytes[good]);
  }
  if (field.dtype == DType::boolean) {
    const auto odd = std::find_if(bytes.begin(), bytes.end(), [](std::uint8_t byte) { return byte > 1; });
    if (odd == bytes.end()) return std::nullopt;
    return corrupt_field(field, "element {} is a bool of {}; wanted 0 or 1", odd - bytes.begin(), *odd);
  }
  return std::nullopt;
}

std::optional<FieldFault> fault_in_array(const FieldSpec& field, const Payload& payload, const SampleLimits& limits) {
  if (!has_shape_of(field, payload)) {
    if (payload.rank > kRankMax) return corrupt_field(field, "{} axes; wanted {}", payload.rank, wanted(field));
    return corrupt_field(field, "{}; wanted {}", array_text(field.dtype, payload.shape()), wanted(field));
  }
  if (!payload.entropy_index.empty()) return corrupt_field(field, "an entropy index beside {}", wanted(field));
  std::int64_t size = bytes_of(field.dtype);
  for (const std::int64_t side : payload.shape()) {
    if (__builtin_mul_overflow(size, side, &size)) {
      return corrupt_field(field, "{}: more bytes than can be counted", array_text(field.dtype, payload.shape()));
    }
  }
  if (std::ssize(payload.bytes) != size) {
    return corrupt_field(field, "{} bytes; wanted {}, of {}", payload.bytes.size(), size,
                         array_text(field.dtype, payload.shape()));
  }
  if (field.encoding == Encoding::image && payload.extents[0] * payload.extents[1] > limits.pixels) {
    return field_fault(ErrorCode::unsupported, field, "{} x {} pixels; wanted at most {} (data.max_pixels)",
                       payload.extents[0], payload.extents[1], limits.pixels);
  }
  return fault_in_elements(field, payload);
}

std::optional<FieldFault> fault_in_bytes(const FieldSpec& field, const Payload& payload, const SampleLimits& limits) {
  if (std::ssize(payload.bytes) > limits.bytes) {  // First: what is behind this reads the bytes.
    return field_fault(ErrorCode::unsupported, field, "{} bytes; wanted at most {} (data.max_sample_bytes)",
                       payload.bytes.size(), limits.bytes);
  }
  return payload.form == ImageForm::encoded ? fault_in_file(field, payload) : fault_in_array(field, payload, limits);
}

}  // namespace

std::optional<FieldFault> payload_fault(const FieldSpec& field, const Payload& payload, const SampleLimits& limits) {
  switch (payload.kind) {
    case Payload::Kind::absent:
      if (field.optional) return std::nullopt;
      return corrupt_field(field, "absent; wanted {} in every sample, as the field is not optional", wanted(field));
    case Payload::Kind::value:
      return fault_in_number(field, payload);
    case Payload::Kind::bytes:
      return fault_in_bytes(field, payload, limits);
    case Payload::Kind::range:
      return field_fault(ErrorCode::internal, field, "bytes of {} that were not fetched; wanted {}", payload.key,
                         wanted(field));
    case Payload::Kind::frames:
      return field_fault(ErrorCode::unsupported, field, "frames of {}; this build reads no video", payload.key);
  }
  return field_fault(ErrorCode::internal, field, "a payload of kind {}", static_cast<int>(payload.kind));
}

std::optional<std::int64_t> class_in(const Payload& payload) noexcept {
  const bool is_value = payload.kind == Payload::Kind::value;
  const std::size_t bytes = is_value ? payload.value_bytes : payload.bytes.size();
  const bool is_number = (is_value || payload.kind == Payload::Kind::bytes) && payload.rank == 0;
  if (!is_number || bytes != sizeof(std::int64_t)) return std::nullopt;
  return payload.number<std::int64_t>();
}

void refuse_sample(const FieldFault& fault, const std::string& sample) {
  fail(fault.code, "data: {}: {}", sample, fault.text);
}

}  // namespace headrace
