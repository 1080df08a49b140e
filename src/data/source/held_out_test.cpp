#include "data/source/held_out.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/loader.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "data/loader/testing.h"
#include "data/source/read_sample.h"
#include "media/codec/tiny_images.h"

namespace headrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr TinyImages::Shape kShape{.classes = 4, .count = 25};

class HeldOut : public testing::Test {
 protected:
  DataOptions options(double fraction, std::int64_t threads = 1) const {
    DataOptions options = options_of(8, threads);
    options.source = images_.uri();
    options.val_fraction = fraction;
    options.transform.size = 24;
    options.transform.crop = Crop::random_resized;
    return options;
  }
  static std::vector<std::string> names(const Source& source) {
    std::vector<std::string> all;
    for (std::int64_t i = 0; i < source.size(); ++i) all.push_back(stored_name_of(source, i));
    return all;
  }

  const TinyImages images_{kShape};
};

TEST_F(HeldOut, TrainAndValAreAllTrainingSamplesOnceInTheirOrder) {
  const auto whole = open_source(images_.uri(), Split::train);
  const auto train = open_split(options(0.2), 3, Split::train), val = open_split(options(0.2), 3, Split::val);
  EXPECT_EQ(train->size(), 80);
  EXPECT_EQ(val->size(), 20);
  std::vector<std::string> both = names(*train);
  EXPECT_TRUE(std::is_sorted(both.begin(), both.end()));
  for (const std::string& name : names(*val)) both.push_back(name);
  std::sort(both.begin(), both.end());
  EXPECT_EQ(both, names(*whole));
  Sample one, other;
  for (std::int64_t i = 0, at = 0; i < val->size(); ++i, ++at) {
    while (stored_name_of(*whole, at) != stored_name_of(*val, i)) ++at;
    val->read(i, one);
    whole->read(at, other);
    EXPECT_TRUE(std::ranges::equal(one.image().bytes, other.image().bytes));
    EXPECT_EQ(label_of(*val, i), label_of(*whole, at));
  }
  EXPECT_EQ(names(*open_split(options(0.2), 3, Split::test)), names(*open_source(images_.uri(), Split::test)));
}

// Else fields that the source has would be gone in its parts.
TEST_F(HeldOut, APartsSchemaIsThatOfTheWhole) {
  class Masked final : public Source {
   public:
    std::int64_t size() const override { return 10; }
    const SourceInfo& info() const override { return info_; }
    void read(std::int64_t, Sample&) const override {}
    std::string name(std::int64_t) const override { return "masked"; }

   private:
    const SourceInfo info_{.schema = Schema{{{.name = "mask", .shape = {4, 4}}}}};
  };
  const auto whole = std::make_shared<Masked>();
  EXPECT_EQ(part_of(whole, 0.2, 3, Split::val)->info().schema, whole->info().schema);
}

TEST_F(HeldOut, TheChoiceIsOfTheSeedAndTheFractionAlone) {
  const auto val = open_split(options(0.2), 3, Split::val);
  EXPECT_EQ(names(*open_split(options(0.2), 3, Split::val)), names(*val));
  EXPECT_NE(names(*open_split(options(0.2), 4, Split::val)), names(*val));
  std::set<std::uint64_t> fingerprints{open_source(images_.uri(), Split::train)->info().fingerprint,
                                       val->info().fingerprint,
                                       open_split(options(0.2), 3, Split::train)->info().fingerprint,
                                       open_split(options(0.2), 4, Split::val)->info().fingerprint,
                                       open_split(options(0.25), 3, Split::val)->info().fingerprint};
  EXPECT_EQ(fingerprints.size(), 5U);
}

TEST_F(HeldOut, BatchesAreTheSameForAnyThreadCountAndTheirRanksTogetherHoldTheSameSamples) {
  const auto train = open_split(options(0.2), 3, Split::train);
  Loader reference{train, options(0.2), 3, true};
  const auto expected = digests(reference.epoch(0));
  for (const std::int64_t threads : {0, 1, 7}) {
    Loader loader{open_split(options(0.2, threads), 3, Split::train), options(0.2, threads), 3, true};
    EXPECT_EQ(digests(loader.epoch(0)), expected) << threads << " threads";
  }
  std::vector<std::int64_t> of_ranks;
  for (const std::int64_t rank : {0, 1}) {
    DataOptions ranked = options(0.2);
    ranked.batch_size = 4, ranked.world_size = 2, ranked.rank = rank;
    Loader loader{open_split(ranked, 3, Split::train), ranked, 3, true};
    for (const std::int64_t sample : order(loader.epoch(0))) of_ranks.push_back(sample);
  }
  std::vector<std::int64_t> of_one = order(reference.epoch(0));
  std::sort(of_one.begin(), of_one.end());
  std::sort(of_ranks.begin(), of_ranks.end());
  EXPECT_EQ(of_ranks, of_one);
}

TEST_F(HeldOut, AStateIsOfOneFraction) {
  Loader loader{open_split(options(0.2), 3, Split::train), options(0.2), 3, true};
  const LoaderState state = loader.state();
  Loader other{open_split(options(0.25), 3, Split::train), options(0.25), 3, true};
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { other.restore(state); }),
              HasSubstr("data.val_fraction 0.2, this one has 0.25"));
  loader.restore(state);
}

TEST_F(HeldOut, NothingIsHeldOutByDefault) {
  EXPECT_EQ(find_split(options(0), 3, Split::val), nullptr);
  EXPECT_EQ(open_split(options(0), 3, Split::train)->info().fingerprint,
            open_source(images_.uri(), Split::train)->info().fingerprint);
}

TEST_F(HeldOut, BesideAValOfTheSourceOrWithoutAnySampleItIsRefused) {
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { open_split(options(0.001), 3, Split::val); }),
              HasSubstr("data.val_fraction = 0.001 holds out 0 of 100 samples"));
  std::filesystem::rename(images_.folder() / "test", images_.folder() / "val");
  for (const Split split : {Split::train, Split::val}) {
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { open_split(options(0.2), 3, split); }),
                AllOf(HasSubstr("data.val_fraction is 0.2"), HasSubstr("has a split val of its own")));
  }
}

}  // namespace
}  // namespace headrace
