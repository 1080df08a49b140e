// Packs of a data set: written, verified, and taken apart again, for `headrace pack`.
#pragma once

#include <headrace/source.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/pack/pack_options.h"

namespace headrace {

struct PackPlan {
  std::string source;            // As open_source takes it; its splits are packed in the order train, val, test.
  std::filesystem::path out;     // A file, or with shard_bytes a folder of files 00000.pack, 00001.pack, ...
  std::int64_t shard_bytes = 0;  // A file is ended once it has this many; 0: one file.
  PackForm form = PackForm::stored;
  std::int64_t short_side = 0;  // Of a form other than stored: larger images are resized to it; 0: none is.
  bool append = false;          // To a pack that is whole, whatever its source was: samples whose names it lacks.
  std::int64_t threads = 1;
};

struct PackSummary {
  std::int64_t samples = 0;  // In the pack.
  std::int64_t added = 0;    // Of them, by this call; the others were there already.
  std::int64_t indexed = 0;  // Of the added ones, with an entropy index.
  std::int64_t bytes = 0;    // Of the added samples, without their indices.
  std::int64_t files = 0;
};

// `go_on` is asked between blocks of samples, with the number of samples in the pack and to be; when it says no the
// result is nullopt, and the same call goes on later with what is there.
using PackProgress = std::function<bool(std::int64_t done, std::int64_t samples)>;

// A killed or failed call leaves OUT.partial, with which the same call goes on. Errors as open_source's and
// PackFileWriter's, and a sample that cannot be read, by name: nothing is left out silently.
std::optional<PackSummary> write_pack(const PackPlan& plan, const PackProgress& go_on);
// The same of sources that are open, one a split at most; plan.source is what messages call them. Of other fields than
// images and labels the form must be stored. Error{invalid_argument}: they have different fields, or labels whose
// classes they do not tell.
using SplitSources = std::vector<std::pair<Split, std::shared_ptr<const Source>>>;
std::optional<PackSummary> write_pack(const PackPlan& plan, SplitSources sources, const PackProgress& go_on);

struct PackCheck {
  std::int64_t samples = 0;
  PackForm form = PackForm::stored;
  std::int64_t short_side = 0;
  std::int64_t damaged = 0;    // Samples that cannot be read as they were packed.
  std::int64_t unindexed = 0;  // Sound samples whose entropy index is damaged; they are decoded without.
  std::string first;           // The Error's message of the first damaged one.
};

// Reads everything in the pack. Error: the pack itself cannot be opened (PackFile).
std::optional<PackCheck> verify_pack(const std::filesystem::path& path, const PackProgress& go_on);

// Writes what was packed to the new folder `out`: images as out/SPLIT/NAME, decoded ones as PNG
// files (NAME.png, below a folder of the class where NAME names none), pixels of one channel and one size as IDX files.
// Until it is whole the folder is called OUT.partial. The number of samples, or nullopt. Errors: invalid_argument
// (`out` exists), corrupt_data (a damaged sample, or a name that leads out of the folder), unsupported (pixels of 2 or
// 4 channels), io.
std::optional<std::int64_t> unpack(const std::filesystem::path& path, const std::filesystem::path& out,
                                   const PackProgress& go_on);

}  // namespace headrace
