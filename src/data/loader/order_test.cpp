#include "data/loader/detail/order.h"

#include <fmt/format.h>
#include <headrace/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "data/loader/testing.h"
#include "data/source/read_sample.h"

namespace headrace {
namespace {

using detail::AliasTable;
using detail::BatchSampler;
using detail::EpochOrder;
using detail::Order;
using testing::HasSubstr;

// Nothing to read: labels, sizes and shards.
class ListedSource final : public Source, KnownSamples {
 public:
  explicit ListedSource(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  const SourceInfo& info() const override { return facts; }
  void read(std::int64_t, Sample&) const override {}
  Capabilities capabilities() const override { return {.known = this}; }
  // Of 100: 60, 30, 9 and 1.
  std::int64_t label(std::int64_t index) const override {
    const std::int64_t place = index % 100;
    return place < 60 ? 0 : place < 90 ? 1 : place < 99 ? 2 : 3;
  }
  // A skewed set: one in ten is twenty times as large.
  std::int64_t sample_bytes(std::int64_t index) const override {
    return index % 10 == 3 ? 100'000 + index : 5'000 + index % 97;
  }
  std::string name(std::int64_t index) const override { return fmt::format("listed[{}]", index); }

  SourceInfo facts{.schema = Schema::image_and_labels(1, 1, 1), .num_classes = 4, .fingerprint = 1};

 private:
  std::int64_t size_;
};

std::vector<std::int64_t> order_of(const Order& order, std::int64_t epoch) {
  const EpochOrder in_epoch{order, epoch};
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < order.positions(); ++i) all.push_back(in_epoch.sample_at(i));
  return all;
}

std::vector<std::int64_t> sorted(std::vector<std::int64_t> values) {
  std::sort(values.begin(), values.end());
  return values;
}

// Mean `degrees` and standard deviation sqrt(2 degrees) where the chances are as expected.
double chi_squared(const std::vector<double>& expected, const std::vector<std::int64_t>& found) {
  double sum = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double off = static_cast<double>(found[i]) - expected[i];
    sum += off * off / expected[i];
  }
  return sum;
}

std::vector<std::int64_t> label_counts(const Source& source, const std::vector<std::int64_t>& samples) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(source.info().num_classes));
  for (const std::int64_t sample : samples) ++counts[static_cast<std::size_t>(label_of(source, sample))];
  return counts;
}

TEST(AliasTable, DrawsInProportionToTheWeights) {
  const std::vector<double> weights{5, 0, 1, 0.25, 3.75};
  const AliasTable table{weights};
  std::vector<std::int64_t> counts(weights.size());
  constexpr std::uint32_t kDraws = 400'000;
  for (std::uint32_t i = 0; i < kDraws; ++i)
    ++counts[static_cast<std::size_t>(table.draw(philox({i, 0, 0, 0}, {1, 2})))];
  EXPECT_EQ(counts[1], 0);
  std::vector<double> expected;
  for (const double weight : weights) expected.push_back(weight / 10 * kDraws);
  expected.erase(expected.begin() + 1);
  counts.erase(counts.begin() + 1);
  EXPECT_LT(chi_squared(expected, counts), 3 + 5 * 2.45);
}

TEST(AliasTable, OneElementIsAlwaysDrawn) {
  const AliasTable table{{1e-9}};
  for (std::uint32_t i = 0; i < 100; ++i) ASSERT_EQ(table.draw(philox({i, 0, 0, 0}, {1, 2})), 0);
}

TEST(Order, WeightsAreOneAClassOrOneASample) {
  const ListedSource source{1000};
  DataOptions options;
  options.sampler = Sampler::weighted;
  options.weights = {0, 0, 1, 9};  // 90 samples of weight 1, 10 of weight 9.
  const auto by_class = order_of(Order{source, options, 3, true}, 0);
  EXPECT_EQ(by_class.size(), 1000U);
  const auto counts = label_counts(source, by_class);
  EXPECT_EQ(counts[0] + counts[1], 0);
  EXPECT_LT(chi_squared({500, 500}, {counts[2], counts[3]}), 1 + 5 * 1.41);
  options.weights.assign(1000, 0.0);
  options.weights[17] = options.weights[400] = 2;
  const auto by_sample = order_of(Order{source, options, 3, true}, 0);
  const std::set<std::int64_t> met(by_sample.begin(), by_sample.end());
  EXPECT_EQ(met, (std::set<std::int64_t>{17, 400}));
}

