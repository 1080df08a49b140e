// Reading at a place of a file, and what can go wrong with it.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace::detail {

// Fills `target` from byte `at` on. 0, or the errno of the failure; ENODATA: the file ends before.
inline int read_at(int descriptor, std::uint64_t at, std::span<std::byte> target) {
  while (!target.empty()) {
    const ssize_t count = ::pread(descriptor, target.data(), target.size(), static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    if (count == 0) return ENODATA;
    target = target.subspan(static_cast<std::size_t>(count));
    at += static_cast<std::uint64_t>(count);
  }
  return 0;
}

}  // namespace headrace::detail
