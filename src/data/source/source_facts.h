// What a source of a user's own tells about itself before it is read.
#pragma once

#include <atomic>
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
  int height = 0;                          // As Source::height() to channels().
  int width = 0;
  int channels = 3;
  std::vector<std::int64_t> labels;  // One a sample, or empty: then only reading tells.

  bool operator==(const SourceFacts&) const = default;
};

// Error{invalid_argument} for numbers that no source has: a negative size, labels outside the classes, 2 channels.
void check(const SourceFacts& facts);
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
