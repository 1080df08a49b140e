#include "core/exec/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "core/base/fail.h"
#include "core/base/files.h"

namespace headrace {
namespace {

[[noreturn]] void refuse(const char* action, const std::string& name, std::int64_t size, int reason) {
  fail(ErrorCode::io, "exec: cannot {} {} bytes of shared memory for {}: {}", action, size, name,
       system_message(reason));
}

}  // namespace

SharedMemory::SharedMemory(const std::string& name, std::int64_t size)
    : file_(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  if (size < 1) fail(ErrorCode::invalid_argument, "exec: shared memory of {} bytes for {}", size, name);
  if (file_.number() < 0) refuse("make", name, size, errno);
  if (::ftruncate(file_.number(), size) != 0) refuse("reserve", name, size, errno);
  if (::fcntl(file_.number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    refuse("seal", name, size, errno);
  }
  const auto length = static_cast<std::size_t>(size);
  void* start = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file_.number(), 0);
  if (start == MAP_FAILED) refuse("map", name, size, errno);
  bytes_ = {static_cast<std::byte*>(start), length};
}

SharedMemory::~SharedMemory() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : file_(std::move(other.file_)), bytes_(std::exchange(other.bytes_, {})) {}

std::span<const std::byte> SharedMemory::front(std::int64_t size) const {
  if (size < 0 || size > std::ssize(bytes_)) {
    fail(ErrorCode::corrupt_data, "exec: {} bytes of shared memory that has {}", size, bytes_.size());
  }
  return bytes_.first(static_cast<std::size_t>(size));
}

void SharedMemory::release_after(std::int64_t size) const noexcept {
  const auto whole = static_cast<off_t>(bytes_.size());
  if (size >= whole) return;
  // Where the file system does not know it the pages stay, which is what would be without the call.
  static_cast<void>(
      ::fallocate(file_.number(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(size), whole - size));
}

}  // namespace headrace
