// Compiled into every test program: what headrace keeps in the user's cache folder goes to one of the program's own.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace {

class OwnCache : public testing::Environment {
 public:
  void SetUp() override {
    std::string folder = (std::filesystem::temp_directory_path() / "headrace-test-cache-XXXXXX").string();
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    ASSERT_EQ(::setenv("XDG_CACHE_HOME", folder_.c_str(), 1), 0);
  }
  void TearDown() override {
    std::error_code ignored;  // It lies among temporary files.
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }

 private:
  std::filesystem::path folder_;
};

[[maybe_unused]] const testing::Environment* const kOwnCache = testing::AddGlobalTestEnvironment(new OwnCache);

}  // namespace
