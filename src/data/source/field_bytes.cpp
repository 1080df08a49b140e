#include "data/source/field_bytes.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "core/base/fail.h"
#include "data/source/detail/field_fault.h"

namespace headrace {
namespace {

static_assert(std::endian::native == std::endian::little, "the bytes are little-endian and copied as they lie");

using detail::corrupt_field;

constexpr std::size_t padded(std::size_t bytes) {
  return (bytes + 7) / 8 * 8;
}

bool is_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

std::size_t stored_bytes(const Payload& payload) {
  return payload.kind == Payload::Kind::bytes ? padded(payload.bytes.size() + payload.entropy_index.size()) : 0;
}

FieldHead head_of(const FieldSpec& field, const Payload& payload, std::size_t at) {
  const bool is_bytes = payload.kind == Payload::Kind::bytes;
  HEADRACE_CHECK(payload.kind <= Payload::Kind::bytes, "field {}: a payload of kind {} has no bytes", field.name,
                 static_cast<int>(payload.kind));
  FieldHead head{};
  head.kind = static_cast<std::uint8_t>(payload.kind);
  head.dtype = static_cast<std::uint8_t>(field.dtype);
  if (payload.kind == Payload::Kind::value) {
    std::memcpy(head.value, payload.value.data(), static_cast<std::size_t>(bytes_of(field.dtype)));
  }
  if (!is_bytes) return head;
  HEADRACE_CHECK(payload.rank <= kRankMax, "field {}: {} axes", field.name, payload.rank);
  head.form = static_cast<std::uint8_t>(payload.form);
  head.rank = payload.rank;
  head.at = static_cast<std::int64_t>(at);
  head.size = std::ssize(payload.bytes);
  head.index_size = std::ssize(payload.entropy_index);
  for (std::size_t axis = 0; axis < payload.rank; ++axis) {
    const std::int64_t side = payload.extents[axis];
    HEADRACE_CHECK(side >= 0 && side <= kExtentMax, "field {}: an axis of {}", field.name, side);
    head.extents[axis] = static_cast<std::int32_t>(side);
  }
  return head;
}

// The head by itself: what it says of kind, type and axes. Whether these fit the field is payload_fault()'s.
std::optional<FieldFault> fault_in_head(const FieldSpec& field, const FieldHead& head) {
  const auto dtype = dtype_numbered(head.dtype);
  if (head.kind > static_cast<std::uint8_t>(Payload::Kind::bytes)) {
    return corrupt_field(field, "a payload of kind {}; wanted 0 to 2", head.kind);
  }
  if (!dtype) return corrupt_field(field, "elements of type {}; wanted 0 to {}", head.dtype, kDTypes - 1);
  if (head.rank > kRankMax) return corrupt_field(field, "{} axes; wanted at most {}", head.rank, kRankMax);
  if (head.form > static_cast<std::uint8_t>(ImageForm::encoded)) {
    return corrupt_field(field, "an image of form {}; wanted 0 or 1", head.form);
  }
  std::array<std::int64_t, kRankMax> extents{};
  std::copy(std::begin(head.extents), std::end(head.extents), extents.begin());
  if (*dtype != field.dtype) {
    const auto found = std::span{extents}.first(head.rank);
    return corrupt_field(field, "{}; wanted {}", array_text(*dtype, found), array_text(field.dtype, field.shape));
  }
  const bool is_value = head.kind == static_cast<std::uint8_t>(Payload::Kind::value);
  const std::size_t used = is_value ? static_cast<std::size_t>(bytes_of(field.dtype)) : 0;
  if (head.zero != 0 || !is_zero(std::as_bytes(std::span{head.value}.subspan(used))) ||
      std::any_of(extents.begin() + head.rank, extents.end(), [](std::int64_t side) { return side != 0; })) {
    return corrupt_field(field, "a member of its head that says nothing is not 0");
  }
  const bool is_bytes = head.kind == static_cast<std::uint8_t>(Payload::Kind::bytes);
  if (!is_bytes && (head.form != 0 || head.rank != 0 || head.at != 0 || head.size != 0 || head.index_size != 0)) {
    return corrupt_field(field, "{} bytes at {} of a payload of kind {}, which has none", head.size, head.at,
                         head.kind);
  }
  return std::nullopt;
}

// Where it lies: at `end`, where the one before it ended, with all of its padding in `whole` bytes.
std::optional<FieldFault> fault_in_place(const FieldSpec& field, const FieldHead& head, std::size_t end,
                                         std::size_t whole) {
  if (head.at != static_cast<std::int64_t>(end)) {
    return corrupt_field(field, "its bytes begin at {}; wanted {}, behind those of the field before", head.at, end);
  }
  const auto rest = static_cast<std::int64_t>(whole - end);
  // The last of these is also true where the size alone is too large.
  if (head.size < 0 || head.index_size < 0 || head.index_size > rest - head.size) {
    return corrupt_field(field, "{} bytes and an index of {} from byte {} on, of {} in all", head.size, head.index_size,
                         head.at, whole);
  }
  return std::nullopt;
}

Payload payload_of(const FieldHead& head, const FieldSpec& field, std::span<const std::byte> bytes) {
  Payload payload{
      .kind = static_cast<Payload::Kind>(head.kind), .form = static_cast<ImageForm>(head.form), .rank = head.rank};
  std::copy(std::begin(head.extents), std::end(head.extents), payload.extents.begin());
  if (payload.kind == Payload::Kind::value) {
    payload.value_bytes = static_cast<std::uint8_t>(bytes_of(field.dtype));
    std::memcpy(payload.value.data(), head.value, sizeof head.value);
  }
  if (payload.kind == Payload::Kind::bytes) {
    const auto* first = reinterpret_cast<const std::uint8_t*>(bytes.data()) + head.at;
    payload.bytes = {first, static_cast<std::size_t>(head.size)};
    payload.entropy_index = {first + head.size, static_cast<std::size_t>(head.index_size)};
  }
  return payload;
}

}  // namespace

FieldBytes::FieldBytes(Schema schema, std::optional<std::size_t> except) : schema_(std::move(schema)), except_(except) {
  HEADRACE_CHECK(!except_ || *except_ < schema_.size(), "field {} of {}", *except_, schema_.size());
}

std::size_t FieldBytes::heads_bytes() const {
  return (schema_.size() - (except_ ? 1 : 0)) * sizeof(FieldHead);
}

std::int64_t FieldBytes::size(std::span<const Payload> payloads) const {
  HEADRACE_CHECK(payloads.size() == schema_.size(), "{} payloads of {} fields", payloads.size(), schema_.size());
  std::size_t size = heads_bytes();
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    if (i != except_) size += stored_bytes(payloads[i]);
  }
  return static_cast<std::int64_t>(size);
}

