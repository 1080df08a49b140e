// The system's calls that reading files is made of, so that a test can put slow, short and failing ones in their place.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>

namespace headrace {

// Return values and errno are those of the calls they stand for. Thread-safe, and so must be what stands in its place.
class FileCalls {
 public:
  virtual ~FileCalls() = default;
  virtual int open_at(int folder, const char* name, int flags) const;
  virtual int status(int file, struct stat& status) const;
  virtual ssize_t read_at(int file, void* target, std::size_t size, off_t at) const;
  virtual void pause(std::chrono::milliseconds duration) const;

  static const FileCalls& system();
};

}  // namespace headrace
