#include "data/store/file_calls.h"

#include <fcntl.h>
#include <unistd.h>

#include <thread>

namespace headrace {

int FileCalls::open_at(int folder, const char* name, int flags) const {
  return ::openat(folder, name, flags);
}
int FileCalls::status(int file, struct stat& status) const {
  return ::fstat(file, &status);
}
ssize_t FileCalls::read_at(int file, void* target, std::size_t size, off_t at) const {
  return ::pread(file, target, size, at);
}
void FileCalls::pause(std::chrono::milliseconds duration) const {
  std::this_thread::sleep_for(duration);
}
std::chrono::steady_clock::time_point FileCalls::now() const {
  return std::chrono::steady_clock::now();
}

const FileCalls& FileCalls::system() {
  static const FileCalls calls;
  return calls;
}

}  // namespace headrace
