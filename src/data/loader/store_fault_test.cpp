// The Loader over a store that is slow, short, failing and reset: retried or named, nothing lost, nothing twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/loader.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "data/loader/testing.h"
#include "data/pack/pack_build.h"
#include "data/source/sources.h"
#include "data/store/fault_store.h"
#include "data/store/file_calls.h"
#include "data/store/file_store.h"
#include "data/store/pack_file.h"
#include "data/store/scratch_folder.h"
#include "media/codec/tiny_images.h"

namespace headrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Every file's first handle is reset at each third read, every second read is interrupted, and none gives more than 700
// bytes. At one place nothing can be read.
class UnsteadyCalls final : public FileCalls {
 public:
  int open_at(int folder, const char* name, int flags) const override {
    const int file = FileCalls::open_at(folder, name, flags);
    const std::lock_guard lock(mutex_);
    reads_until_reset_[file] = ++opened_[name] == 1 ? kReadsToReset : -1;
    return file;
  }
  ssize_t read_at(int file, void* target, std::size_t size, off_t at) const override {
    std::this_thread::yield();
    if (at == broken_at) return fail_with(EIO);
    if (calls_.fetch_add(1) % 2 == 0) return fail_with(EINTR);
    {
      const std::lock_guard lock(mutex_);
      if (--reads_until_reset_[file] == 0) {
        reads_until_reset_[file] = kReadsToReset;
        return fail_with(ECONNRESET);
      }
    }
    return FileCalls::read_at(file, target, std::min<std::size_t>(size, 700), at);
  }
  void pause(std::chrono::milliseconds) const override { ++pauses; }

  off_t broken_at = -1;
  mutable std::atomic<int> pauses{0};

 private:
  static constexpr int kReadsToReset = 3;

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

class StoreFaults : public ScratchFolder {
 protected:
  static constexpr std::int64_t kCount = 60;

  void SetUp() override {
    const PackPlan plan{.source = images_.uri(), .out = pack_};
    ASSERT_TRUE(write_pack(plan, [](std::int64_t, std::int64_t) { return true; }).has_value());
  }
  std::shared_ptr<const Source> open_folder(const FileCalls& calls) const {
    return detail::open_image_folder(images_.folder(), Split::train, [&](const std::filesystem::path& root) {
      return std::make_unique<FileStore>(root, calls);
    });
  }
  std::shared_ptr<const Source> open_folder(const ChooseFault& choose) const {
    return detail::open_image_folder(images_.folder(), Split::train, [&](const std::filesystem::path& root) {
      return with_faults(std::make_unique<FileStore>(root), choose);
    });
  }
  // A folder in which `fault` befalls b/00007.jpg.
  std::shared_ptr<const Source> open_folder(const StoreFault& fault) const {
    return open_folder(
        [fault](std::string_view key, const ByteRange&) { return key == "b/00007.jpg" ? fault : StoreFault{}; });
  }
  std::shared_ptr<const Source> open_pack(const FileCalls& calls) const {
    return detail::open_pack(pack_, Split::train, calls);
  }
  static std::vector<std::uint64_t> loaded(const std::shared_ptr<const Source>& source, const DataOptions& options) {
    Loader loader{source, options, 3, true};
    return digests(loader.epoch(0));
  }
  // `named` cannot be read: it is told with the reason, and all others are delivered, each once.
  static void expect_one_is_named(const std::shared_ptr<const Source>& source, const std::string& named, ErrorCode code,
                                  const std::string& reason) {
    for (const std::int64_t threads : {0, 4}) {
      Loader strict{source, photo_options(threads), 3, true};
      EXPECT_THAT(error_of(code, [&] { digests(strict.epoch(0)); }), AllOf(HasSubstr(named), HasSubstr(reason)));
      Loader loader{source, photo_options(threads, OnCorrupt::zero), 3, true};
      std::vector<std::int64_t> delivered = order(loader.epoch(0));
      std::sort(delivered.begin(), delivered.end());
      EXPECT_EQ(delivered, counting(kCount));
      ASSERT_EQ(loader.corrupt_samples().size(), 1U);
      EXPECT_THAT(loader.corrupt_samples()[0].name, testing::EndsWith(named));
    }
  }

