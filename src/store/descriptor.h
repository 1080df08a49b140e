// A file descriptor that closes itself.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace headrace {

// O_NONBLOCK: opening a named pipe must not wait for a writer; on a regular file it changes nothing.
inline constexpr int kOpenToRead = O_RDONLY | O_CLOEXEC | O_NONBLOCK;

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  int number() const { return number_; }  // Negative: none.

 private:
  int number_;
};

}  // namespace headrace
