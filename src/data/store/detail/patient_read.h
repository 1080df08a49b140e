// Reading from disks and network file systems that are slow, short, failing and reset now and then.
#pragma once

#include <fmt/format.h>
#include <headrace/error.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/base/files.h"
#include "data/store/file_calls.h"

namespace headrace::detail {

// What may pass: disks, network file systems.
inline bool may_pass(int reason) {
  for (const int passing : {EIO, ETIMEDOUT, ECONNRESET, ESTALE, EAGAIN, EINTR}) {
    if (reason == passing) return true;
  }
  return false;
}

// Why reading failed, in words: the system's, or that the time was up.
inline std::string reading_failure(int reason, int tries) {
  std::string words = reason == ETIME ? fmt::format("not read within {} s", kReadSecondsMax) : system_message(reason);
  return tries > 1 ? fmt::format("{}, {} times", words, tries) : words;
}

// One file or sample: as many tries as there may be, and the time they may take together.
class PatientRead {
 public:
  explicit PatientRead(const FileCalls& calls)
      : calls_(calls), end_(calls.now() + std::chrono::seconds{kReadSecondsMax}) {}

  // Whether what failed by `reason` is to be tried anew. Waits for a while before it says so.
  bool again(int reason) {
    if (!may_pass(reason) || tries_ == kReadTries || calls_.now() > end_) return false;
    calls_.pause(pause_);
    pause_ *= 4;
    ++tries_;
    return true;
  }
  int tries() const { return tries_; }

  // Fills `target` from byte `at` on as far as the file reaches: the number of bytes, or -1 and errno; ETIME when bytes
  // come so slowly that the time is up.
  std::int64_t fill(int file, std::uint64_t at, std::span<std::uint8_t> target) const {
    std::size_t done = 0;
    for (int interruptions = 0; done < target.size();) {
      const auto rest = target.subspan(done);
      const ssize_t count = calls_.read_at(file, rest.data(), rest.size(), static_cast<off_t>(at + done));
      if (count == 0) break;
      if (count > 0) {
        done += static_cast<std::size_t>(count);
        interruptions = 0;
      } else if (errno != EINTR || ++interruptions == kInterruptionsMax) {
        return -1;
      }
      if (done < target.size() && calls_.now() > end_) {
        errno = ETIME;
        return -1;
      }
    }
    return static_cast<std::int64_t>(done);
  }

 private:
  const FileCalls& calls_;
  const std::chrono::steady_clock::time_point end_;
  std::chrono::milliseconds pause_{10};
  int tries_ = 1;
};

}  // namespace headrace::detail
