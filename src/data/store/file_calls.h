// The system's calls that reading files is made of, so that a test can put slow, short and failing ones in their place.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace headrace {

// A read that fails by what may pass (EIO, ETIMEDOUT, ECONNRESET, ESTALE, EAGAIN, EINTR: disks, network file systems)
// is done anew, from opening the file on, this often in all, after 10 and 40 ms; all of it within this many seconds. A
// single call cannot be given up while the system is at it: a mount's own time-out ends that. So many calls in a row
// that are interrupted before a byte came are taken for a failure.
constexpr int kReadTries = 3;
constexpr std::int64_t kReadSecondsMax = 60;
constexpr int kInterruptionsMax = 1000;

// Return values and errno are those of the calls they stand for. Thread-safe, and so must be what stands in its place.
class FileCalls {
 public:
  virtual ~FileCalls() = default;
  virtual int open_at(int folder, const char* name, int flags) const;
  virtual int status(int file, struct stat& status) const;
  virtual ssize_t read_at(int file, void* target, std::size_t size, off_t at) const;
  virtual void pause(std::chrono::milliseconds duration) const;
  virtual std::chrono::steady_clock::time_point now() const;

  static const FileCalls& system();
};

}  // namespace headrace
