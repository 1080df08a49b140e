// The entropy indices of a source's JPEG files: those in the file beside them (Source::index_file), and those that come
// into it.
//
// An image's index is found by the XXH3 of its file's whole content, so one of another image, or of an earlier
// content of the same file, is never taken for its own, wherever the files were copied to (docs/decisions/0009).
#pragma once

#include <headrace/error.h>
#include <headrace/options/data.h>
#include <headrace/source.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/files.h"
#include "data/store/record_file.h"
#include "media/codec/entropy_index.h"

namespace headrace::detail {

// An index being written in place of the one at `path`; nobody else writes it meanwhile. Its folder is made, and what
// killed writers left there is removed. Error{io}: another process writes it, or it cannot be written.
class IndexWriting {
 public:
  explicit IndexWriting(const std::filesystem::path& path);
  RecordFileWriter& file() { return file_; }

 private:
  FileLock lock_;
  RecordFileWriter file_;
};

// Null: there is none. Errors as RecordFile's.
std::unique_ptr<RecordFile> open_index(const std::filesystem::path& path, std::int64_t samples);

std::uint64_t index_key(std::span<const std::uint8_t> file);

// Thread-safe, but for finish_epoch().
class EntropyIndexCache {
 public:
  // What a worker needs, kept from image to image.
  struct Scratch {
    codec::EntropyIndexer indexer;
    codec::EntropyIndex index;
    std::vector<std::uint8_t> record;
  };
  struct Counts {
    std::int64_t hits = 0, misses = 0, refused = 0;
  };

  // Files that cannot be used or written are no failure: applied() tells.
  EntropyIndexCache(const Source& source, IndexUse wanted);

  // Of an encoded image that can be opened; valid until the next call with the same scratch. Null: there
  // is none. The one that comes with the image is first. Costs about 10 us, and where one is made that takes as long as
  // decoding the crop. Allocates nothing in the steady state.
  const codec::EntropyIndex* find(const Payload& image, Scratch& scratch);
  // What became of an index that find() gave.
  void note_decoded(bool refused) noexcept { (refused ? refused_ : hits_).fetch_add(1, std::memory_order_relaxed); }

  // After a whole epoch: writes what was made, and uses it from then on. No find() may run meanwhile.
  void finish_epoch();

  Applied applied() const;
  bool has_index() const;  // Of its own, or is making one; what comes with samples is not counted.
  Counts counts() const noexcept;

 private:
  bool look_up(std::uint64_t key, Scratch& scratch);
  bool parse(std::span<const std::uint8_t> record, Scratch& scratch);
  const codec::EntropyIndex* make(std::uint64_t key, std::span<const std::uint8_t> file, Scratch& scratch);
  void stop_building(std::string why);

  const std::filesystem::path path_;
  const std::int64_t samples_;
  const IndexUse wanted_;
  std::unique_ptr<RecordFile> file_;   // Null: none is used. Changes in finish_epoch() alone.
  std::atomic<bool> building_{false};  // To save the lock when it is over.
  std::atomic<std::int64_t> hits_{0}, misses_{0}, refused_{0};

  mutable std::mutex mutex_;               // Guards everything below.
  std::unique_ptr<IndexWriting> writing_;  // While it is being built.
  std::string refusal_;                    // Why it is not used, or not built.
};

}  // namespace headrace::detail
