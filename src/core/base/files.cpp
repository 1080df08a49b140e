#include "core/base/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "core/base/fail.h"
#include "core/base/fault_point.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAsideSuffix = ".headrace-tmp";

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  // Closing reports what a network file system could not store.
  int close() { return ::close(release()); }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

[[noreturn]] void fail_io(const char* action, const fs::path& path, int error_number) {
  const ErrorCode code = error_number == ENOENT ? ErrorCode::not_found : ErrorCode::io;
  fail(code, "base: cannot {} {}: {}", action, path.string(), system_message(error_number));
}

[[noreturn]] void fail_write(const fs::path& path, int error_number) {
  fail(ErrorCode::io, "base: cannot write {}: {}", path.string(), system_message(error_number));
}

[[noreturn]] void fail_lock(const fs::path& path, int error_number) {
  fail(ErrorCode::io, "base: cannot lock {}: {}", path.string(), system_message(error_number));
}

[[noreturn]] void fail_size(const fs::path& path, std::int64_t bytes, std::int64_t bytes_max) {
  fail(ErrorCode::out_of_memory, "base: {}: {} bytes, at most {} are read", path.string(), bytes, bytes_max);
}

void write_all(int descriptor, std::span<const std::byte> bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      fail_write(path, errno);
    }
  }
}

void sync_folder(const fs::path& folder, const fs::path& target) {
  const Descriptor descriptor{::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  // A folder that may be written but not listed cannot be opened, and some file systems know no fsync of a folder: the
  // file is whole there all the same.
  if (!descriptor.is_open() && errno == EACCES) return;
  if (!descriptor.is_open() || (::fsync(descriptor.number()) != 0 && errno != EINVAL)) fail_write(target, errno);
}

}  // namespace

std::string system_message(int error_number) {
  const char* words = ::strerrordesc_np(error_number);  // Thread-safe and the same in every locale.
  return words != nullptr ? words : fmt::format("error {}", error_number);
}

std::string read_file(const fs::path& path, std::int64_t bytes_max) {
  const Descriptor descriptor{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!descriptor.is_open()) fail_io("open", path, errno);
  struct stat status {};
  if (::fstat(descriptor.number(), &status) != 0) fail_io("read", path, errno);
  if (S_ISREG(status.st_mode) && status.st_size > bytes_max) fail_size(path, status.st_size, bytes_max);

  // A file of /proc says 0 bytes and a file may grow: the end is where read() says so, not where fstat() did.
  constexpr std::size_t kPieceBytes = 64 * 1024;
  std::string content;
  std::size_t size = 0;
  content.resize(static_cast<std::size_t>(status.st_size) + 1);
  while (true) {
    if (size == content.size()) content.resize(size + std::max(size / 2, kPieceBytes));
    const ssize_t count = ::read(descriptor.number(), content.data() + size, content.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_io("read", path, errno);
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
    if (static_cast<std::int64_t>(size) > bytes_max) fail_size(path, static_cast<std::int64_t>(size), bytes_max);
  }
  content.resize(size);
  return content;
}

void write_file(const fs::path& path, std::string_view content) {
  write_file(path, [content](const auto& append) { append(std::as_bytes(std::span{content.data(), content.size()})); });
}

void write_file(const fs::path& path,
                const std::function<void(const std::function<void(std::span<const std::byte>)>&)>& write) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) {
    // A device or pipe must stay what it is: a rename would replace /dev/null by a file.
    Descriptor device{::open(path.c_str(), O_WRONLY | O_CLOEXEC)};
    if (!device.is_open()) fail_write(path, errno);
    write([&](std::span<const std::byte> bytes) { write_all(device.number(), bytes, path); });
    if (device.close() != 0) fail_write(path, errno);
    return;
  }
  FileWriter writer{path};
  write([&writer](std::span<const std::byte> bytes) { writer.append(bytes); });
  writer.commit();
}

FileWriter::FileWriter(const fs::path& path) : path_(path), target_(path) {
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (exists && !S_ISREG(status.st_mode)) fail_write(path, S_ISDIR(status.st_mode) ? EISDIR : EINVAL);
  if (exists) target_ = fs::canonical(path);  // Through a symbolic link the file behind it is replaced, not the link.
  static std::atomic<unsigned> serial{0};
  do {
    // The suffix marks what a killed process left behind; process and serial keep live writers apart.
    aside_ = target_.parent_path() / fmt::format(".{}-{}{}", ::getpid(), serial++, kAsideSuffix);
    descriptor_ = ::open(aside_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) fail_write(path_, errno);
  if (exists && ::fchmod(descriptor_, status.st_mode & 07777) != 0) {
    const int reason = errno;
    ::close(descriptor_);
    ::unlink(aside_.c_str());
    fail_write(path_, reason);
  }
}

FileWriter::~FileWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!aside_.empty()) ::unlink(aside_.c_str());
}

void FileWriter::append(std::span<const std::byte> bytes) {
  fault_point(std::exchange(begun_, true) ? "write.middle" : "write.begin");
  write_all(descriptor_, bytes, path_);
}

void FileWriter::commit() {
  fault_point("write.sync");
  if (::fsync(descriptor_) != 0) fail_write(path_, errno);
  if (::close(std::exchange(descriptor_, -1)) != 0) fail_write(path_, errno);
  fault_point("write.rename");
  if (::rename(aside_.c_str(), target_.c_str()) != 0) fail_write(path_, errno);
  aside_.clear();
  fault_point("write.folder");
  sync_folder(target_.parent_path(), path_);
}

std::int64_t remove_leftovers(const fs::path& folder) {
  std::int64_t removed = 0;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with('.') || !name.ends_with(kAsideSuffix)) continue;
    if (::unlink(entry->path().c_str()) != 0 && errno != ENOENT) fail_io("remove", entry->path(), errno);
    ++removed;
  }
  if (error) fail(ErrorCode::io, "base: cannot list {}: {}", folder.string(), error.message());
  return removed;
}

FileLock::FileLock(const fs::path& path) {
  Descriptor descriptor{::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)};
  if (!descriptor.is_open()) fail_lock(path, errno);
  if (::flock(descriptor.number(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) fail_lock(path, errno);
    char text[32] = {};
    const ssize_t count = ::pread(descriptor.number(), text, sizeof text - 1, 0);
    const long holder = count > 0 ? std::strtol(text, nullptr, 10) : 0;
    if (holder > 0) fail(ErrorCode::io, "base: {} is in use by process {}", path.string(), holder);
    // The holder writes its number right after it has the lock; in between nobody knows it.
    fail(ErrorCode::io, "base: {} is in use by another process", path.string());
  }
  const std::string holder = fmt::format("{}\n", ::getpid());
  if (::ftruncate(descriptor.number(), 0) != 0) fail_lock(path, errno);
  write_all(descriptor.number(), std::as_bytes(std::span{holder.data(), holder.size()}), path);
  descriptor_ = descriptor.release();
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace headrace
