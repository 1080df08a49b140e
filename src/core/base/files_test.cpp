#include "core/base/files.h"

#include <headrace/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

namespace headrace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span{text.data(), text.size()});
}

// The Error that `call` throws; a failure of the test when it throws none.
Error error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no Error";
  return Error{ErrorCode::internal, ""};
}

class Files : public testing::Test {
 protected:
  Files() {
    std::string name = fs::temp_directory_path() / "headrace-files-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~Files() override { fs::remove_all(folder_); }

  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& entry : fs::directory_iterator(folder_)) out.push_back(entry.path().filename());
    return out;
  }

  fs::path folder_;
};

TEST_F(Files, WhatIsWrittenIsRead) {
  std::string content = "one\ntwo";
  content.push_back('\0');
  content.append(300'000, 'x');
  write_file(folder_ / "a", content);
  EXPECT_EQ(read_file(folder_ / "a", 1 << 20), content);
  write_file(folder_ / "a", "");
  EXPECT_EQ(read_file(folder_ / "a", 0), "");
  EXPECT_THAT(names(), testing::ElementsAre("a"));
}

TEST_F(Files, PiecesMakeTheWhole) {
  write_file(folder_ / "a", [](const auto& append) {
    append(bytes_of("head"));
    append({});
    append(bytes_of("race"));
  });
  EXPECT_EQ(read_file(folder_ / "a", 100), "headrace");
}

TEST_F(Files, ReadingIsBounded) {
  write_file(folder_ / "a", "12345");
  EXPECT_EQ(read_file(folder_ / "a", 5), "12345");
  const Error error = error_of([&] { read_file(folder_ / "a", 4); });
  EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
  EXPECT_EQ(error.what(), "base: " + (folder_ / "a").string() + ": 5 bytes, at most 4 are read");
}

TEST_F(Files, ReadingIsBoundedWhereTheSizeIsNotKnown) {
  EXPECT_THAT(read_file("/proc/self/status", 1 << 20), HasSubstr("VmRSS"));
  EXPECT_EQ(error_of([] { read_file("/dev/zero", 100'000); }).code(), ErrorCode::out_of_memory);
}

TEST_F(Files, ReadErrorsNameThePathAndTheReason) {
  const Error missing = error_of([&] { read_file(folder_ / "none", 10); });
  EXPECT_EQ(missing.code(), ErrorCode::not_found);
  EXPECT_EQ(missing.what(), "base: cannot open " + (folder_ / "none").string() + ": No such file or directory");
  const Error is_folder = error_of([&] { read_file(folder_, 10); });
  EXPECT_EQ(is_folder.code(), ErrorCode::io);
  EXPECT_THAT(is_folder.what(), HasSubstr("Is a directory"));
}

TEST_F(Files, FailedWriteKeepsTheOldContentAndLeavesNothing) {
  write_file(folder_ / "a", "old");
  // A file size limit ends the write in the middle, as a full disk does.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 4096;
  const auto old_action = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Error error = error_of([&] { write_file(folder_ / "a", std::string(100'000, 'n')); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_action);
  EXPECT_EQ(error.code(), ErrorCode::io);
  EXPECT_EQ(error.what(), "base: cannot write " + (folder_ / "a").string() + ": File too large");
  EXPECT_EQ(read_file(folder_ / "a", 100), "old");
  EXPECT_THAT(names(), testing::ElementsAre("a"));
}

TEST_F(Files, WriterThatThrowsKeepsTheOldContentAndLeavesNothing) {
  write_file(folder_ / "a", "old");
  const auto half = [](const auto& append) {
    append(bytes_of("ne"));
    throw std::runtime_error("stop");
  };
  EXPECT_THROW(write_file(folder_ / "a", half), std::runtime_error);
  EXPECT_EQ(read_file(folder_ / "a", 100), "old");
  EXPECT_THAT(names(), testing::ElementsAre("a"));
}

TEST_F(Files, FullDiskIsAnErrorInTheSystemsWords) {
  const Error error = error_of([] { write_file("/dev/full", "x"); });
  EXPECT_EQ(error.code(), ErrorCode::io);
  EXPECT_STREQ(error.what(), "base: cannot write /dev/full: No space left on device");
}

TEST_F(Files, DeviceStaysADevice) {
  write_file("/dev/null", "x");
  struct stat status {};
  ASSERT_EQ(::stat("/dev/null", &status), 0);
  EXPECT_TRUE(S_ISCHR(status.st_mode));
}

TEST_F(Files, MissingFolderAndFolderAsTargetAreErrors) {
  const Error missing = error_of([&] { write_file(folder_ / "no" / "a", "x"); });
  EXPECT_EQ(missing.code(), ErrorCode::io);
  EXPECT_EQ(missing.what(), "base: cannot write " + (folder_ / "no" / "a").string() + ": No such file or directory");
  EXPECT_THAT(error_of([&] { write_file(folder_, "x"); }).what(), HasSubstr("Is a directory"));
}

TEST_F(Files, KilledWriterLeavesTheOldContentAndAMarkedFile) {
  write_file(folder_ / "a", "old");
  const pid_t child = ::fork();
  if (child == 0) {
    write_file(folder_ / "a", [](const auto& append) {
      append(bytes_of("half"));
      ::raise(SIGKILL);
    });
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(read_file(folder_ / "a", 100), "old");
  EXPECT_THAT(names(), testing::UnorderedElementsAre("a", testing::EndsWith(".headrace-tmp")));
  write_file(folder_ / "a", "new");
  EXPECT_EQ(read_file(folder_ / "a", 100), "new");
}

TEST_F(Files, LeftoverOfAnEarlierProcessIsNeitherUsedNorTouched) {
  // Process numbers come again: these are the names that this process would choose next.
  const auto leftover = [this](int serial) {
    return folder_ / ("." + std::to_string(::getpid()) + "-" + std::to_string(serial) + ".headrace-tmp");
  };
  for (int serial = 0; serial < 300; ++serial) std::ofstream(leftover(serial)) << "leftover";
  write_file(folder_ / "a", "new");
  EXPECT_EQ(read_file(folder_ / "a", 100), "new");
  EXPECT_EQ(names().size(), 301U);
  for (int serial = 0; serial < 300; ++serial) ASSERT_EQ(read_file(leftover(serial), 100), "leftover");
}

TEST_F(Files, LeftoversAreRemovedWhenAskedForAndNothingElse) {
  write_file(folder_ / "a", "kept");
  std::ofstream(folder_ / ".7-0.headrace-tmp") << "left";
  std::ofstream(folder_ / ".9-12.headrace-tmp") << "over";
  std::ofstream(folder_ / ".hidden") << "kept";
  std::ofstream(folder_ / "x.headrace-tmp") << "kept: we name none like this";
  EXPECT_EQ(remove_leftovers(folder_), 2);
  EXPECT_THAT(names(), testing::UnorderedElementsAre("a", ".hidden", "x.headrace-tmp"));
  EXPECT_EQ(remove_leftovers(folder_), 0);
  EXPECT_EQ(error_of([&] { remove_leftovers(folder_ / "none"); }).code(), ErrorCode::io);
}

TEST_F(Files, LinkAndModeOfTheTargetStay) {
  write_file(folder_ / "real", "old");
  ASSERT_EQ(::chmod((folder_ / "real").c_str(), 0600), 0);
  fs::create_symlink("real", folder_ / "link");
  write_file(folder_ / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(read_file(folder_ / "real", 100), "new");
  EXPECT_EQ(fs::status(folder_ / "real").permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(Files, LongestNameCanBeWritten) {
  const std::string name(255, 'n');
  write_file(folder_ / name, "x");
  EXPECT_EQ(read_file(folder_ / name, 1), "x");
}

TEST_F(Files, ThreadsWriteDistinctFilesAtOnce) {
  std::vector<std::thread> writers;
  for (int i = 0; i < 8; ++i) {
    writers.emplace_back([this, i] { write_file(folder_ / std::to_string(i), std::string(1000, char('a' + i))); });
  }
  for (auto& writer : writers) writer.join();
  EXPECT_EQ(names().size(), 8U);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(read_file(folder_ / std::to_string(i), 1000), std::string(1000, char('a' + i)));
  }
}

TEST_F(Files, LockIsRefusedWhileAnotherProcessHoldsItAndFreedByItsDeath) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const FileLock lock{folder_ / "lock"};
    (void)!::write(ready[1], "x", 1);
    ::pause();
  }
  char letter = 0;
  ASSERT_EQ(::read(ready[0], &letter, 1), 1);
  const Error error = error_of([&] { FileLock{folder_ / "lock"}; });
  EXPECT_EQ(error.code(), ErrorCode::io);
  EXPECT_EQ(error.what(), "base: " + (folder_ / "lock").string() + " is in use by process " + std::to_string(child));
  ::kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_NO_THROW(FileLock{folder_ / "lock"});
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(Files, LockIsRefusedWithinTheProcessAndFollowsAMove) {
  {
    FileLock first{folder_ / "lock"};
    const FileLock moved{std::move(first)};
    EXPECT_THAT(error_of([&] { FileLock{folder_ / "lock"}; }).what(),
                HasSubstr("in use by process " + std::to_string(::getpid())));
  }
  EXPECT_NO_THROW(FileLock{folder_ / "lock"});
}

TEST_F(Files, LockInAMissingFolderIsAnIoError) {
  EXPECT_EQ(error_of([&] { FileLock{folder_ / "no" / "lock"}; }).code(), ErrorCode::io);
}

TEST_F(Files, SystemMessagesAreTheSystemsWords) {
  EXPECT_EQ(system_message(ENOSPC), "No space left on device");
  EXPECT_EQ(system_message(99999), "error 99999");
}

}  // namespace
}  // namespace headrace
