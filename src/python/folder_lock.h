// The lock of a folder of checkpoints.
#pragma once

#include <filesystem>
#include <optional>

#include "core/base/files.h"

namespace headrace::python {

// <folder>/lock, held for its life, as `headrace train` holds that of its run's folder. Processes that Python forks
// meanwhile do not hold it: a DataLoader's workers may outlive fit(), or a killed run, and would keep the folder
// locked. Everything here runs under the GIL.
class FolderLock {
 public:
  // Removes what killed writers left in the folder. Error{io} where somebody holds it, also in this process.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::optional<FileLock> lock_;  // Empty in a forked process.
};

}  // namespace headrace::python
