#include "insight/export/append_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/base/fail.h"
#include "core/base/files.h"

namespace headrace {
namespace {

constexpr std::size_t kPendingBytes = 64 * 1024;

[[noreturn]] void fail_at(const std::filesystem::path& path, const char* what, int error_number) {
  fail(ErrorCode::io, "export: cannot {} {}: {}", what, path.string(), system_message(error_number));
}

Descriptor open_file(const std::filesystem::path& path, int flags) {
  Descriptor descriptor{::open(path.c_str(), flags | O_CREAT | O_CLOEXEC, 0666)};
  if (descriptor.number() < 0) fail_at(path, "open", errno);
  return descriptor;
}

std::string read_at(const std::filesystem::path& path, int descriptor, std::int64_t begin, std::int64_t size) {
  std::string bytes(static_cast<std::size_t>(size), '\0');
  ssize_t got = 0;
  do {
    got = ::pread(descriptor, bytes.data(), bytes.size(), begin);
  } while (got < 0 && errno == EINTR);
  if (got < 0) fail_at(path, "read", errno);
  if (got != size) fail(ErrorCode::io, "export: cannot read {}: it shrinks meanwhile", path.string());
  return bytes;
}

// Where the last line ends: 0 for a file without a line end.
std::int64_t end_of_lines(const std::filesystem::path& path, int descriptor, std::int64_t size) {
  constexpr std::int64_t kPiece = 4096;
  for (std::int64_t end = size; end > 0;) {
    const std::int64_t begin = std::max<std::int64_t>(0, end - kPiece);
    const std::size_t found = read_at(path, descriptor, begin, end - begin).rfind('\n');
    if (found != std::string::npos) return begin + static_cast<std::int64_t>(found) + 1;
    end = begin;
  }
  return 0;
}

}  // namespace

AppendFile::AppendFile(const std::filesystem::path& path, Descriptor descriptor, std::int64_t size)
    : path_(path), descriptor_(std::move(descriptor)), size_(size) {
  pending_.reserve(kPendingBytes * 2);
}

AppendFile AppendFile::create(const std::filesystem::path& path) {
  return {path, open_file(path, O_WRONLY | O_EXCL), 0};
}

AppendFile AppendFile::continue_lines(const std::filesystem::path& path, std::string_view begin) {
  Descriptor descriptor = open_file(path, O_RDWR);
  if (::flock(descriptor.number(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) fail(ErrorCode::io, "export: {} has another writer", path.string());
    fail_at(path, "lock", errno);
  }
  struct stat facts {};
  if (::fstat(descriptor.number(), &facts) != 0) fail_at(path, "read", errno);
  const auto compared = std::min<std::int64_t>(facts.st_size, static_cast<std::int64_t>(begin.size()));
  if (read_at(path, descriptor.number(), 0, compared) != begin.substr(0, static_cast<std::size_t>(compared))) {
    fail(ErrorCode::corrupt_data, "export: {}: wanted a log that begins with {}", path.string(),
         begin.substr(0, begin.find('\n')));
  }
  const std::int64_t size = end_of_lines(path, descriptor.number(), facts.st_size);
  if (::ftruncate(descriptor.number(), size) != 0) fail_at(path, "cut the last line of", errno);
  return {path, std::move(descriptor), size};
}

AppendFile::~AppendFile() {
  if (descriptor_.number() < 0) return;
  write_pending();
  ::flock(descriptor_.number(), LOCK_UN);  // A process forked meanwhile has the file open, and would keep the lock.
}

void AppendFile::add(std::string_view record) {
  pending_.append(record);
  if (pending_.size() >= kPendingBytes) flush();
}

int AppendFile::write_pending() noexcept {
  std::int64_t done = 0;
  const auto wanted = static_cast<std::int64_t>(pending_.size());
  int error_number = 0;
  while (done < wanted && error_number == 0) {
    const ssize_t wrote =
        ::pwrite(descriptor_.number(), pending_.data() + done, static_cast<std::size_t>(wanted - done), size_ + done);
    if (wrote > 0) done += wrote;
    if (wrote == 0) error_number = ENOSPC;
    if (wrote < 0 && errno != EINTR) error_number = errno;
  }
  pending_.clear();
  if (error_number == 0) {
    size_ += wanted;
  } else {
    lost_bytes_ += wanted;
    // Where even this fails a cut record is left, and the next flush writes over it.
    static_cast<void>(::ftruncate(descriptor_.number(), size_) == 0);
  }
  return error_number;
}

void AppendFile::flush() {
  const int error_number = write_pending();
  if (error_number != 0) fail_at(path_, "write", error_number);
}

void AppendFile::sync() {
  flush();
  if (::fdatasync(descriptor_.number()) != 0) fail_at(path_, "sync", errno);
}

}  // namespace headrace
