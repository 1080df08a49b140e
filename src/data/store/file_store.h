// Whole files by name, read into the caller's memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/store/descriptor.h"
#include "data/store/file_calls.h"

namespace headrace {

namespace detail {
class PatientRead;
}

// A file is read by pread, not mapped: one that shrinks under a mapping kills the process. Thread-safe.
class FileStore {
 public:
  // Larger files are refused before anything is allocated: no image is that large.
  static constexpr std::int64_t kFileBytesMax = std::int64_t{1} << 30;

  // Keeps the folder open, so that its files stay in reach when it is renamed. `calls` must live as long as the store.
  // Error{not_found, io}.
  explicit FileStore(std::filesystem::path root, const FileCalls& calls = FileCalls::system());

  // The whole of a file, whose path below the root is `name` and which had `size` bytes when it was listed. `buffer`
  // grows to size + 1 and never shrinks; the bytes lie at its front. Errors name the file:
  //   not_found     there is none any more
  //   io            the system refuses, in its words, after kReadTries where it may pass; or takes kReadSecondsMax; or
  //                 it is not a regular file
  //   corrupt_data  empty; another size than listed, with both numbers; shrank or grew while it was read
  //   unsupported   more than kFileBytesMax, with both numbers
  // A file that was replaced by one of the same size is taken as it is.
  std::span<const std::uint8_t> read(const char* name, std::int64_t size, std::vector<std::uint8_t>& buffer) const;

  // The same of its first `bytes`, of which there are at most `size`, without what lies behind them.
  std::span<const std::uint8_t> read_front(const char* name, std::int64_t size, std::int64_t bytes,
                                           std::vector<std::uint8_t>& buffer) const;

  // The path as text of one line.
  std::string path_of(std::string_view name) const;

 private:
  // What the system refused: "open", "examine", "read"; errno.
  struct Refusal {
    const char* call;
    int reason;
  };

  std::optional<Refusal> try_read(const detail::PatientRead& reading, const char* name, std::int64_t size,
                                  std::int64_t bytes, std::vector<std::uint8_t>& buffer) const;

  std::filesystem::path root_;
  Descriptor folder_;
  const FileCalls* calls_;
};

}  // namespace headrace