  const TinyImages images_{{.classes = 3, .count = kCount / 3}};
  const std::filesystem::path pack_ = folder_ / "photos.pack";
};

TEST_F(StoreFaults, AnUnsteadyStoreGivesTheSameBatchesOnce) {
  const auto wanted = loaded(open_folder(FileCalls::system()), photo_options(1));
  for (const std::int64_t threads : {0, 1, 4}) {
    const UnsteadyCalls of_folder, of_pack;
    EXPECT_EQ(loaded(open_folder(of_folder), photo_options(threads)), wanted) << threads << " threads";
    EXPECT_EQ(of_folder.pauses, kCount);
    EXPECT_EQ(loaded(open_pack(of_pack), photo_options(threads)), wanted) << threads << " threads, a pack";
    EXPECT_GT(of_pack.pauses, 0);
  }
}

TEST_F(StoreFaults, AFileThatCannotBeReadIsNamedAndTheRestIsDelivered) {
  for (const ErrorCode code : {ErrorCode::io, ErrorCode::not_found, ErrorCode::unsupported}) {
    expect_one_is_named(open_folder(StoreFault{.code = code}), "b/00007.jpg", code, "a fault on request");
  }
}

TEST_F(StoreFaults, AFileThatIsDamagedOnItsWayIsNamedAndTheRestIsDelivered) {
  expect_one_is_named(open_folder(StoreFault{.flipped = 0}), "b/00007.jpg", ErrorCode::corrupt_data,
                      "begin with fe d8");
  const auto cut = open_folder([](std::string_view key, const ByteRange& range) {
    return key == "b/00007.jpg" ? StoreFault{.lost = range.whole_size.value() - 2} : StoreFault{};
  });
  expect_one_is_named(cut, "b/00007.jpg", ErrorCode::corrupt_data, "2 bytes that begin with ff d8");
}

// Every third get is refused, whichever sample that is with these threads; nothing is read twice for it.
TEST_F(StoreFaults, WhateverTheStoreRefusesTheOthersAreDeliveredOnce) {
  std::atomic<int> gets = 0;
  const auto source = open_folder([&gets](std::string_view, const ByteRange&) {
    return gets.fetch_add(1) % 3 == 0 ? StoreFault{.code = ErrorCode::io} : StoreFault{};
  });
  for (const std::int64_t threads : {0, 4}) {
    Loader loader{source, photo_options(threads, OnCorrupt::zero), 3, true};
    std::vector<std::int64_t> delivered = order(loader.epoch(0));
    std::sort(delivered.begin(), delivered.end());
    EXPECT_EQ(delivered, counting(kCount));
    EXPECT_EQ(loader.corrupt_samples().size(), static_cast<std::size_t>(kCount / 3));
  }
  EXPECT_EQ(gets, 2 * kCount);
}

TEST_F(StoreFaults, ASampleOfAPackThatCannotBeReadIsNamedAndTheRestIsDelivered) {
  UnsteadyCalls calls;
  calls.broken_at = static_cast<off_t>(PackFile{pack_}.rows()[27].at);
  expect_one_is_named(open_pack(calls), "photos.pack:b/00007.jpg", ErrorCode::io, "Input/output error, 3 times");
}

TEST_F(StoreFaults, AFileThatIsSlowHoldsUpItsOwnBatchAlone) {
  Loader plain{open_folder(FileCalls::system()), photo_options(1), 3, false};
  const auto wanted = digests(plain.epoch(0));
  std::latch let_go{1};
  std::atomic<bool> is_there = false;
  const auto source = open_folder([&](std::string_view key, const ByteRange&) {
    if (key == "a/00011.jpg") let_go.wait();    // In batch 1 of 8.
    if (key == "b/00003.jpg") is_there = true;  // The last one of batch 2.
    return StoreFault{};
  });
  Loader loader{source, photo_options(2), 3, false};
  auto epoch = loader.epoch(0);
  std::vector<std::uint64_t> found{digest(epoch.next().value())};
  auto second = epoch.request();
  while (!is_there) std::this_thread::yield();
  EXPECT_EQ(second.wait_for(std::chrono::seconds{0}), std::future_status::timeout);
  let_go.count_down();
  found.push_back(digest(second.get().value()));
  while (const auto batch = epoch.next()) found.push_back(digest(*batch));
  EXPECT_EQ(found, wanted);
}

}  // namespace
}  // namespace headrace
