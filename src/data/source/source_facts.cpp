#include "data/source/source_facts.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "core/base/fail.h"
#include "core/base/hash.h"

namespace headrace {
namespace {

constexpr std::int64_t kSamplesMax = std::int64_t{1} << 31;
constexpr std::int64_t kSideMax = 1 << 24;

[[noreturn]] void refuse_facts(const std::string& name, const std::string& found, std::string_view wanted) {
  fail(ErrorCode::invalid_argument, "data: {} has {}; wanted {}", name, found, wanted);
}

}  // namespace

int SourceFacts::side(std::size_t axis) const {
  return static_cast<int>(std::max<std::int64_t>(schema[schema.image().value()].shape[axis], 0));  // Ragged: 0.
}

Schema schema_of_images(const std::string& name, std::int64_t height, std::int64_t width, std::int64_t channels) {
  const bool sides_fit = std::min(height, width) >= 0 && std::max(height, width) <= kSideMax;
  if (!sides_fit || (height == 0) != (width == 0)) {
    refuse_facts(name, fmt::format("images of {} x {} pixels", height, width), "sides of 1 to 16,777,216");
  }
  if (channels != 1 && channels != 3) refuse_facts(name, fmt::format("{} channels", channels), "1 or 3");
  return Schema::image_and_labels(static_cast<int>(height), static_cast<int>(width), static_cast<int>(channels));
}

void check(const SourceFacts& facts) {
  const auto refuse = [&](const std::string& found, std::string_view wanted) {
    refuse_facts(facts.name, found, wanted);
  };
  if (facts.size < 0 || facts.size > kSamplesMax) {
    refuse(fmt::format("{} samples", facts.size), "0 to 2,147,483,648");
  }
  if (facts.classes < 1) refuse(fmt::format("{} classes", facts.classes), "at least 1");
  if (facts.labels.empty()) return;
  if (std::ssize(facts.labels) != facts.size) {
    refuse(fmt::format("{} labels for {} samples", facts.labels.size(), facts.size), "one each");
  }
  const auto outside = std::find_if(facts.labels.begin(), facts.labels.end(),
                                    [&](std::int64_t label) { return label < 0 || label >= facts.classes; });
  if (outside != facts.labels.end()) {
    const std::string of_classes = facts.classes == SourceFacts::kUnknownClasses
                                       ? std::string("0 or more")
                                       : fmt::format("0 to {}", facts.classes - 1);
    refuse(fmt::format("label {} at {}", *outside, outside - facts.labels.begin()), of_classes);
  }
}

std::uint64_t fingerprint_of(const SourceFacts& facts) {
  Xxh3Stream stream;
  stream.update(std::as_bytes(std::span{facts.name}));
  const std::int64_t numbers[] = {facts.size, facts.classes, facts.height(), facts.width(), facts.channels()};
  stream.update(std::as_bytes(std::span{numbers}));
  stream.update(std::as_bytes(std::span{facts.labels}));
  if (!facts.schema.is_image_and_labels()) {
    const std::string text = facts.schema.text();
    stream.update(std::as_bytes(std::span{text}));
  }
  return stream.digest();
}

std::string sample_name_of(const SourceFacts& facts, std::int64_t index) {
  return fmt::format("{}[{}]", facts.name, index);
}

KnownLabels::KnownLabels(const SourceFacts& facts)
    : labels_(new std::atomic<std::int64_t>[static_cast<std::size_t>(facts.size)]) {
  for (std::int64_t i = 0; i < facts.size; ++i) {
    const auto place = static_cast<std::size_t>(i);
    labels_[place].store(facts.labels.empty() ? -1 : facts.labels[place], std::memory_order_relaxed);
  }
}

std::int64_t KnownLabels::at(std::int64_t index) const {
  return labels_[static_cast<std::size_t>(index)].load(std::memory_order_relaxed);
}

void KnownLabels::note(const SourceFacts& facts, std::int64_t index, std::int64_t label) {
  if (facts.labels.empty()) {
    labels_[static_cast<std::size_t>(index)].store(label, std::memory_order_relaxed);
  } else if (at(index) != label) {
    fail(ErrorCode::corrupt_data, "data: {}: label {}; the source's labels say {}", sample_name_of(facts, index), label,
         at(index));
  }
}

}  // namespace headrace
