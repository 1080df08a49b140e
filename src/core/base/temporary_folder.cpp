#include "core/base/temporary_folder.h"

#include <stdlib.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "core/base/fail.h"
#include "core/base/files.h"

namespace headrace {

TemporaryFolder::TemporaryFolder(const std::filesystem::path& parent) {
  std::string pattern = parent / "headrace-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) {
    fail(ErrorCode::io, "base: cannot make a folder in {}: {}", parent.string(), system_message(errno));
  }
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;  // What cannot be removed stays behind, as any temporary file may.
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace headrace
