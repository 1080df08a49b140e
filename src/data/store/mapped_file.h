// A file's bytes as memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace headrace {

// A regular file, mapped privately: pages are read when they are touched, and what is written to them stays in this
// process. Not to be cut short by anybody meanwhile: touching what is gone is SIGBUS. Safe to read from any thread.
class MappedFile {
 public:
  // Every Error begins with `what`: {not_found}, {io} with the system's words, {corrupt_data} where it is no regular
  // file or empty.
  MappedFile(const std::filesystem::path& path, const std::string& what);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const noexcept { return {static_cast<const char*>(memory_), size_}; }
  std::byte* at(std::size_t place) const noexcept { return static_cast<std::byte*>(memory_) + place; }

 private:
  void* memory_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace headrace
