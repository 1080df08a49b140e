// For tests: a folder in which the files of /proc, /sys and /etc are those that a test has put there.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/base/temporary_folder.h"

namespace headrace {

class FakeRoot : public testing::Test {
 protected:
  // `path` begins with a slash.
  void put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  const TemporaryFolder temporary_;
  const std::string root_ = temporary_.path();
};

}  // namespace headrace
