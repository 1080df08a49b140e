#include "data/store/fault_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/error_of.h"
#include "data/store/file_store.h"
#include "data/store/scratch_folder.h"

namespace headrace {
namespace {

using testing::HasSubstr;

class FaultStore : public ScratchFolder {
 protected:
  void SetUp() override {
    write("x", "hello");
    write("y", "world");
  }
  std::unique_ptr<const Store> store(ChooseFault choose) const {
    return with_faults(std::make_unique<FileStore>(folder_), std::move(choose));
  }
  static std::string text(const Store& store, const char* key, const ByteRange& range = {}) {
    std::vector<std::uint8_t> buffer;
    const auto bytes = store.get(key, range, buffer);
    return {bytes.begin(), bytes.end()};
  }
};

TEST_F(FaultStore, ThrowsTheChosenErrorWithTheKeysNameAndReadsTheOthers) {
  const auto faulty = store([](std::string_view key, const ByteRange&) {
    return key == "x" ? StoreFault{.code = ErrorCode::io} : StoreFault{};
  });
  EXPECT_THAT(error_of(ErrorCode::io, [&] { text(*faulty, "x"); }), HasSubstr((folder_ / "x").native()));
  EXPECT_EQ(text(*faulty, "y"), "world");
}

TEST_F(FaultStore, LosesAndFlipsBytesOfTheChosenRangesAlone) {
  const auto faulty = store([](std::string_view, const ByteRange& range) {
    return range.offset == 1 ? StoreFault{.lost = 2, .flipped = 0} : StoreFault{};
  });
  EXPECT_EQ(text(*faulty, "x", {.offset = 1}), "dl");
  EXPECT_EQ(text(*faulty, "x", {.offset = 2}), "llo");
  EXPECT_EQ(text(*faulty, "x"), "hello");
}

TEST_F(FaultStore, ReadsWhenItsChoiceIsMade) {
  const auto slow = store([this](std::string_view, const ByteRange&) {
    write("x", "later");
    return StoreFault{};
  });
  EXPECT_EQ(text(*slow, "x"), "later");
}

TEST_F(FaultStore, LeavesTheErrorsOfTheStoreBelowAsTheyAre) {
  const auto faulty = store([](std::string_view, const ByteRange&) { return StoreFault{.flipped = 0}; });
  const FileStore below{folder_};
  EXPECT_EQ(error_of(ErrorCode::not_found, [&] { text(*faulty, "none"); }),
            error_of(ErrorCode::not_found, [&] { text(below, "none"); }));
}

// Remembers what it is told.
class HintedStore final : public Store {
 public:
  explicit HintedStore(std::vector<std::string>& hints) : hints_(hints) {}
  std::span<const std::uint8_t> get(const char*, const ByteRange&, std::vector<std::uint8_t>&) const override {
    return {};
  }
  std::int64_t size(const char*) const override { return 7; }
  void expect(std::span<const char* const> keys) const override { hints_.assign(keys.begin(), keys.end()); }
  std::string text_of(const char* key) const override { return std::string("the ") + key; }

 private:
  std::vector<std::string>& hints_;
};

TEST_F(FaultStore, PassesSizesHintsAndNamesOn) {
  std::vector<std::string> hints;
  const auto faulty = with_faults(std::make_unique<HintedStore>(hints),
                                  [](std::string_view, const ByteRange&) { return StoreFault{.code = ErrorCode::io}; });
  const std::vector<const char*> keys{"b", "a"};
  faulty->expect(keys);
  EXPECT_THAT(hints, testing::ElementsAre("b", "a"));
  EXPECT_EQ(faulty->size("a"), 7);
  EXPECT_EQ(faulty->text_of("a"), "the a");
}

}  // namespace
}  // namespace headrace
