// What of files lies in the system's page cache, for benches that read them cold and warm.
#pragma once

#include <cstdint>
#include <filesystem>

namespace headrace {

// Takes the file's pages out of the page cache, which needs no privilege. Those that wait to be written stay: call
// ::sync() once before. A file system may ignore it, as one in memory does; pages_in_cache() tells. What it keeps of a
// folder's entries and of the file's inode stays, and so may a disk's own cache. Error{io} names the file.
void drop_from_page_cache(const std::filesystem::path& path);

struct CachedPages {
  std::int64_t cached = 0, pages = 0;  // 0 of 0: the file is empty.

  void add(const CachedPages& other) noexcept {
    cached += other.cached;
    pages += other.pages;
  }
  double share() const noexcept { return pages == 0 ? 0 : static_cast<double>(cached) / static_cast<double>(pages); }
};

// How many of the file's pages lie there, by mincore(), which tells the truth to the file's owner and to who may write
// it, and "all" to others. Reads nothing. Error{io} names the file.
CachedPages pages_in_cache(const std::filesystem::path& path);

}  // namespace headrace
