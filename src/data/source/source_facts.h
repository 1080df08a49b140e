// What a source of a user's own tells about itself before it is read.
#pragma once

#include <headrace/field.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace headrace {

struct SourceFacts {
  static constexpr std::int64_t kUnknownClasses = std::numeric_limits<std::int64_t>::max();

  std::string name;  // Of the source, for messages: "photos.Photos".
  std::int64_t size = 0;
  std::int64_t classes = kUnknownClasses;  // Unknown: any label from 0 on will do.
  Schema schema;                           // Has an image.
  std::vector<std::int64_t> labels;        // One a sample, or empty: then only reading tells.

  // As Source::height() to channels().
  int height() const { return side(0); }
  int width() const { return side(1); }
  int channels() const { return side(2); }
  bool operator==(const SourceFacts&) const = default;

 private:
  int side(std::size_t axis) const;
};

// Schema::image_and_labels() of what the source `name` says. Error{invalid_argument} for images that no source has: one
// side only, 2 channels.
Schema schema_of_images(const std::string& name, std::int64_t height, std::int64_t width, std::int64_t channels);
// Error{invalid_argument} for other numbers that no source has: a negative size, labels outside the classes.
void check(const SourceFacts& facts);
// Of images and labels the same in every version: states of loaders hold it.
std::uint64_t fingerprint_of(const SourceFacts& facts);
std::string sample_name_of(const SourceFacts& facts, std::int64_t index);  // "photos.Photos[137]"

// The labels of a source: those it told, or those that reading has shown so far. 8 bytes a sample. Thread-safe.
class KnownLabels {
 public:
  explicit KnownLabels(const SourceFacts& facts);
  // -1: not known yet.
  std::int64_t at(std::int64_t index) const;
  // That sample `index` was read with `label`. Error{corrupt_data} when the source told another one.
  void note(const SourceFacts& facts, std::int64_t index, std::int64_t label);

 private:
  std::unique_ptr<std::atomic<std::int64_t>[]> labels_;
};

}  // namespace headrace
