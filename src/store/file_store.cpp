#include "store/file_store.h"

#include <headrace/error.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "base/files.h"
#include "store/file_name.h"

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

// Fills `target` as far as the file reaches: the number of bytes, or -1 and errno.
std::int64_t read_front(int descriptor, std::span<std::uint8_t> target) {
  std::size_t done = 0;
  while (done < target.size()) {
    const ssize_t count = ::pread(descriptor, target.data() + done, target.size() - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return -1;
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  return static_cast<std::int64_t>(done);
}

}  // namespace

FileStore::FileStore(std::filesystem::path root) : root_(std::move(root)), folder_(open_folder(root_)) {}

std::string FileStore::path_of(std::string_view name) const {
  return printable_name((root_ / name).native());
}

std::span<const std::uint8_t> FileStore::read(const char* name, std::int64_t size,
                                              std::vector<std::uint8_t>& buffer) const {
  const Descriptor file{::openat(folder_.number(), name, kOpenToRead)};
  if (file.number() < 0) {
    const int reason = errno;
    fail(reason == ENOENT ? ErrorCode::not_found : ErrorCode::io, "store: cannot open {}: {}", path_of(name),
         system_message(reason));
  }
  struct stat status {};
  if (::fstat(file.number(), &status) != 0) {
    const int reason = errno;
    fail(ErrorCode::io, "store: cannot examine {}: {}", path_of(name), system_message(reason));
  }
  if (!S_ISREG(status.st_mode)) fail(ErrorCode::io, "store: {} is not a regular file", path_of(name));
  if (status.st_size != size) {
    fail(ErrorCode::corrupt_data, "store: {} has {} bytes; it had {} when its folder was listed", path_of(name),
         status.st_size, size);
  }
  if (size == 0) fail(ErrorCode::corrupt_data, "store: {} is empty", path_of(name));
  if (size > kFileBytesMax) {
    fail(ErrorCode::unsupported, "store: {} has {} bytes; at most {} are read", path_of(name), size, kFileBytesMax);
  }
  const auto bytes = static_cast<std::size_t>(size);
  if (buffer.size() <= bytes) buffer.resize(bytes + 1);  // One more than promised shows that there is more.
  const std::int64_t got = read_front(file.number(), std::span{buffer}.first(bytes + 1));
  if (got < 0) {
    const int reason = errno;
    fail(ErrorCode::io, "store: cannot read {}: {}", path_of(name), system_message(reason));
  }
  if (got < size) {
    fail(ErrorCode::corrupt_data, "store: {} shrank from {} to {} bytes while it was read", path_of(name), size, got);
  }
  if (got > size)
    fail(ErrorCode::corrupt_data, "store: {} grew beyond {} bytes while it was read", path_of(name), size);
  return std::span{buffer}.first(bytes);
}

}  // namespace headrace
