// Libraries that open are built and called by tests/own_kernel_test.py.
#include <gtest/gtest.h>
#include <headrace/kernel.h>

#include <filesystem>
#include <string>

#include "core/base/error_of.h"
#include "core/base/files.h"
#include "core/base/temporary_folder.h"

namespace headrace {
namespace {

TEST(Kernel, AFileThatIsNoLibraryHasTheCodeThatPythonsExceptionHas) {
  const TemporaryFolder folder;
  const std::filesystem::path missing = folder.path() / "missing.so", empty = folder.path() / "empty.so";
  write_file(empty, "");
  const auto refused = [](ErrorCode code, const std::filesystem::path& library) {
    return error_of(code, [&] { register_kernel("example::normalise", library); });
  };
  const std::string begin = "kernel: example::normalise: ";
  EXPECT_EQ(refused(ErrorCode::corrupt_data, folder.path()), begin + folder.path().string() + ": is no regular file");
  EXPECT_EQ(refused(ErrorCode::corrupt_data, empty), begin + empty.string() + ": is empty");
  EXPECT_EQ(refused(ErrorCode::not_found, missing),
            begin + missing.string() + ": cannot be opened: No such file or directory");
}

}  // namespace
}  // namespace headrace
