#include "data/source/source_facts.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "core/base/fail.h"
#include "core/base/hash.h"
#include "data/source/payload_check.h"

namespace headrace {
namespace {

constexpr std::int64_t kSamplesMax = std::int64_t{1} << 31;
constexpr std::int64_t kSideMax = 1 << 24;

[[noreturn]] void refuse_facts(const std::string& name, const std::string& found, std::string_view wanted) {
  fail(ErrorCode::invalid_argument, "data: {} has {}; wanted {}", name, found, wanted);
}

}  // namespace

Schema with_any_size(const Schema& schema) {
  const auto image = schema.image();
  if (!image) return schema;
  std::vector<FieldSpec> fields(schema.fields().begin(), schema.fields().end());
  fields[*image].shape[0] = fields[*image].shape[1] = kRagged;
  return Schema{std::move(fields)};
}

void check(const SourceFacts& facts) {
  const auto refuse = [&](const std::string& found, std::string_view wanted) {
    refuse_facts(facts.name, found, wanted);
  };
  const bool is_known = facts.size != kUnknownSize;
  if (is_known && (facts.size < 0 || facts.size > kSamplesMax)) {
    refuse(fmt::format("{} samples", facts.size), "0 to 2,147,483,648");
  }
  if (facts.schema.empty() && facts.size > 0) refuse("no fields", "at least one");
  if (const auto image = facts.schema.image()) {
    const Shape& shape = facts.schema[*image].shape;
    if ((shape[0] == kRagged) != (shape[1] == kRagged) || std::max(shape[0], shape[1]) > kSideMax) {
      refuse(fmt::format("images of {} x {} pixels", shape[0], shape[1]),
             "height and width of 1 to 16,777,216, or -1 for any");
    }
    if (shape[2] != 1 && shape[2] != 3) refuse(fmt::format("{} channels", shape[2]), "1 or 3");
  }
  if (facts.classes < 1) refuse(fmt::format("{} classes", facts.classes), "at least 1");
  if (facts.labels.empty()) return;
  if (!facts.schema.class_label()) {
    refuse(fmt::format("{} labels and no field for them: {}", facts.labels.size(), facts.schema.text()),
           "labels int64 ()");
  }
  if (std::ssize(facts.labels) != facts.size) {
    refuse(fmt::format("{} labels for {} samples", facts.labels.size(), facts.size), "one each");
  }
  const auto outside = std::find_if(facts.labels.begin(), facts.labels.end(),
                                    [&](std::int64_t label) { return label < 0 || label >= facts.classes; });
  if (outside != facts.labels.end()) {
    const std::string of_classes =
        facts.classes == kUnknownClasses ? std::string("0 or more") : fmt::format("0 to {}", facts.classes - 1);
    refuse(fmt::format("label {} at {}", *outside, outside - facts.labels.begin()), of_classes);
  }
}

std::uint64_t fingerprint_of(const SourceFacts& facts) {
  Xxh3Stream stream;
  stream.update(std::as_bytes(std::span{facts.name}));
  const ImageShape images = stored_shape(facts.schema);
  const std::int64_t numbers[] = {facts.size, facts.classes, images.height, images.width, images.channels};
  stream.update(std::as_bytes(std::span{numbers}));
  stream.update(std::as_bytes(std::span{facts.labels}));
  if (!facts.schema.is_image_and_labels()) {
    const std::string text = facts.schema.text();
    stream.update(std::as_bytes(std::span{text}));
  }
  return stream.digest();
}

SourceInfo info_of(const SourceFacts& facts) {
  return {.schema = facts.schema, .num_classes = facts.classes, .fingerprint = fingerprint_of(facts)};
}

std::string sample_name_of(const SourceFacts& facts, std::int64_t index) {
  return fmt::format("{}[{}]", facts.name, index);
}

KnownLabels::KnownLabels(const SourceFacts& facts) : field_(facts.schema.class_label()) {
  if (facts.size == kUnknownSize) field_.reset();
  if (!field_) return;
  labels_.reset(new std::atomic<std::int64_t>[static_cast<std::size_t>(facts.size)]);
  for (std::int64_t i = 0; i < facts.size; ++i) {
    const auto place = static_cast<std::size_t>(i);
    labels_[place].store(facts.labels.empty() ? -1 : facts.labels[place], std::memory_order_relaxed);
  }
}

std::int64_t KnownLabels::at(std::int64_t index) const {
  return field_ ? labels_[static_cast<std::size_t>(index)].load(std::memory_order_relaxed) : -1;
}

// What is no number there is refused by whoever checks the sample.
void KnownLabels::note(const SourceFacts& facts, std::int64_t index, const Sample& sample) {
  const auto label = field_ ? class_in(sample[*field_]) : std::nullopt;
  if (!label) return;
  if (facts.labels.empty()) {
    labels_[static_cast<std::size_t>(index)].store(*label, std::memory_order_relaxed);
  } else if (at(index) != *label) {
    fail(ErrorCode::corrupt_data, "data: {}: label {}; the source's labels say {}", sample_name_of(facts, index),
         *label, at(index));
  }
}

}  // namespace headrace