TEST(Order, DrawsDifferByEpochAndSeedAndAreReproduced) {
  const ListedSource source{1000};
  DataOptions options;
  options.sampler = Sampler::class_balanced;
  const Order order{source, options, 3, true};
  EXPECT_TRUE(order.repeats());
  EXPECT_EQ(order_of(order, 1), order_of(Order{source, options, 3, true}, 1));
  EXPECT_NE(order_of(order, 1), order_of(order, 2));
  EXPECT_NE(order_of(order, 1), order_of(Order{source, options, 4, true}, 1));
}

TEST(Order, ClassBalancedDrawsClassesEquallyOftenAndTheirSamplesToo) {
  const ListedSource source{1000};
  DataOptions options;
  options.sampler = Sampler::class_balanced;
  const Order order{source, options, 5, true};
  std::vector<std::int64_t> drawn;
  for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
    const auto of_epoch = order_of(order, epoch);
    drawn.insert(drawn.end(), of_epoch.begin(), of_epoch.end());
  }
  EXPECT_LT(chi_squared({5000, 5000, 5000, 5000}, label_counts(source, drawn)), 3 + 5 * 2.45);
  std::map<std::int64_t, std::int64_t> rare;
  for (const std::int64_t sample : drawn) {
    if (source.label(sample) == 3) ++rare[sample];
  }
  std::vector<std::int64_t> counts;
  for (const auto& [sample, count] : rare) counts.push_back(count);
  ASSERT_EQ(counts.size(), 10U);
  EXPECT_LT(chi_squared(std::vector<double>(10, 500), counts), 9 + 5 * 4.3);
}

TEST(Order, WeightsThatFitNothingAreRefused) {
  const ListedSource source{1000};
  DataOptions options;
  options.sampler = Sampler::weighted;
  options.weights = {1, 2, 3};
  const auto refusal = [&] { return error_of(ErrorCode::invalid_argument, [&] { Order{source, options, 3, true}; }); };
  EXPECT_THAT(refusal(), HasSubstr("3 values; wanted 4, one a class, or 1000, one a sample"));
  options.weights = {0, 0, 0, 0};
  EXPECT_THAT(refusal(), HasSubstr("without a chance"));
}

