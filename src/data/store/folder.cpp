#include "data/store/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <string_view>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "data/store/file_name.h"

namespace headrace {
namespace {

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

FolderEntry::Kind kind_of(mode_t mode) {
  if (S_ISREG(mode)) return FolderEntry::Kind::file;
  return S_ISDIR(mode) ? FolderEntry::Kind::folder : FolderEntry::Kind::other;
}

// nullopt: it was removed since its name was read.
std::optional<FolderEntry> examine(DIR* folder, const std::filesystem::path& path, const char* name) {
  struct stat status {};
  auto kind = FolderEntry::Kind::dangling_link;
  if (::fstatat(dirfd(folder), name, &status, 0) == 0) {
    kind = kind_of(status.st_mode);
  } else if (errno != ENOENT && errno != ELOOP) {
    const int reason = errno;
    fail(ErrorCode::io, "store: cannot examine {}: {}", printable_name((path / name).native()), system_message(reason));
  } else if (::fstatat(dirfd(folder), name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
    return std::nullopt;
  }
  return FolderEntry{name, kind, status.st_size, status.st_dev, status.st_ino};
}

}  // namespace

std::vector<FolderEntry> list_folder(const std::filesystem::path& path) {
  const std::unique_ptr<DIR, CloseFolder> folder{::opendir(path.c_str())};
  if (folder == nullptr) {
    const int reason = errno;
    fail(reason == ENOENT ? ErrorCode::not_found : ErrorCode::io, "store: cannot list the folder {}: {}",
         printable_name(path.native()), system_message(reason));
  }
  std::vector<FolderEntry> entries;
  for (;;) {
    errno = 0;
    const dirent* next = ::readdir(folder.get());
    if (next == nullptr) break;
    const std::string_view name = next->d_name;
    if (name == "." || name == "..") continue;
    if (auto entry = examine(folder.get(), path, next->d_name)) entries.push_back(std::move(*entry));
  }
  if (errno != 0) {
    const int reason = errno;
    fail(ErrorCode::io, "store: cannot list the folder {}: {}", printable_name(path.native()), system_message(reason));
  }
  std::sort(entries.begin(), entries.end(),
            [](const FolderEntry& left, const FolderEntry& right) { return python_less(left.name, right.name); });
  return entries;
}

}  // namespace headrace