void FieldBytes::write(std::span<const Payload> payloads, std::span<std::byte> out) const {
  HEADRACE_CHECK(std::ssize(out) == size(payloads), "{} bytes for a sample of {}", out.size(), size(payloads));
  std::size_t head_at = 0, at = heads_bytes();
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    if (i == except_) continue;
    const Payload& payload = payloads[i];
    const FieldHead head = head_of(schema_[i], payload, at);
    std::memcpy(&out[head_at], &head, sizeof head);
    head_at += sizeof head;
    const std::size_t stored = stored_bytes(payload);
    if (stored == 0) continue;
    const auto target = out.subspan(at, stored);
    const auto bytes = std::as_bytes(payload.bytes), index = std::as_bytes(payload.entropy_index);
    std::copy(index.begin(), index.end(), std::copy(bytes.begin(), bytes.end(), target.begin()));
    std::fill(target.begin() + std::ssize(bytes) + std::ssize(index), target.end(), std::byte{0});
    at += stored;
  }
}

std::optional<FieldFault> FieldBytes::read(std::span<const std::byte> bytes, const SampleLimits& limits,
                                           std::span<Payload> payloads) const {
  return locate(bytes, &limits, payloads);
}

std::optional<FieldFault> FieldBytes::locate(std::span<const std::byte> bytes, std::span<Payload> payloads) const {
  return locate(bytes, nullptr, payloads);
}

std::optional<FieldFault> FieldBytes::locate(std::span<const std::byte> bytes, const SampleLimits* limits,
                                             std::span<Payload> payloads) const {
  HEADRACE_CHECK(payloads.size() == schema_.size(), "{} payloads of {} fields", payloads.size(), schema_.size());
  auto fault = locate_each(bytes, limits, payloads);
  if (fault) clear(payloads);
  return fault;
}

void FieldBytes::clear(std::span<Payload> payloads) const {
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    if (i != except_) payloads[i] = {};
  }
}

std::optional<FieldFault> FieldBytes::locate_each(std::span<const std::byte> bytes, const SampleLimits* limits,
                                                  std::span<Payload> payloads) const {
  if (bytes.size() < heads_bytes()) {
    return FieldFault{ErrorCode::corrupt_data, fmt::format("{} bytes of fields; the heads of {} alone have {}",
                                                           bytes.size(), schema_.size(), heads_bytes())};
  }
  std::size_t head_at = 0, end = heads_bytes();
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    if (i == except_) continue;
    const FieldSpec& field = schema_[i];
    FieldHead head;
    std::memcpy(&head, &bytes[head_at], sizeof head);
    head_at += sizeof head;
    if (auto fault = fault_in_head(field, head)) return fault;
    if (head.kind == static_cast<std::uint8_t>(Payload::Kind::bytes)) {
      if (auto fault = fault_in_place(field, head, end, bytes.size())) return fault;
      const std::size_t used = end + static_cast<std::size_t>(head.size + head.index_size);
      end = padded(used);
      if (end > bytes.size() || !is_zero(bytes.subspan(used, end - used))) {
        return corrupt_field(field, "no zeros behind its bytes, which end at {} of {}", used, bytes.size());
      }
    }
    payloads[i] = payload_of(head, field, bytes);
    if (limits == nullptr) continue;
    if (auto fault = payload_fault(field, payloads[i], *limits)) return fault;
  }
  if (end != bytes.size()) {
    return FieldFault{ErrorCode::corrupt_data,
                      fmt::format("{} bytes of fields; the last of them ends at {}", bytes.size(), end)};
  }
  return std::nullopt;
}

}  // namespace headrace