TEST(Order, AWindowReadsFewShardsAtATimeAndMeetsEverySample) {
  ListedSource source{10'000};
  for (std::int64_t left = 10'000; left > 0; left -= source.facts.shards.back()) {
    source.facts.shards.push_back(std::min<std::int64_t>(left, 150 + std::ssize(source.facts.shards)));
  }
  DataOptions options;
  options.shuffle_window = 300;
  const Order order{source, options, 3, true};
  std::vector<std::int64_t> shard_of;
  for (std::size_t shard = 0; shard < source.facts.shards.size(); ++shard) {
    shard_of.insert(shard_of.end(), static_cast<std::size_t>(source.facts.shards[shard]),
                    static_cast<std::int64_t>(shard));
  }
  std::set<std::vector<std::int64_t>> orders;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    const auto found = order_of(order, epoch);
    EXPECT_EQ(sorted(found), counting(10'000));
    orders.insert(found);
    std::int64_t falls = 0;
    for (std::size_t begin = 0; begin < found.size(); begin += 300) {
      const std::size_t end = std::min<std::size_t>(begin + 300, found.size());
      std::set<std::int64_t> shards;
      for (std::size_t i = begin; i < end; ++i) shards.insert(shard_of[static_cast<std::size_t>(found[i])]);
      EXPECT_LE(shards.size(), 4U);  // At least 150 samples each, and the last one may be smaller.
      for (std::size_t i = begin + 1; i < end; ++i) falls += found[i] < found[i - 1];
    }
    EXPECT_NEAR(static_cast<double>(falls), 4983, 150);  // Half of all neighbours in a random order.
  }
  EXPECT_EQ(orders.size(), 3U);
}

TEST(Order, BucketsAtLeastHalveTheSpreadOfABatchAndMeetEverySample) {
  const ListedSource source{1037};
  DataOptions options;
  options.batch_size = 16;
  options.world_size = 2;
  const auto spread_in_steps = [&](const std::vector<std::int64_t>& samples) {
    double sum = 0;
    for (std::size_t begin = 0; begin + 32 <= samples.size(); begin += 32) {
      std::vector<std::int64_t> bytes;
      for (std::size_t i = begin; i < begin + 32; ++i) bytes.push_back(source.sample_bytes(samples[i]));
      const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
      sum += static_cast<double>(*most - *least);
    }
    return sum;
  };
  const double without = spread_in_steps(order_of(Order{source, options, 3, true}, 0));
  options.buckets = 8;
  const Order order{source, options, 3, true};
  std::set<std::vector<std::int64_t>> orders;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    const auto found = order_of(order, epoch);
    EXPECT_EQ(sorted(found), counting(1037));
    EXPECT_LT(spread_in_steps(found), without / 2);
    orders.insert(found);
  }
  EXPECT_EQ(orders.size(), 3U);
}

TEST(Order, WithoutTrainingSamplesComeOnceInOrder) {
  const ListedSource source{100};
  DataOptions options;
  options.sampler = Sampler::class_balanced;
  const Order order{source, options, 3, false};
  EXPECT_FALSE(order.repeats());
  EXPECT_EQ(order_of(order, 4), counting(100));
}

struct Assigned {
  std::vector<std::int64_t> counted;  // Positions.
  std::vector<std::int64_t> all;      // With those that only fill up.
  std::int64_t batches = 0;
};

Assigned assigned(std::int64_t positions, DataOptions options, std::int64_t rank, std::int64_t begin = 0) {
  options.rank = rank;
  const BatchSampler batch_sampler{positions, options, options.last_batch, begin};
  Assigned result;
  for (std::int64_t batch = batch_sampler.first_batch(); batch < batch_sampler.end_batch(); ++batch, ++result.batches) {
    const BatchSampler::Slice slice = batch_sampler.slice(batch);
    EXPECT_LE(slice.size, options.batch_size);
    for (std::int64_t place = 0; place < slice.size; ++place) {
      result.all.push_back(batch_sampler.position_of(slice, place));
      if (place < slice.counted) result.counted.push_back(result.all.back());
    }
  }
  return result;
}

// What torch's DistributedSampler promises, for the sizes and numbers of replicas of its own tests.
TEST(BatchSampler, RanksGetDisjointEqualPartsAndNothingBeyondTheTailIsDropped) {
  for (std::int64_t size = 100; size <= 107; ++size) {
    for (std::int64_t ranks = 1; ranks <= 8; ++ranks) {
      for (const std::int64_t batch_size : {1, 4, 16}) {
        for (const LastBatch last : {LastBatch::keep, LastBatch::drop, LastBatch::pad}) {
          DataOptions options;
          options.batch_size = batch_size;
          options.world_size = ranks;
          options.last_batch = last;
          std::vector<std::int64_t> counted;
          const Assigned first = assigned(size, options, 0);
          for (std::int64_t rank = 0; rank < ranks; ++rank) {
            const Assigned part = assigned(size, options, rank);
            EXPECT_EQ(part.all.size(), first.all.size());
            EXPECT_EQ(part.batches, first.batches);
            counted.insert(counted.end(), part.counted.begin(), part.counted.end());
          }
          const bool drop = last == LastBatch::drop;
          EXPECT_EQ(sorted(counted), counting(drop ? size / (ranks * batch_size) * ranks * batch_size : size))
              << size << " samples, " << ranks << " ranks of " << batch_size;
          const std::int64_t each = std::ssize(first.all);
          EXPECT_TRUE(last != LastBatch::keep || each == (size + ranks - 1) / ranks) << each;
          EXPECT_TRUE(last != LastBatch::pad || each % batch_size == 0) << each;
        }
      }
    }
  }
}

TEST(BatchSampler, RanksTogetherTakeWhatTheOrderHasWhateverItIs) {
  ListedSource source{1037};
  source.facts.shards = {500, 500, 37};
  const auto with = [](const std::function<void(DataOptions&)>& change) {
    DataOptions options;
    options.batch_size = 8;
    change(options);
    return options;
  };
  const std::vector<DataOptions> kinds = {
      with([](DataOptions& o) { o.buckets = 8; }),
      with([](DataOptions& o) {
        o.buckets = 8;
        o.bucket_by = BucketBy::shape;
      }),
      with([](DataOptions& o) { o.shuffle_window = 100; }),
      with([](DataOptions& o) { o.sampler = Sampler::class_balanced; }),
      with([](DataOptions& o) {
        o.sampler = Sampler::weighted;
        o.weights = {1, 2, 3, 4};
      }),
  };
  for (DataOptions options : kinds) {
    for (const std::int64_t ranks : {1, 2, 3, 7}) {
      SCOPED_TRACE(fmt::format("{} buckets, window {}, {} weights, {} ranks", options.buckets, options.shuffle_window,
                               options.weights.size(), ranks));
      options.world_size = ranks;
      const Order order{source, options, 3, true};
      const std::vector<std::int64_t> samples = order_of(order, 2);
      std::vector<std::int64_t> taken;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        for (const std::int64_t position : assigned(order.positions(), options, rank).counted) {
          taken.push_back(samples[static_cast<std::size_t>(position)]);
        }
      }
      EXPECT_EQ(sorted(taken), sorted(samples));
      EXPECT_TRUE(order.repeats() || sorted(taken) == counting(1037));
    }
  }
}

