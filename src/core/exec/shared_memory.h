// Memory that another process writes to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/base/descriptor.h"

namespace headrace {

// An anonymous file, mapped here, that a child gets as a descriptor. Its size is sealed, so that nobody who holds the
// descriptor can make a read of ours end in SIGBUS. Whoever holds it can change the bytes at any time: copy first, then
// look. Moving keeps the address.
class SharedMemory {
 public:
  // `size` zero bytes, at least 1. A page costs memory once it is written to. Error{io} when the system refuses.
  SharedMemory(const std::string& name, std::int64_t size);
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  // The first `size` bytes. Error{corrupt_data} when there are not as many: the number came from outside.
  std::span<const std::byte> front(std::int64_t size) const;
  // Gives the pages from `size` on back to the system; they are zero again.
  void release_after(std::int64_t size) const noexcept;
  int descriptor() const { return file_.number(); }

 private:
  Descriptor file_;
  std::span<std::byte> bytes_;
};

}  // namespace headrace
