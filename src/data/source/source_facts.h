// What a source of a user's own tells about itself before it is read.
#pragma once

#include <headrace/source.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace headrace {

struct SourceFacts {
  std::string name;                        // Of the source, for messages: "photos.Photos".
  std::int64_t size = 0;                   // Or kUnknownSize.
  std::int64_t classes = kUnknownClasses;  // Unknown: any label from 0 on will do.
  Schema schema;
  std::vector<std::int64_t> labels;  // One a sample, or empty: then only reading tells.
  std::string form;                  // How a sample's fields are put together, as SourceReader.form in JSON; or empty.

  bool operator==(const SourceFacts&) const = default;
};

// The schema in which images may have any size, as they do where a transform makes them one size.
Schema with_any_size(const Schema& schema);
// Error{invalid_argument} for what no source has: a negative size, no fields, images of 2 channels, labels outside the
// classes or without a field for them.
void check(const SourceFacts& facts);
// Of images and labels the same in every version: states of loaders hold it.
std::uint64_t fingerprint_of(const SourceFacts& facts);
// What such a source tells of itself.
SourceInfo info_of(const SourceFacts& facts);
std::string sample_name_of(const SourceFacts& facts, std::int64_t index);  // "photos.Photos[137]"

// The classes of a source's samples, where its schema has such a field: those it told, or those that reading has shown
// so far. 8 bytes a sample; of a source of unknown size none is kept. Thread-safe.
class KnownLabels {
 public:
  explicit KnownLabels(const SourceFacts& facts);
  // -1: not known yet, or there are none.
  std::int64_t at(std::int64_t index) const;
  // That `sample` is what reading `index` gave. Error{corrupt_data} when the source told another label.
  void note(const SourceFacts& facts, std::int64_t index, const Sample& sample);

 private:
  std::optional<std::size_t> field_;
  std::unique_ptr<std::atomic<std::int64_t>[]> labels_;
};

}  // namespace headrace
