// The Loader over a store that is slow, short, failing and reset: retried or named, nothing lost, nothing twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/loader.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "data/detail/sources.h"
#include "data/detail/testing.h"
#include "data/detail/tiny_pictures.h"
#include "store/file_calls.h"

namespace headrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Every file's first handle is reset at its third read, every second read is interrupted, and none gives more than 700
// bytes; one name, if told, cannot be opened at all.
class UnsteadyCalls final : public FileCalls {
 public:
  int open_at(int folder, const char* name, int flags) const override {
    if (name == broken) return fail_with(EIO);
    const int file = FileCalls::open_at(folder, name, flags);
    const std::lock_guard lock(mutex_);
    reads_until_reset_[file] = ++opened_[name] % 2 == 1 ? 3 : -1;
    return file;
  }
  ssize_t read_at(int file, void* target, std::size_t size, off_t at) const override {
    std::this_thread::yield();
    if (calls_.fetch_add(1) % 2 == 0) return fail_with(EINTR);
    {
      const std::lock_guard lock(mutex_);
      if (--reads_until_reset_[file] == 0) return fail_with(ECONNRESET);
    }
    return FileCalls::read_at(file, target, std::min<std::size_t>(size, 700), at);
  }
  void pause(std::chrono::milliseconds) const override { ++pauses; }

  std::string broken{};
  mutable std::atomic<int> pauses{0};

 private:
  static int fail_with(int reason) {
    errno = reason;
    return -1;
  }

  mutable std::atomic<unsigned> calls_{0};
  mutable std::mutex mutex_;  // Guards what follows.
  mutable std::map<std::string, int> opened_;
  mutable std::map<int, int> reads_until_reset_;
};

DataOptions photo_options(std::int64_t threads, OnCorrupt policy = OnCorrupt::fail) {
  DataOptions options = options_of(8, threads);
  options.transform.size = 24;
  options.transform.crop = Crop::random_resized;
  options.on_corrupt = policy;
  return options;
}

std::vector<std::uint64_t> loaded(const TinyPictures& pictures, const FileCalls& calls, const DataOptions& options) {
  Loader loader{detail::open_image_folder(pictures.folder(), Split::train, calls), options, 3, true};
  return digests(loader.epoch(0));
}

TEST(StoreFaults, AnUnsteadyStoreGivesTheSameBatchesOnce) {
  const TinyPictures pictures{{.classes = 3, .count = 20}};
  const auto wanted = loaded(pictures, FileCalls::system(), photo_options(1));
  for (const std::int64_t threads : {0, 1, 4}) {
    const UnsteadyCalls calls;
    EXPECT_EQ(loaded(pictures, calls, photo_options(threads)), wanted) << threads << " threads";
    EXPECT_EQ(calls.pauses, 60);
  }
}

TEST(StoreFaults, AFileThatCannotBeReadIsNamedAndTheRestIsDelivered) {
  const TinyPictures pictures{{.classes = 3, .count = 20}};
  UnsteadyCalls calls;
  calls.broken = "b/00007.jpg";
  const auto source = std::shared_ptr(detail::open_image_folder(pictures.folder(), Split::train, calls));
  for (const std::int64_t threads : {0, 4}) {
    Loader strict{source, photo_options(threads), 3, true};
    EXPECT_THAT(error_of(ErrorCode::io, [&] { digests(strict.epoch(0)); }),
                AllOf(HasSubstr("b/00007.jpg"), HasSubstr("Input/output error, 3 times")));
    Loader loader{source, photo_options(threads, OnCorrupt::zero), 3, true};
    std::vector<std::int64_t> delivered = order(loader.epoch(0));
    std::sort(delivered.begin(), delivered.end());
    EXPECT_EQ(delivered, counting(60));
    ASSERT_EQ(loader.corrupt_samples().size(), 1U);
    EXPECT_THAT(loader.corrupt_samples()[0].name, testing::EndsWith("b/00007.jpg"));
  }
}

}  // namespace
}  // namespace headrace
