// A new, empty folder, removed with all that is in it at the end of its object.
#pragma once

#include <filesystem>

namespace headrace {

class TemporaryFolder {
 public:
  // Below `parent`, which is there. Error{io}: it cannot be made.
  explicit TemporaryFolder(const std::filesystem::path& parent = std::filesystem::temp_directory_path());
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace headrace
