// Samples of any schema whose values follow from their index, for tests.
#pragma once

#include <headrace/source.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "core/base/hash.h"
#include "core/base/random.h"

namespace headrace {

// Ragged axes have 0 to `rows` elements, the first one, and 0 to 4, further ones; one in four samples lacks an optional
// field; "labels" that are classes are 0 to 9.
class FieldsSource : public Source, KnownSamples {
 public:
  FieldsSource(Schema schema, std::int64_t size, std::uint32_t rows = 5)
      : schema_(std::move(schema)), size_(size), rows_(rows) {
    const std::string text = schema_.text();
    info_ = {.schema = schema_, .num_classes = 10, .fingerprint = xxh3(std::as_bytes(std::span{text}))};
  }

  std::int64_t size() const override { return size_; }
  const SourceInfo& info() const override { return info_; }
  const Schema& schema() const { return schema_; }
  Capabilities capabilities() const override { return {.known = this}; }
  std::int64_t label(std::int64_t index) const override {
    return SampleRandom{7, static_cast<std::int64_t>(schema_.find("labels").value_or(0)), index}.below(10);
  }
  std::string name(std::int64_t index) const override { return fmt::format("fields[{}]", index); }

  void read(std::int64_t index, Sample& sample) const override {
    for (std::size_t i = 0; i < schema_.size(); ++i) fill(index, i, sample[i], sample.buffer(i));
    if (on_read) on_read(index, sample);
  }

  // What read() gives of this field.
  void fill(std::int64_t index, std::size_t position, Payload& payload, std::vector<std::uint8_t>& buffer) const {
    const FieldSpec& field = schema_[position];
    SampleRandom random{7, static_cast<std::int64_t>(position), index};
    if (field.name == "labels" && field.dtype == DType::i64 && field.shape.empty()) {
      return payload.set_number(std::int64_t{random.below(10)});
    }
    payload.kind = Payload::Kind::absent;
    if (field.optional && random.below(4) == 0) return;
    std::array<std::int64_t, kRankMax> extents{};
    auto bytes = static_cast<std::size_t>(bytes_of(field.dtype)), bytes_max = bytes;
    for (std::size_t axis = 0; axis < field.shape.size(); ++axis) {
      const std::uint32_t least = field.encoding == Encoding::image ? 1 : 0, most = axis == 0 ? rows_ : 4;
      extents[axis] = field.shape[axis] == kRagged ? least + random.below(most + 1 - least) : field.shape[axis];
      bytes *= static_cast<std::size_t>(extents[axis]);
      bytes_max *= field.shape[axis] == kRagged ? std::max(most, least) : static_cast<std::size_t>(extents[axis]);
    }
    if (buffer.size() < bytes_max) buffer.resize(bytes_max);  // Once: what a loader allocates is counted beside it.
    for (std::size_t i = 0; i < bytes; ++i) {
      const std::uint32_t byte = random.next() & 0xFFU;
      buffer[i] = static_cast<std::uint8_t>(field.encoding == Encoding::text ? 'a' + byte % 26
                                            : field.dtype == DType::boolean  ? byte & 1U
                                                                             : byte);
    }
    payload.set_bytes(std::span{buffer}.first(bytes), std::span{extents}.first(field.shape.size()));
  }

  std::function<void(std::int64_t, Sample&)> on_read = {};  // May change what was read.

 private:
  const Schema schema_;
  const std::int64_t size_;
  const std::uint32_t rows_;
  SourceInfo info_;
};

// A schema of 0 to 6 fields that follows from the seed, and at times an image and labels: any type, ragged or not,
// optional or not, of up to three axes.
inline Schema any_schema(std::uint64_t seed) {
  SampleRandom random{seed, 0, 0};
  std::vector<FieldSpec> fields;
  const std::uint32_t others = random.below(6) + 1;
  for (std::uint32_t i = 0; i < others; ++i) {
    FieldSpec field{.name = fmt::format("f{}", i), .dtype = static_cast<DType>(random.below(kDTypes))};
    const std::uint32_t rank = random.below(4), form = random.below(5);
    for (std::uint32_t axis = 0; axis < rank; ++axis) field.shape.push_back(random.below(4) + (axis == 0 ? 0 : 1));
    if (form < 3 && rank > 0) field.shape[0] = kRagged;
    if (form == 2 && rank > 1) field.shape[rank - 1] = kRagged;
    if (form == 3) field = {.name = field.name, .dtype = DType::u8, .shape = {kRagged}, .encoding = Encoding::text};
    field.optional = random.below(3) == 0;
    fields.push_back(std::move(field));
  }
  const auto insert = [&](FieldSpec field) {
    fields.insert(
        fields.begin() + static_cast<std::ptrdiff_t>(random.below(static_cast<std::uint32_t>(fields.size()) + 1)),
        std::move(field));
  };
  if (random.below(2) == 0) insert({.name = "labels", .dtype = DType::i64});
  if (random.below(2) == 0) insert({.name = "image", .shape = {5, 4, 3}, .encoding = Encoding::image});
  return Schema{std::move(fields)};
}

}  // namespace headrace
