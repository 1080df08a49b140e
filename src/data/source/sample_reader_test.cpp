#include "data/source/sample_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/loader.h>

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/fail.h"
#include "data/loader/testing.h"
#include "data/source/source_contract.h"
#include "data/store/file_store.h"
#include "data/store/scratch_folder.h"
#include "media/codec/tiny_images.h"

namespace headrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t kSamples = 12;
constexpr const char* kKey = "shard.bin";

// Files of images, some boxes and a score of each one, all in one file: either read from memory, or told as ranges.
class Shard final : public Source {
 public:
  enum class Gives { bytes, ranges, ranges_without_a_store };

  Shard(const std::filesystem::path& folder, Gives gives) : gives_(gives), files_(folder) {
    for (int i = 0; i < kSamples; ++i) {
      const codec::Bytes image = TinyImages::jpeg(i % 3, i, {});
      image_at_.push_back(std::ssize(whole_));
      whole_.insert(whole_.end(), image.begin(), image.end());
      boxes_at_.push_back(std::ssize(whole_));
      for (int value = 0; value < i * 4; ++value) append(static_cast<float>(value + i));
      append(static_cast<float>(i) / 2);
    }
    image_at_.push_back(std::ssize(whole_));
  }

  std::int64_t size() const override { return kSamples; }
  const SourceInfo& info() const override { return info_; }
  std::string name(std::int64_t index) const override { return fmt::format("shard[{}]", index); }
  Capabilities capabilities() const override { return {.store = gives_ == Gives::ranges ? &files_ : nullptr}; }
  void read(std::int64_t index, Sample& sample) const override {
    const auto at = static_cast<std::size_t>(index);
    const std::int64_t boxes = boxes_at_[at], score = image_at_[at + 1] - 4;
    const std::array<std::int64_t, 2> axes{index, 4};
    if (gives_ == Gives::bytes) {
      sample[0].set_file(bytes(image_at_[at], boxes));
      sample[1].set_bytes(bytes(boxes, score), axes);
      sample[2].set_bytes(bytes(score, score + 4), {});
    } else {
      sample[0].set_file_range(kKey, image_at_[at], boxes - image_at_[at]);
      sample[1].set_range(kKey, boxes, score - boxes, axes);
      sample[2].set_range(kKey, score, 4, {});
    }
    sample[3].set_number(index % 3);
    if (change) change(index, sample);
  }

  std::string content() const { return {whole_.begin(), whole_.end()}; }
  std::function<void(std::int64_t, Sample&)> change = {};

 private:
  void append(float value) {
    std::array<std::uint8_t, sizeof value> bytes{};
    std::memcpy(bytes.data(), &value, sizeof value);
    whole_.insert(whole_.end(), bytes.begin(), bytes.end());
  }
  std::span<const std::uint8_t> bytes(std::int64_t from, std::int64_t to) const {
    return std::span{whole_}.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from));
  }

  const Gives gives_;
  const FileStore files_;
  std::vector<std::uint8_t> whole_;
  std::vector<std::int64_t> image_at_, boxes_at_;  // One more image: the end.
  const SourceInfo info_{
      .schema = Schema{{{.name = "image", .shape = {kRagged, kRagged, 3}, .encoding = Encoding::image},
                        {.name = "boxes", .dtype = DType::f32, .shape = {kRagged, 4}},
                        {.name = "score", .dtype = DType::f32},
                        {.name = "labels", .dtype = DType::i64}}},
      .num_classes = 3};
};

class Ranges : public ScratchFolder {
 protected:
  void SetUp() override { write(kKey, Shard{folder_, Shard::Gives::bytes}.content()); }

