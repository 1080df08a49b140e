#include "data/store/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "data/store/descriptor.h"

namespace headrace {

MappedFile::MappedFile(const std::filesystem::path& path, const std::string& what) {
  const Descriptor file(::open(path.c_str(), kOpenToRead));
  if (file.number() < 0) {
    const int reason = errno;
    fail(reason == ENOENT ? ErrorCode::not_found : ErrorCode::io, "{}: cannot be opened: {}", what,
         system_message(reason));
  }
  struct stat status {};
  if (::fstat(file.number(), &status) != 0) fail(ErrorCode::io, "{}: {}", what, system_message(errno));
  if (!S_ISREG(status.st_mode)) fail(ErrorCode::corrupt_data, "{}: is no regular file", what);
  if (status.st_size == 0) fail(ErrorCode::corrupt_data, "{}: is empty", what);
  size_ = static_cast<std::size_t>(status.st_size);
  // Nothing is written as a rule, so no memory is set aside for copies of all pages: a file may be larger than memory.
  void* const memory = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.number(), 0);
  if (memory == MAP_FAILED) fail(ErrorCode::io, "{}: cannot be mapped: {}", what, system_message(errno));
  memory_ = memory;
}

MappedFile::~MappedFile() {
  ::munmap(memory_, size_);
}

}  // namespace headrace
