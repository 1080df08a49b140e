// The fields of a sample one behind the other: what worker processes send, packs store and the cache keeps.
#pragma once

#include <headrace/field.h>
#include <headrace/payload.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "data/source/payload_check.h"

namespace headrace {

// Little-endian. A head for each field, in the schema's order; then, for each that is Payload::Kind::bytes, its bytes,
// its entropy index right behind them, and zeros to the next multiple of 8. There is one way to write a sample: nothing
// lies between, behind, or in a member that its kind does not use but zeros.
struct FieldHead {
  std::uint8_t kind;   // Payload::Kind: absent, value or bytes.
  std::uint8_t form;   // ImageForm.
  std::uint8_t rank;   // Axes.
  std::uint8_t dtype;  // DType's number. Repeats the schema's, so that another one is told by name.
  std::uint32_t zero;
  std::int64_t at;          // Of the bytes, from the beginning of the heads: a multiple of 8.
  std::int64_t size;        // Of the bytes, without the index.
  std::int32_t extents[6];  // As many as rank.
  std::uint8_t value[8];
  std::int64_t index_size;
};
static_assert(sizeof(FieldHead) == 64 && kRankMax == 6 && kExtentMax <= INT32_MAX);

// Writes and reads samples of one schema. From any thread; made once, it allocates for no sample that is as it should
// be.
class FieldBytes {
 public:
  // `except`: a field that lies elsewhere, as a pack's image does. It has no head, and its payload is left alone.
  explicit FieldBytes(Schema schema, std::optional<std::size_t> except = std::nullopt);

  // These two take one payload for each field of the schema, with which payload_fault() finds nothing wrong.
  std::int64_t size(std::span<const Payload> payloads) const;  // A multiple of 8.
  // `out` has size() bytes.
  void write(std::span<const Payload> payloads, std::span<std::byte> out) const;

  // What is wrong with `bytes`, or nullopt; then the payloads point into them, otherwise all are absent. Every place
  // and size is checked before what it points to is looked at, and payload_fault() is asked of each. `bytes` may begin
  // anywhere in memory, but nobody may write there: bytes that are shared with another process are copied first.
  [[nodiscard]] std::optional<FieldFault> read(std::span<const std::byte> bytes, const SampleLimits& limits,
                                               std::span<Payload> payloads) const;
  // The same without payload_fault(), for whoever gives the payloads on to one that asks it: places, sizes and types
  // are sound, shapes and values may be any.
  [[nodiscard]] std::optional<FieldFault> locate(std::span<const std::byte> bytes, std::span<Payload> payloads) const;

 private:
  std::size_t heads_bytes() const;
  // `limits`: null, payload_fault() is not asked.
  std::optional<FieldFault> locate(std::span<const std::byte> bytes, const SampleLimits* limits,
                                   std::span<Payload> payloads) const;
  std::optional<FieldFault> locate_each(std::span<const std::byte> bytes, const SampleLimits* limits,
                                        std::span<Payload> payloads) const;
  void clear(std::span<Payload> payloads) const;

  Schema schema_;
  std::optional<std::size_t> except_;
};

}  // namespace headrace
