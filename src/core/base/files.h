// Files read within bounds and written so that a killed process leaves nothing that looks whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace headrace {

// The whole file. Errors name the path: not_found, io (with the system's words), out_of_memory when it is larger than
// `bytes_max` (with both numbers).
std::string read_file(const std::filesystem::path& path, std::int64_t bytes_max);

// Writes to a temporary file (".<process>-<serial>.headrace-tmp") beside `path`, fsyncs it, renames it to `path`,
// fsyncs the folder. On failure `path` is as before, the temporary file is removed and Error{io} names `path` and the
// system's reason; only a folder that cannot be fsynced fails after the rename. A killed process leaves the temporary
// file. Mode and symbolic link of an existing `path` stay. A device or pipe is written to directly, never replaced.
// Thread-safe for distinct paths. Fault points (core/base/fault_point.h), in this order: write.begin before the first
// piece, write.middle before each further one, write.sync, write.rename, write.folder before the folder's fsync.
void write_file(const std::filesystem::path& path, std::string_view content);

// The same in pieces: `write` receives an append function and may call it any number of times.
void write_file(const std::filesystem::path& path,
                const std::function<void(const std::function<void(std::span<const std::byte>)>&)>& write);

// The same over a while: a file that grows beside `path` and becomes it when it is whole. Destroyed before commit() it
// is removed. Errors and fault points are write_file's; a device or pipe is refused. For one thread at a time.
class FileWriter {
 public:
  explicit FileWriter(const std::filesystem::path& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void append(std::span<const std::byte> bytes);
  void commit();  // Once, and then nothing else.

 private:
  const std::filesystem::path path_;  // As given, for messages.
  std::filesystem::path target_;      // What a symbolic link at `path_` leads to.
  std::filesystem::path aside_;       // Empty once it is renamed.
  int descriptor_ = -1;
  bool begun_ = false;
};

// Removes what killed writers left in `folder` (not below it); returns how many files. For whoever knows that nobody
// else writes there now: the holder of the folder's lock. Error{io} names the file.
std::int64_t remove_leftovers(const std::filesystem::path& folder);

// An exclusive flock on `path`, held until destruction; freed by the kernel when the process dies, however it dies.
class FileLock {
 public:
  // Error{io} when another process holds it ("... is in use by process N"), or when it cannot be made.
  explicit FileLock(const std::filesystem::path& path);
  ~FileLock();
  FileLock(FileLock&& other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = -1; }
  FileLock& operator=(FileLock&&) = delete;

 private:
  int descriptor_ = -1;
};

// The system's words for an errno value, thread-safe: "No space left on device".
std::string system_message(int error_number);

}  // namespace headrace