TEST(BatchSampler, WhatFillsUpRepeatsTheBeginOfTheEpoch) {
  DataOptions options;
  options.batch_size = 4;
  options.last_batch = LastBatch::pad;
  EXPECT_THAT(assigned(6, options, 0).all, testing::ElementsAre(0, 1, 2, 3, 4, 5, 0, 1));
  EXPECT_THAT(assigned(3, options, 0).all, testing::ElementsAre(0, 1, 2, 0));
  options.world_size = 2;  // 3 are left over: 2 for the first rank, 1 for the second.
  EXPECT_THAT(assigned(11, options, 0).all, testing::ElementsAre(0, 1, 2, 3, 8, 9, 0, 1));
  EXPECT_THAT(assigned(11, options, 1).all, testing::ElementsAre(4, 5, 6, 7, 10, 2, 3, 4));
  options.last_batch = LastBatch::keep;
  EXPECT_THAT(assigned(11, options, 0).all, testing::ElementsAre(0, 1, 2, 3, 8, 9));
  EXPECT_THAT(assigned(11, options, 1).all, testing::ElementsAre(4, 5, 6, 7, 10, 0));
  EXPECT_THAT(assigned(11, options, 1).counted, testing::ElementsAre(4, 5, 6, 7, 10));
}

TEST(BatchSampler, AnEpochMayBeginAtAnyStepOfAnotherNumberOfRanks) {
  DataOptions options;
  options.batch_size = 4;
  options.world_size = 3;
  std::vector<std::int64_t> counted;
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    const Assigned part = assigned(50, options, rank, 20);  // After 5 steps of one rank.
    EXPECT_EQ(part.batches, 3);
    counted.insert(counted.end(), part.counted.begin(), part.counted.end());
  }
  std::vector<std::int64_t> rest = counting(50);
  rest.erase(rest.begin(), rest.begin() + 20);
  EXPECT_EQ(sorted(counted), rest);
}

}  // namespace
}  // namespace headrace
