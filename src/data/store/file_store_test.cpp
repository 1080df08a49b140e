#include "data/store/file_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error_of.h"
#include "core/base/files.h"
#include "data/store/scratch_folder.h"

namespace headrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class FileStoreFolder : public ScratchFolder {
 protected:
  std::string text(const std::string& name, std::int64_t size) {
    const auto bytes = FileStore{folder_}.read(name.c_str(), size, buffer_);
    return {bytes.begin(), bytes.end()};
  }
  std::string refusal(ErrorCode code, const std::string& name, std::int64_t size) {
    std::string message = error_of(code, [&] { text(name, size); });
    EXPECT_THAT(message, HasSubstr((folder_ / name).native()));
    return message;
  }

  std::vector<std::uint8_t> buffer_;
};

TEST_F(FileStoreFolder, ReadsWholeFilesIntoABufferThatOnlyGrows) {
  write("a/b.jpg", "hello");
  write("large", std::string(100'000, 'x'));
  EXPECT_EQ(text("a/b.jpg", 5), "hello");
  EXPECT_EQ(text("large", 100'000), std::string(100'000, 'x'));
  const std::uint8_t* memory = buffer_.data();
  EXPECT_EQ(text("a/b.jpg", 5), "hello");
  EXPECT_EQ(buffer_.data(), memory);
}

TEST_F(FileStoreFolder, TheFrontOfAFileIsReadAlone) {
  write("x", "hello, world");
  const FileStore store{folder_};
  const auto front = [&](std::int64_t bytes) {
    const auto read = store.read_front("x", 12, bytes, buffer_);
    return std::string(read.begin(), read.end());
  };
  EXPECT_EQ(front(5), "hello");
  EXPECT_EQ(front(12), "hello, world");
  write("x", "hello, world!");
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { front(5); }), HasSubstr("13 bytes; it had 12"));
}

TEST_F(FileStoreFolder, ALinkIsFollowedAndAnyNameWorks) {
  write("caf\xe9\n.jpg", "hello");
  std::filesystem::create_symlink("caf\xe9\n.jpg", folder_ / "link");
  EXPECT_EQ(text("link", 5), "hello");
  EXPECT_EQ(text("caf\xe9\n.jpg", 5), "hello");
  EXPECT_EQ(FileStore{folder_}.path_of("caf\xe9\n.jpg"), folder_.string() + "/caf\\xe9\\x0a.jpg");
}

TEST_F(FileStoreFolder, ItsFilesStayInReachWhenTheFolderIsRenamed) {
  write("here/x", "hello");
  const FileStore store{folder_ / "here"};
  std::filesystem::rename(folder_ / "here", folder_ / "there");
  EXPECT_EQ(store.read("x", 5, buffer_).size(), 5U);
}

TEST_F(FileStoreFolder, AFileThatIsNotWhatWasListedIsToldWithBothNumbers) {
  EXPECT_THAT(refusal(ErrorCode::not_found, "none", 5), HasSubstr("No such file"));
  write("x", "hello");
  EXPECT_THAT(refusal(ErrorCode::corrupt_data, "x", 6), HasSubstr("has 5 bytes; it had 6"));
  EXPECT_THAT(refusal(ErrorCode::corrupt_data, "x", 4), HasSubstr("has 5 bytes; it had 4"));
  write("empty", "");
  EXPECT_THAT(refusal(ErrorCode::corrupt_data, "empty", 0), HasSubstr("is empty"));
  EXPECT_THAT(refusal(ErrorCode::corrupt_data, "empty", 7), HasSubstr("has 0 bytes; it had 7"));
}

TEST_F(FileStoreFolder, WhatIsNoReadableFileIsToldInTheSystemsWords) {
  std::filesystem::create_directory(folder_ / "folder");
  EXPECT_THAT(refusal(ErrorCode::io, "folder", 5), HasSubstr("not a regular file"));
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);  // Nobody writes to it: opening must not wait.
  EXPECT_THAT(refusal(ErrorCode::io, "pipe", 5), HasSubstr("not a regular file"));
  std::filesystem::create_symlink("loop", folder_ / "loop");
  EXPECT_THAT(refusal(ErrorCode::io, "loop", 5), HasSubstr("symbolic links"));
  EXPECT_THAT(refusal(ErrorCode::io, std::string(300, 'n'), 5), HasSubstr("File name too long"));
  std::filesystem::permissions(write("closed", "hello"), std::filesystem::perms::none);
  const Unprivileged guard;
  EXPECT_THAT(refusal(ErrorCode::io, "closed", 5), HasSubstr("Permission denied"));
}

