#include "data/store/file_store.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <deque>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error_of.h"
#include "core/base/files.h"
#include "core/base/random.h"
#include "data/store/scratch_folder.h"

namespace headrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class FileStoreFolder : public ScratchFolder {
 protected:
  std::string text(const std::string& name, std::int64_t size) { return text_in(name, {.whole_size = size}); }
  std::string text_in(const std::string& name, const ByteRange& range) {
    const auto bytes = FileStore{folder_}.get(name.c_str(), range, buffer_);
    return {bytes.begin(), bytes.end()};
  }
  std::string refusal(ErrorCode code, const std::string& name, std::int64_t size) {
    return refusal_in(code, name, {.whole_size = size});
  }
  std::string refusal_in(ErrorCode code, const std::string& name, const ByteRange& range) {
    std::string message = error_of(code, [&] { text_in(name, range); });
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
  EXPECT_EQ(text_in("x", {.size = 5, .whole_size = 12}), "hello");
  EXPECT_EQ(text_in("x", {.size = 12, .whole_size = 12}), "hello, world");
  write("x", "hello, world!");
  EXPECT_THAT(refusal_in(ErrorCode::corrupt_data, "x", {.size = 5, .whole_size = 12}),
              HasSubstr("13 bytes; it had 12"));
}

TEST_F(FileStoreFolder, ALinkIsFollowedAndAnyNameWorks) {
  write("caf\xe9\n.jpg", "hello");
  std::filesystem::create_symlink("caf\xe9\n.jpg", folder_ / "link");
  EXPECT_EQ(text("link", 5), "hello");
  EXPECT_EQ(text("caf\xe9\n.jpg", 5), "hello");
  EXPECT_EQ(FileStore{folder_}.text_of("caf\xe9\n.jpg"), folder_.string() + "/caf\\xe9\\x0a.jpg");
}

TEST_F(FileStoreFolder, ItsFilesStayInReachWhenTheFolderIsRenamed) {
  write("here/x", "hello");
  const FileStore store{folder_ / "here"};
  std::filesystem::rename(folder_ / "here", folder_ / "there");
  EXPECT_EQ(store.get("x", {.size = 5}, buffer_).size(), 5U);
}

TEST_F(FileStoreFolder, AFileThatIsNotWhatWasListedIsToldWithBothNumbers) {
  EXPECT_THAT(refusal(ErrorCode::not_found, "none", 5), HasSubstr("No such file"));
  write("x", "hello");
  EXPECT_THAT(refusal(ErrorCode::corrupt_data, "x", 6), HasSubstr("has 5 bytes; it had 6"));
  EXPECT_THAT(refusal(ErrorCode::corrupt_data, "x", 4), HasSubstr("has 5 bytes; it had 4"));
  write("empty", "");
  EXPECT_EQ(text("empty", 0), "");
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
  std::filesystem::resize_file(path, FileStore::kBytesMax + 1);  // A hole: nothing is stored.
  EXPECT_THAT(refusal(ErrorCode::unsupported, "huge", FileStore::kBytesMax + 1),
              AllOf(HasSubstr("1073741825"), HasSubstr("1073741824")));
  EXPECT_EQ(buffer_.capacity(), 0U);
}

TEST_F(FileStoreFolder, ARangeOfAFileOfAnySizeIsRead) {
  const auto path = write("archive", "x");
  constexpr std::int64_t kHole = 5 * FileStore::kBytesMax;
  std::filesystem::resize_file(path, kHole);
  std::ofstream(path, std::ios::app) << "hello";
  EXPECT_EQ(text_in("archive", {.offset = kHole + 1, .size = 3}), "ell");
  EXPECT_EQ(text_in("archive", {.offset = kHole}), "hello");
  EXPECT_LE(buffer_.capacity(), 6U);
}

TEST_F(FileStoreFolder, ARangeThatIsNotThereIsToldWithWhatIsAndCostsNoMemory) {
  write("x", "hello");
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  const auto beyond = [&](const ByteRange& range) { return refusal_in(ErrorCode::corrupt_data, "x", range); };
  EXPECT_THAT(beyond({.offset = 4, .size = 2}), HasSubstr("has 5 bytes; wanted 2 bytes from byte 4 on"));
  EXPECT_THAT(beyond({.offset = 6}), HasSubstr("has 5 bytes; wanted all from byte 6 on"));
  EXPECT_THAT(beyond({.offset = 6, .size = 0}), HasSubstr("has 5 bytes; wanted 0 bytes from byte 6 on"));
  EXPECT_THAT(beyond({.size = kLargest}), HasSubstr("has 5 bytes; wanted 9223372036854775807 bytes from byte 0 on"));
  EXPECT_THAT(beyond({.offset = kLargest, .size = kLargest}), HasSubstr("from byte 9223372036854775807 on"));
  const auto negative = [&](const ByteRange& range) { return refusal_in(ErrorCode::invalid_argument, "x", range); };
  EXPECT_THAT(negative({.offset = -1, .size = 2}), HasSubstr("wanted 2 bytes from byte -1 on"));
  EXPECT_THAT(negative({.offset = 2, .size = -1}), HasSubstr("wanted -1 bytes from byte 2 on"));
  EXPECT_EQ(buffer_.capacity(), 0U);
  EXPECT_EQ(text_in("x", {.offset = 5, .size = 0}), "");
  EXPECT_EQ(text_in("x", {.offset = 5}), "");
}

TEST_F(FileStoreFolder, SizesAreTheFilesAndRefusedLikeItsBytes) {
  write("x", "hello");
  write("empty", "");
  std::filesystem::create_directory(folder_ / "folder");
  const FileStore store{folder_};
  EXPECT_EQ(store.size("x"), 5);
  EXPECT_EQ(store.size("empty"), 0);
  EXPECT_EQ(store.size((folder_ / "x").c_str()), 5);  // Of another place: a list may name absolute paths.
  EXPECT_THAT(error_of(ErrorCode::not_found, [&] { store.size("none"); }), HasSubstr((folder_ / "none").native()));
  EXPECT_THAT(error_of(ErrorCode::io, [&] { store.size("folder"); }), HasSubstr("folder is not a regular file"));
}

// Ranges of files around a page's size, half of them inside: what is given is what the system gives by itself, and what
// the system has no bytes for is refused.
TEST_F(FileStoreFolder, GetOfARangeIsPread) {
  SampleRandom random{17, 0, 0};
  const FileStore store{folder_};
  int given = 0;
  for (const std::uint32_t size : {0U, 1U, 2U, 100U, 4095U, 4096U, 4097U, 70'000U}) {
    std::string content(size, '\0');
    for (char& byte : content) byte = static_cast<char>(random.next());
    const Descriptor file{::open(write("x", content).c_str(), kOpenToRead)};
    for (int i = 0; i < 400; ++i) {
      const std::uint32_t most = i % 2 == 0 ? size : 2 * size + 1;
      const std::uint32_t offset = random.below(most + 1);
      ByteRange range{.offset = offset, .size = random.below(most - offset + 1)};
      if (i % 5 == 0) range.size.reset();
      if (i % 3 == 0) range.whole_size = size;
      // A byte more than wanted, where that is known: whether there is one is the system's to say.
      std::string wanted(static_cast<std::size_t>(range.size.value_or(size + 1)), '\0');
      const ssize_t found = ::pread(file.number(), wanted.data(), wanted.size(), offset);
      ASSERT_GE(found, 0);
      const bool is_there = offset <= size && (!range.size || found == *range.size);
      if (!is_there) {
        EXPECT_THAT(refusal_in(ErrorCode::corrupt_data, "x", range), HasSubstr(fmt::format("has {} bytes", size)));
        continue;
      }
      wanted.resize(static_cast<std::size_t>(found));
      ASSERT_EQ(text_in("x", range), wanted) << offset << " + " << range.size.value_or(-1) << " of " << size;
      ++given;
    }
    EXPECT_LE(buffer_.capacity(), 70'001U);
  }
  EXPECT_GT(given, 1500);
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
      EXPECT_EQ(FileStore{folder_}.get("x", {.whole_size = kSize}, buffer_).size(), static_cast<std::size_t>(kSize));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
      const std::string message = error.what();
      if (message.find("shrank while") != std::string::npos) ++shrank;
      if (message.find("grew beyond") != std::string::npos) ++grew;
      if (message.find("when it was listed") != std::string::npos) ++listed;
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
    ++examined;
    return failed(statuses) ? -1 : FileCalls::status(file, status);
  }
  ssize_t read_at(int file, void* target, std::size_t size, off_t at) const override {
    clock += a_read_takes;
    asked.push_back(size);
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
  mutable int opened = 0, examined = 0;
  mutable std::vector<std::size_t> asked;  // Bytes of each read.

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
  std::string read() { return read_in({.whole_size = kSize}); }
  std::string read_in(const ByteRange& range) {
    const auto bytes = FileStore{folder_, calls_}.get("x", range, buffer_);
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
  calls_.opens = {{.reason = ETIMEDOUT}};
  calls_.statuses = {{.reason = EIO}};
  EXPECT_EQ((FileStore{folder_, calls_}.size("x")), kSize);
}

TEST_F(FileStoreFaults, ARangeIsReadAnewFromItsOwnFront) {
  calls_.reads = {{.at_most = 5}, {.reason = EINTR}, {.reason = EIO}, {.at_most = 1}, {.at_most = 2}};
  EXPECT_EQ(read_in({.offset = 7, .size = 12}), kText.substr(7, 12));
  EXPECT_EQ(read_in({.offset = 7}), kText.substr(7));
}

// What a sample costs in calls of the system, beside closing the file.
TEST_F(FileStoreFaults, AGetIsOneOpenOneExaminationAndOneRead) {
  const auto size = static_cast<std::size_t>(kSize);
  read_in({.offset = 3, .size = 7, .whole_size = kSize});
  EXPECT_THAT(calls_.asked, testing::ElementsAre(7));
  read();  // At the file's end one byte more is asked for, which is not there.
  EXPECT_THAT(calls_.asked, testing::ElementsAre(7, size + 1, 1));
  EXPECT_EQ(calls_.opened, 2);
  EXPECT_EQ(calls_.examined, 2);
  const std::uint8_t* memory = buffer_.data();
  read_in({.offset = 3});
  EXPECT_EQ(buffer_.data(), memory);
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
  EXPECT_THAT(refusal_of(ErrorCode::corrupt_data),
              HasSubstr("shrank while it was read: 20 of 35 bytes from byte 0 on are left"));
}

}  // namespace
}  // namespace headrace
