// A folder for one test, gone with it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/base/temporary_folder.h"

namespace headrace {

class ScratchFolder : public testing::Test {
 protected:
  ScratchFolder() {
    std::filesystem::permissions(folder_, std::filesystem::perms::all);  // Unprivileged must get to what lies in it.
  }

  // Folders on the way are made.
  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << bytes;
    EXPECT_TRUE(file.good()) << path;
    return path;
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

// root may read what permissions forbid; while this lives the process is nobody instead.
class Unprivileged {
 public:
  Unprivileged() : was_(geteuid()) {
    constexpr uid_t kNobody = 65534;
    if (was_ == 0) {
      EXPECT_EQ(seteuid(kNobody), 0);
    }
  }
  ~Unprivileged() {
    if (was_ == 0) {
      EXPECT_EQ(seteuid(0), 0);
    }
  }
  Unprivileged(const Unprivileged&) = delete;
  Unprivileged& operator=(const Unprivileged&) = delete;

 private:
  uid_t was_;
};

}  // namespace headrace
