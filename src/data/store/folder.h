// What lies in a folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace headrace {

struct FolderEntry {
  enum class Kind { file, folder, dangling_link, other };
  std::string name;  // As the system has it: any bytes but '/' and NUL.
  Kind kind;
  std::int64_t size;     // Bytes, of a file.
  std::uint64_t device;  // With the inode: the same folder by another name is told by them.
  std::uint64_t inode;
};

// All entries but "." and "..", in Python's order of their names; links are followed. Each entry is examined, which
// costs 1.1 us where a name alone costs 0.2 (100,000 files on ext4): only so is a file's size known.
// Errors name the folder or the entry: not_found, io.
std::vector<FolderEntry> list_folder(const std::filesystem::path& folder);

}  // namespace headrace