TEST_F(FileStoreFolder, AFolderThatIsNoneIsRefused) {
  write("x", "hello");
  EXPECT_THROW(FileStore{folder_ / "x"}, Error);
  EXPECT_THROW(FileStore{folder_ / "none"}, Error);
}

TEST_F(FileStoreFolder, AFileLargerThanAnyImageCostsNoMemory) {
  const auto path = write("huge", "x");
  std::filesystem::resize_file(path, FileStore::kFileBytesMax + 1);  // A hole: nothing is stored.
  EXPECT_THAT(refusal(ErrorCode::unsupported, "huge", FileStore::kFileBytesMax + 1),
              AllOf(HasSubstr("1073741825"), HasSubstr("1073741824")));
  EXPECT_EQ(buffer_.capacity(), 0U);
}

// Reads while another thread cuts the file and makes it longer: whole, or refused, but never half.
TEST_F(FileStoreFolder, AFileThatChangesWhileItIsReadIsWholeOrRefused) {
  constexpr std::int64_t kSize = 4 << 20;
  const auto path = write("x", std::string(kSize, 'x'));
  std::atomic<bool> done = false;
  std::jthread other([&] {
    while (!done) {
      for (const std::int64_t size : {kSize, kSize / 2, kSize, kSize * 2}) {
        std::filesystem::resize_file(path, static_cast<std::uintmax_t>(size));
      }
    }
  });
  int shrank = 0, grew = 0, listed = 0;
  while (shrank == 0 || grew == 0 || listed == 0) {
    try {
      EXPECT_EQ(FileStore{folder_}.read("x", kSize, buffer_).size(), static_cast<std::size_t>(kSize));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
      const std::string message = error.what();
      if (message.find("shrank from") != std::string::npos) ++shrank;
      if (message.find("grew beyond") != std::string::npos) ++grew;
      if (message.find("when its folder was listed") != std::string::npos) ++listed;
    }
  }
  done = true;
}

// ---- Faults of the store ----

// Answers the next calls as told, then as the system does.
class FaultyCalls final : public FileCalls {
 public:
  struct Answer {
    int reason = 0;           // errno of a call that fails; 0: it succeeds.
    std::size_t at_most = 0;  // Bytes of a read; 0: as many as asked for.
    std::function<void()> before{};
  };

  int open_at(int folder, const char* name, int flags) const override {
    ++opened;
    return failed(opens) ? -1 : FileCalls::open_at(folder, name, flags);
  }
  int status(int file, struct stat& status) const override {
    return failed(statuses) ? -1 : FileCalls::status(file, status);
  }
  ssize_t read_at(int file, void* target, std::size_t size, off_t at) const override {
    clock += a_read_takes;
    if (reads.empty()) return FileCalls::read_at(file, target, size, at);
    const std::size_t at_most = reads.front().at_most == 0 ? size : std::min(size, reads.front().at_most);
    return failed(reads) ? -1 : FileCalls::read_at(file, target, at_most, at);
  }
  void pause(std::chrono::milliseconds duration) const override { pauses.push_back(duration); }

  std::chrono::steady_clock::time_point now() const override { return clock; }

  mutable std::chrono::steady_clock::time_point clock;
  std::chrono::seconds a_read_takes{0};
  mutable std::deque<Answer> opens, statuses, reads;
  mutable std::vector<std::chrono::milliseconds> pauses;
  mutable int opened = 0;

 private:
  static bool failed(std::deque<Answer>& answers) {
    if (answers.empty()) return false;
    const Answer answer = answers.front();
    answers.pop_front();
    if (answer.before) answer.before();
    errno = answer.reason;
    return answer.reason != 0;
  }
};

class FileStoreFaults : public FileStoreFolder {
 protected:
  void SetUp() override { write("x", kText); }
  std::string read() {
    const auto bytes = FileStore{folder_, calls_}.read("x", kSize, buffer_);
    return {bytes.begin(), bytes.end()};
  }
  std::string refusal_of(ErrorCode code) {
    std::string message = error_of(code, [this] { read(); });
    EXPECT_THAT(message, HasSubstr((folder_ / "x").native()));
    return message;
  }

