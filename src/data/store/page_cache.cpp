#include "data/store/page_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <vector>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "data/store/descriptor.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const char* what, const fs::path& path, int error_number) {
  fail(ErrorCode::io, "store: cannot {} {}: {}", what, path.string(), system_message(error_number));
}

Descriptor open_to_read(const fs::path& path) {
  Descriptor file{::open(path.c_str(), kOpenToRead)};
  if (file.number() < 0) refuse("open", path, errno);
  return file;
}

}  // namespace

void drop_from_page_cache(const fs::path& path) {
  const Descriptor file = open_to_read(path);
  const int error_number = ::posix_fadvise(file.number(), 0, 0, POSIX_FADV_DONTNEED);
  if (error_number != 0) refuse("drop from the page cache", path, error_number);
}

CachedPages pages_in_cache(const fs::path& path) {
  const Descriptor file = open_to_read(path);
  struct stat status {};
  if (::fstat(file.number(), &status) != 0) refuse("examine", path, errno);
  if (status.st_size == 0) return {};
  const auto bytes = static_cast<std::size_t>(status.st_size);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const memory = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.number(), 0);
  if (memory == MAP_FAILED) refuse("map", path, errno);
  std::vector<unsigned char> resident((bytes + page - 1) / page);
  const int error_number = ::mincore(memory, bytes, resident.data()) == 0 ? 0 : errno;
  ::munmap(memory, bytes);
  if (error_number != 0) refuse("find the cached pages of", path, error_number);
  return {std::count_if(resident.begin(), resident.end(), [](unsigned char found) { return (found & 1) != 0; }),
          std::ssize(resident)};
}

}  // namespace headrace
