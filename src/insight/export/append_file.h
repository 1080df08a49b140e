// A log that grows by whole records.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/base/descriptor.h"

namespace headrace {

// Records are collected in memory and go to the file in one write() of 64 KiB, or at flush(). A process that is killed
// loses the collected ones, and at most the last record that it was writing is cut. For one thread at a time.
//
// Where a write fails (disk full), the file is cut back to its last whole record, what was collected is lost, and
// Error{io} names the file and the system's reason; the next flush() tries again. lost_bytes() counts.
class AppendFile {
 public:
  // Makes a new file; Error{io} where there is one already.
  static AppendFile create(const std::filesystem::path& path);
  // Goes on in a file of lines, or makes it; what follows its last line end is cut off: a killed process left it. A
  // file that does not begin with `begin`, as far as it goes, is somebody else's and stays as it is:
  // Error{corrupt_data}. Error{io}: it cannot be opened, or has another writer.
  static AppendFile continue_lines(const std::filesystem::path& path, std::string_view begin);

  AppendFile(AppendFile&&) noexcept = default;
  AppendFile& operator=(AppendFile&&) = delete;
  ~AppendFile();  // Flushes; what fails then is lost.

  void add(std::string_view record);
  void flush();  // To the kernel: what was flushed survives the process.
  void sync();   // To the disk: flush() and fdatasync.

  const std::filesystem::path& path() const noexcept { return path_; }
  std::int64_t size() const noexcept { return size_; }  // Of the file: what was flushed.
  std::int64_t lost_bytes() const noexcept { return lost_bytes_; }

 private:
  AppendFile(const std::filesystem::path& path, Descriptor descriptor, std::int64_t size);
  int write_pending() noexcept;  // 0, or the error number.

  std::filesystem::path path_;
  Descriptor descriptor_;
  std::int64_t size_;
  std::int64_t lost_bytes_ = 0;
  std::string pending_;
};

}  // namespace headrace
