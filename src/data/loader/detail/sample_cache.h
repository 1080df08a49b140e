// Samples kept in memory, all of a loader's in one form.
#pragma once

#include <headrace/source.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "data/store/ram_cache.h"

namespace headrace::detail {

// Of a sample the image has an entry, and with it, where there are others than its label, the other fields have one.
// Thread-safe.
struct SampleCache {
  // `samples_with_rest`: those whose other fields have entries; 0: none.
  SampleCache(Cache samples_form, std::int64_t image_keys, std::int64_t samples_with_rest, std::int64_t bytes_max)
      : form(samples_form), rest_from(image_keys), entries(image_keys + samples_with_rest, bytes_max) {}

  const Cache form;  // Of the images. Cache::decoded: ImageMaker's entries; Cache::encoded: those of keep_file().
  const std::int64_t rest_from;  // The key of the first sample's other fields, as FieldBytes writes them.
  RamCache entries;
};

// Offers an encoded image, as it was read, to the cache. Whether it is kept now.
inline bool keep_file(RamCache& cache, std::int64_t index, const Payload& image) {
  const std::int64_t bytes = std::ssize(image.bytes);
  return cache.admit(index,
                     {{reinterpret_cast<const std::uint8_t*>(&bytes), sizeof bytes}, image.bytes, image.entropy_index});
}

// Valid as long as the cache.
inline std::optional<Payload> find_file(const RamCache& cache, std::int64_t index) {
  const auto entry = cache.find(index);
  if (!entry) return std::nullopt;
  std::int64_t bytes = 0;
  std::memcpy(&bytes, entry->data(), sizeof bytes);
  const auto rest = entry->subspan(sizeof bytes);
  const auto file = static_cast<std::size_t>(bytes);
  return Payload::of_file(rest.first(file), rest.subspan(file));
}

}  // namespace headrace::detail