  inline static const std::string kText = "all of this, once and in this order";
  inline static const auto kSize = static_cast<std::int64_t>(kText.size());
  FaultyCalls calls_;
};

TEST_F(FileStoreFaults, ShortAndInterruptedReadsGiveEveryByteOnce) {
  for (const std::size_t at_most : {1, 2, 7, 34}) {
    for (int i = 0; i < 40; ++i) calls_.reads.push_back({.reason = i % 3 == 0 ? EINTR : 0, .at_most = at_most});
    EXPECT_EQ(read(), kText) << at_most;
    calls_.reads.clear();
  }
  EXPECT_THAT(calls_.pauses, testing::IsEmpty());
}

TEST_F(FileStoreFaults, AReadThatFailsOnTheWayIsDoneAnewFromTheFront) {
  for (const int reason : {EIO, ETIMEDOUT, ECONNRESET, ESTALE, EAGAIN}) {
    calls_.opened = 0;
    calls_.reads = {{.at_most = 5}, {.reason = reason}, {.at_most = 11}, {.reason = reason}, {.at_most = 3}};
    EXPECT_EQ(read(), kText) << system_message(reason);
    EXPECT_EQ(calls_.opened, kReadTries);  // A handle that went stale would stay so.
  }
  calls_.opens = {{.reason = ETIMEDOUT}};
  calls_.statuses = {{.reason = EIO}};
  EXPECT_EQ(read(), kText);
}

TEST_F(FileStoreFaults, AReadThatKeepsFailingIsNamedAfterAFewTries) {
  calls_.reads.assign(100, {.reason = EIO});
  EXPECT_THAT(refusal_of(ErrorCode::io), AllOf(HasSubstr("cannot read"), HasSubstr("error, 3 times")));
  EXPECT_EQ(calls_.reads.size(), 97U);
  using std::chrono::milliseconds;
  EXPECT_THAT(calls_.pauses, testing::ElementsAre(milliseconds{10}, milliseconds{40}));
  calls_.opens.assign(100, {.reason = ESTALE});
  EXPECT_THAT(refusal_of(ErrorCode::io), AllOf(HasSubstr("cannot open"), HasSubstr("Stale file handle, 3 times")));
}

TEST_F(FileStoreFaults, AReadThatIsOnlyEverInterruptedEnds) {
  calls_.reads.assign(10'000, {.reason = EINTR});
  EXPECT_THAT(refusal_of(ErrorCode::io), HasSubstr("Interrupted system call"));
}

TEST_F(FileStoreFaults, AFileThatComesTooSlowlyIsNamedWhenItsTimeIsUp) {
  calls_.reads.assign(100, {.at_most = 1});
  calls_.a_read_takes = std::chrono::seconds{1};
  EXPECT_EQ(read(), kText);
  calls_.reads.assign(100, {.at_most = 1});
  calls_.a_read_takes = std::chrono::seconds{2};
  EXPECT_THAT(refusal_of(ErrorCode::io), AllOf(HasSubstr("cannot read"), HasSubstr("not read within 60 s")));
  EXPECT_EQ(calls_.reads.size(), 69U);
  calls_.reads.assign(100, {.reason = ETIMEDOUT});
  calls_.a_read_takes = std::chrono::seconds{40};
  EXPECT_THAT(refusal_of(ErrorCode::io), HasSubstr("Connection timed out, 2 times"));
}

TEST_F(FileStoreFaults, WhatWillNotPassIsNotTriedAgain) {
  for (const int reason : {EACCES, EMFILE, ENOENT}) {
    calls_.opens = {{.reason = reason}};
    EXPECT_THAT(refusal_of(reason == ENOENT ? ErrorCode::not_found : ErrorCode::io),
                testing::EndsWith(system_message(reason)));
  }
  EXPECT_THAT(calls_.pauses, testing::IsEmpty());
}

TEST_F(FileStoreFaults, AFileThatIsCutBetweenTwoReadsIsRefused) {
  calls_.reads = {{.at_most = 5}, {.before = [this] { std::filesystem::resize_file(folder_ / "x", 20); }}};
  EXPECT_THAT(refusal_of(ErrorCode::corrupt_data), HasSubstr("shrank from 35 to 20 bytes while it was read"));
}

}  // namespace
}  // namespace headrace
