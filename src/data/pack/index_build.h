// Makes the entropy index of a whole data set at once, for `headrace pack --index`.
#pragma once

#include <headrace/source.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace headrace {

struct IndexSummary {
  std::int64_t images = 0;
  std::int64_t indexed = 0;
  std::int64_t known = 0;        // Of them, those that the file held already.
  std::int64_t plain = 0;        // PNG, progressive or damaged ones, which no index is used for.
  std::int64_t unreadable = 0;   // Left out.
  std::string first_unreadable;  // The Error's message of one of them.
  std::int64_t data_bytes = 0;   // Read.
  std::int64_t index_bytes = 0;  // Of the file.
};

// Reads every sample with `threads` threads, one of them the caller's, and replaces source.info().index_file by one
// that holds exactly these images; what the old one knows is taken from it. `go_on` is asked by the caller's thread
// before the first image and after each of its own, with the number of those done by all. nullopt: it said no, and
// nothing was changed. Error{invalid_argument}: the source has no place for an index. Error{io}: it cannot be written,
// or another process writes it.
std::optional<IndexSummary> build_entropy_index(const Source& source, std::int64_t threads,
                                                const std::function<bool(std::int64_t done)>& go_on);

}  // namespace headrace