  std::shared_ptr<Shard> shard(Shard::Gives gives = Shard::Gives::ranges) const {
    return std::make_shared<Shard>(folder_, gives);
  }
  static DataOptions options(std::int64_t threads) {
    DataOptions options = options_of(5, threads);
    options.transform.size = 24;
    return options;
  }
  // Sample 7 is what `change` makes of it.
  std::string error_of_seven(ErrorCode code, const std::function<void(Sample&)>& change, DataOptions how) const {
    const auto source = shard();
    source->change = [change](std::int64_t index, Sample& sample) {
      if (index == 7) change(sample);
    };
    Loader loader{source, std::move(how), 1, false};
    return error_of(code, [&] { digests(loader.epoch(0)); });
  }
};

TEST_F(Ranges, AreFetchedAndGiveTheBytesThatReadingThemGives) {
  expect_capabilities_agree(*shard());
  Loader plain{shard(Shard::Gives::bytes), options(0), 3, true};
  const auto first = digests(plain.epoch(0)), second = digests(plain.epoch(1));
  for (const std::int64_t threads : {0, 3}) {
    for (const Cache cache : {Cache::none, Cache::encoded, Cache::decoded}) {
      DataOptions how = options(threads);
      how.cache = cache;
      Loader loader{shard(), how, 3, true};
      EXPECT_EQ(digests(loader.epoch(0)), first) << threads << " threads, " << choice_name(cache);
      EXPECT_EQ(digests(loader.epoch(1)), second) << threads << " threads, " << choice_name(cache);
    }
  }
}

// A mistake of the source's, which no policy takes for a bad sample.
TEST_F(Ranges, ThatAreNegativeAreRefusedByNameWhateverThePolicy) {
  DataOptions how = options(0);
  how.on_corrupt = OnCorrupt::zero;
  EXPECT_THAT(error_of_seven(
                  ErrorCode::invalid_argument, [](Sample& sample) { sample[1].offset = -4; }, how),
              AllOf(HasSubstr("data: shard[7]: field boxes: 112 bytes from byte -4 on of"), HasSubstr(kKey),
                    HasSubstr("neither may be negative")));
  EXPECT_THAT(error_of_seven(
                  ErrorCode::invalid_argument, [](Sample& sample) { sample[0].size = -1; }, how),
              HasSubstr("data: shard[7]: field image: -1 bytes from byte"));
}

TEST_F(Ranges, AboveTheLimitTakeNoMemory) {
  EXPECT_THAT(error_of_seven(
                  ErrorCode::unsupported, [](Sample& sample) { sample[1].size = std::int64_t{10} << 30; }, options(0)),
              HasSubstr("shard[7]: field boxes: 10737418240 bytes; wanted at most 268435456 (data.max_sample_bytes)"));
}

TEST_F(Ranges, ThatTheStoreDoesNotHaveAreTheirSamplesError) {
  const auto beyond = [](Sample& sample) { sample[2].offset = 1 << 30; };
  EXPECT_THAT(error_of_seven(ErrorCode::corrupt_data, beyond, options(0)),
              AllOf(HasSubstr("shard[7]"), HasSubstr(kKey)));
  const auto absent = [](Sample& sample) { sample[0].key = "absent.bin"; };
  EXPECT_THAT(error_of_seven(ErrorCode::not_found, absent, options(0)),
              AllOf(HasSubstr("shard[7]"), HasSubstr("absent.bin")));
  DataOptions how = options(1);
  how.on_corrupt = OnCorrupt::zero;
  const auto source = shard();
  source->change = [&](std::int64_t index, Sample& sample) {
    if (index == 7) beyond(sample);
  };
  Loader loader{source, how, 1, false};
  EXPECT_EQ(order(loader.epoch(0)), counting(kSamples));
  ASSERT_EQ(loader.corrupt_samples().size(), 1U);
  EXPECT_EQ(loader.corrupt_samples()[0].name, "shard[7]");
}

TEST_F(Ranges, OfASourceWithoutAStoreAreRefused) {
  Loader loader{shard(Shard::Gives::ranges_without_a_store), options(0), 1, false};
  EXPECT_THAT(error_of(ErrorCode::internal, [&] { digests(loader.epoch(0)); }),
              HasSubstr("shard[0]: field image: bytes of shard.bin that were not fetched"));
}

}  // namespace
}  // namespace headrace
