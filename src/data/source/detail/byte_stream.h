// A file read front to back, inflated on the way when it is gzip.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace headrace::detail {

// What the bytes are is told by their first two, not by the name: people rename downloads. Not thread-safe.
// Errors name the file: not_found, io (not a regular file, unreadable, with the system's words), corrupt_data (gzip
// that is truncated, damaged, or followed by something else).
class ByteStream {
 public:
  explicit ByteStream(const std::filesystem::path& path);
  ~ByteStream();
  ByteStream(ByteStream&&) noexcept;

  // Fills `target` as far as the file reaches; fewer bytes than asked for only at the end. Never inflates more than
  // asked for. At the end of a gzip file its checksum is verified and what follows it is refused.
  std::size_t read(std::span<std::uint8_t> target);

  bool is_gzip() const;
  std::uint64_t stored_size() const;  // Of the file as it lies on disk.
  // No file of this size can hold more: deflate does not compress beyond 1032 to 1.
  std::uint64_t size_max() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace::detail
