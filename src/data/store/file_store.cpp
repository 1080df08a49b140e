#include "data/store/file_store.h"

#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/base/scratch.h"
#include "data/store/detail/patient_read.h"
#include "data/store/file_name.h"

namespace headrace {
namespace {

int open_folder(const std::filesystem::path& path) {
  const int number = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (number < 0) {
    const int reason = errno;
    fail(reason == ENOENT ? ErrorCode::not_found : ErrorCode::io, "store: cannot open the folder {}: {}",
         printable_name(path.native()), system_message(reason));
  }
  return number;
}

}  // namespace

FileStore::FileStore(std::filesystem::path root, const FileCalls& calls)
    : root_(std::move(root)), folder_(open_folder(root_)), calls_(&calls) {}

std::string FileStore::path_of(std::string_view name) const {
  return printable_name((root_ / name).native());
}

std::span<const std::uint8_t> FileStore::read(const char* name, std::int64_t size,
                                              std::vector<std::uint8_t>& buffer) const {
  return read_front(name, size, size, buffer);
}

std::span<const std::uint8_t> FileStore::read_front(const char* name, std::int64_t size, std::int64_t bytes,
                                                    std::vector<std::uint8_t>& buffer) const {
  detail::PatientRead reading{*calls_};
  for (;;) {
    const auto refusal = try_read(reading, name, size, bytes, buffer);
    if (!refusal) return std::span{buffer}.first(static_cast<std::size_t>(bytes));
    if (reading.again(refusal->reason)) continue;
    fail(refusal->reason == ENOENT ? ErrorCode::not_found : ErrorCode::io, "store: cannot {} {}: {}", refusal->call,
         path_of(name), detail::reading_failure(refusal->reason, reading.tries()));
  }
}

// Done, or what the system refused; what the file itself is wrong in is thrown.
std::optional<FileStore::Refusal> FileStore::try_read(const detail::PatientRead& reading, const char* name,
                                                      std::int64_t size, std::int64_t bytes,
                                                      std::vector<std::uint8_t>& buffer) const {
  const Descriptor file{calls_->open_at(folder_.number(), name, kOpenToRead)};
  if (file.number() < 0) return Refusal{"open", errno};
  struct stat status {};
  if (calls_->status(file.number(), status) != 0) return Refusal{"examine", errno};
  if (!S_ISREG(status.st_mode)) fail(ErrorCode::io, "store: {} is not a regular file", path_of(name));
  if (status.st_size != size) {
    fail(ErrorCode::corrupt_data, "store: {} has {} bytes; it had {} when its folder was listed", path_of(name),
         status.st_size, size);
  }
  if (size == 0) fail(ErrorCode::corrupt_data, "store: {} is empty", path_of(name));
  if (size > kFileBytesMax) {
    fail(ErrorCode::unsupported, "store: {} has {} bytes; at most {} are read", path_of(name), size, kFileBytesMax);
  }
  // Of a whole file one byte more than promised, which shows that there is more.
  const auto wanted = static_cast<std::size_t>(bytes < size ? bytes : size + 1);
  const std::int64_t got = reading.fill(file.number(), 0, scratch_of(buffer, wanted));
  if (got < 0) return Refusal{"read", errno};
  if (got < bytes) {
    fail(ErrorCode::corrupt_data, "store: {} shrank from {} to {} bytes while it was read", path_of(name), size, got);
  }
  if (got > size)
    fail(ErrorCode::corrupt_data, "store: {} grew beyond {} bytes while it was read", path_of(name), size);
  return std::nullopt;
}

}  // namespace headrace
