#include "insight/export/append_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <string>

#include "core/base/error_of.h"
#include "core/base/files.h"
#include "core/base/temporary_folder.h"

namespace headrace {
namespace {

using testing::HasSubstr;

class AppendFileTest : public testing::Test {
 protected:
  std::string content() const { return read_file(path_, 1 << 24); }

  const TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "log";
};

TEST_F(AppendFileTest, RecordsReachTheFileAtFlushOrByTheLot) {
  AppendFile file = AppendFile::create(path_);
  file.add("one\n");
  EXPECT_EQ(content(), "");
  file.flush();
  EXPECT_EQ(content(), "one\n");
  const std::string record(1000, 'x');
  for (int i = 0; i < 100; ++i) file.add(record);
  EXPECT_GT(content().size(), 64'000U);
  EXPECT_EQ((content().size() - 4) % 1000, 0U);
  file.sync();
  EXPECT_EQ(content().size(), 100'004U);
  EXPECT_EQ(file.size(), 100'004);
}

TEST_F(AppendFileTest, ItsEndFlushes) {
  AppendFile::create(path_).add("last\n");
  EXPECT_EQ(content(), "last\n");
}

TEST_F(AppendFileTest, ANewFileIsNewAndALogHasOneWriter) {
  const AppendFile file = AppendFile::create(path_);
  EXPECT_THAT(error_of(ErrorCode::io, [&] { AppendFile::create(path_); }), HasSubstr(path_.string()));
  const AppendFile log = AppendFile::continue_lines(folder_.path() / "lines", "");
  EXPECT_THAT(error_of(ErrorCode::io, [&] { AppendFile::continue_lines(folder_.path() / "lines", ""); }),
              HasSubstr("has another writer"));
}

TEST_F(AppendFileTest, ACutLastLineIsTakenOff) {
  const std::string lines = std::string(5000, 'a') + "\n" + std::string(9000, 'b') + "\n";
  for (const std::size_t cut : {0U, 1U, 10'000U}) {
    write_file(path_, lines + std::string(cut, 'c'));
    AppendFile::continue_lines(path_, "aaa").add("next\n");
    EXPECT_EQ(content(), lines + "next\n") << cut;
  }
  write_file(path_, "head");
  AppendFile::continue_lines(path_, "header\n").add("first\n");
  EXPECT_EQ(content(), "first\n");
}

TEST_F(AppendFileTest, AnotherFileStaysAsItIs) {
  for (const char* const other : {"letter", "headline\n", "h\n"}) {
    write_file(path_, other);
    EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { AppendFile::continue_lines(path_, "header\n"); }),
                HasSubstr("wanted a log that begins with header"));
    EXPECT_EQ(content(), other);
  }
}

TEST_F(AppendFileTest, AFullDiskLosesWholeRecordsAndIsNamed) {
  // RLIMIT_FSIZE stands for the full disk: a write beyond it fails after what still fits.
  AppendFile file = AppendFile::create(path_);
  file.add("kept\n");
  file.flush();
  const auto before = ::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{1000, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  file.add(std::string(2000, 'x') + "\n");
  const std::string message = error_of(ErrorCode::io, [&] { file.flush(); });
  ::setrlimit(RLIMIT_FSIZE, &old);
  ::signal(SIGXFSZ, before);
  EXPECT_THAT(message, HasSubstr(path_.string()));
  EXPECT_EQ(content(), "kept\n");
  EXPECT_EQ(file.lost_bytes(), 2001);
  file.add("later\n");
  file.flush();
  EXPECT_EQ(content(), "kept\nlater\n");
}

}  // namespace
}  // namespace headrace
