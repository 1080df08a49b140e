// A pack (data/store/pack_format.h) to read samples from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/store/descriptor.h"
#include "data/store/file_calls.h"
#include "data/store/pack_format.h"

namespace headrace {

// A sample as it is read; valid as long as the buffer it was read into.
struct PackedBytes {
  std::span<const std::uint8_t> bytes;
  std::span<const std::uint8_t> index;
};

// The file is read by pread, not mapped: one that shrinks under a mapping kills the process. In memory are rows and
// names, 64 bytes and the name a sample. Thread-safe.
class PackFile {
 public:
  static constexpr std::uint64_t kTableBytesMax = std::uint64_t{1} << 30;  // About 10 million samples.

  // `calls` read the samples and must live as long as the pack. Errors name the file: not_found, io, corrupt_data (no
  // pack, or not a whole one), unsupported (another format, or a table of more than kTableBytesMax, before memory is
  // taken for it).
  explicit PackFile(std::filesystem::path path, const FileCalls& calls = FileCalls::system());

  std::span<const PackRow> rows() const noexcept { return rows_; }
  std::string_view name(std::size_t sample) const noexcept;
  const std::vector<std::string>& classes() const noexcept { return classes_; }
  const Schema& schema() const noexcept { return schema_; }  // Empty: format 1, images and labels.
  std::uint64_t fingerprint() const noexcept { return fingerprint_; }
  std::uint64_t data_end() const noexcept { return data_end_; }  // Where the table begins.
  const std::filesystem::path& path() const noexcept { return path_; }

  // `buffer` grows to the largest and never shrinks. Error{io, corrupt_data}, naming file and sample, when the system
  // cannot read it, after kReadTries where that may pass, or its bytes are others than were packed; a damaged index is
  // left out.
  PackedBytes read(std::size_t sample, std::vector<std::uint8_t>& buffer) const;

  // Its first `bytes`, of which there are at most the row's size. They are not compared with what was packed: only the
  // whole has a checksum.
  std::span<const std::uint8_t> read_front(std::size_t sample, std::size_t bytes,
                                           std::vector<std::uint8_t>& buffer) const;

  // Rows [first, first + count), at least one, of the pixels of a sample with sound blocks (data/store/row_blocks.h).
  // Reads the blocks that hold them. Errors as read()'s, also for an index that is damaged.
  std::span<const std::uint8_t> read_rows(std::size_t sample, std::uint32_t first, std::uint32_t count,
                                          std::vector<std::uint8_t>& buffer) const;

  // The error of a sample whose bytes are others than were packed.
  [[noreturn]] void fail_as_changed(std::size_t sample) const;

 private:
  void read_at(std::size_t sample, std::uint64_t at, std::span<std::uint8_t> target) const;
  std::string described(std::size_t sample) const;

  std::filesystem::path path_;
  const FileCalls* calls_;
  Descriptor file_;
  std::uint64_t fingerprint_ = 0, data_end_ = 0;
  Schema schema_;
  std::vector<PackRow> rows_;
  std::vector<std::uint64_t> name_at_;  // Where in names_ each begins.
  std::string names_;
  std::vector<std::string> classes_;
};

}  // namespace headrace
