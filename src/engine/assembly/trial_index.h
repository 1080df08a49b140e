// The entropy index of a folder's images, made for trials alone: in the temporary folder, not beside the data.
#pragma once

#include <headrace/source.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "core/base/temporary_folder.h"

namespace headrace {

// Of a source that has a place for an index. Files that were made here go with it.
class TrialIndex {
 public:
  // Reads every image with `threads` threads. Null: `go_on` said no; see build_entropy_index.
  static std::unique_ptr<TrialIndex> make(std::shared_ptr<const Source> source, std::int64_t threads,
                                          const std::function<bool(std::int64_t done)>& go_on);
  // With the `file` that another process has made, and keeps as long as this is used.
  TrialIndex(std::shared_ptr<const Source> source, std::filesystem::path file);

  // The same samples, with this index.
  const std::shared_ptr<const Source>& source() const { return indexed_; }

 private:
  explicit TrialIndex(std::shared_ptr<const Source> source);

  std::optional<TemporaryFolder> folder_;  // None: another process has it.
  std::shared_ptr<const Source> indexed_;
};

// Whether an index could be written to where the source has a place for it.
bool can_write_index(const Source& source);

}  // namespace headrace
