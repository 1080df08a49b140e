// A file descriptor that closes itself.
#pragma once

#include <unistd.h>

#include <utility>

namespace headrace {

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
