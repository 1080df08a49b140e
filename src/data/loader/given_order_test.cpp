// Epochs whose order the caller gives.
#include <headrace/given_order.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "core/base/fail.h"
#include "data/loader/detail/order.h"
#include "data/loader/testing.h"
#include "data/source/fields_source.h"

namespace headrace {
namespace {

using detail::GivenEpoch;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kSamples = 60;

// An image that is cropped at random, and boxes.
std::shared_ptr<const Source> boxes() {
  return std::make_shared<FieldsSource>(Schema{{{.name = "image", .shape = {5, 4, 3}, .encoding = Encoding::image},
                                                {.name = "boxes", .dtype = DType::f32, .shape = {kRagged, 4}}}},
                                        kSamples);
}

DataOptions cropped(std::int64_t batch_size, std::int64_t threads) {
  DataOptions options = options_of(batch_size, threads);
  options.transform.pad = 2;
  options.transform.flip_probability = 0.5;
  return options;
}

// Every third sample backwards from another one each epoch, in batches of 1, 2, 3 and so on to `largest`.
GivenOrder thirds(std::int64_t epoch, std::int64_t largest) {
  GivenOrder order;
  for (std::int64_t index = kSamples - 1 - epoch; index >= 0; index -= 3) order.samples.push_back(index);
  for (std::int64_t end = 1, size = 1; largest > 0; size = size % largest + 1, end += size) {
    order.batch_ends.push_back(std::min(end, std::ssize(order.samples)));
    if (end >= std::ssize(order.samples)) break;
  }
  return order;
}

OrderOfEpoch thirds_of(std::int64_t largest) {
  return [largest](std::int64_t epoch) { return thirds(epoch, largest); };
}

std::vector<std::int64_t> sizes(Epoch epoch) {
  std::vector<std::int64_t> all;
  while (const auto batch = epoch.next()) all.push_back(batch->size());
  return all;
}

TEST(GivenOrder, IsTheOrderOfItsEpochForAnyThreads) {
  const auto source = boxes();
  std::set<std::vector<std::uint64_t>> all;
  for (const std::int64_t threads : {0, 1, 7}) {
    Loader loader{source, cropped(4, threads), 3, true, 0, thirds_of(0)};
    EXPECT_EQ(order(loader.epoch(0)), thirds(0, 0).samples);
    EXPECT_EQ(loader.batches_per_epoch(), 5);
    EXPECT_EQ(order(loader.next_epoch()), thirds(1, 0).samples);
    all.insert(digests(loader.epoch(0)));
  }
  EXPECT_EQ(all.size(), 1U);
}

TEST(GivenOrder, ItsBatchesAreTakenAsTheyAre) {
  Loader loader{boxes(), cropped(3, 2), 3, true, 0, thirds_of(3)};
  EXPECT_THAT(sizes(loader.epoch(0)), ElementsAre(1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 1));
  EXPECT_EQ(order(loader.epoch(0)), thirds(0, 0).samples);
  EXPECT_EQ(loader.batches_per_epoch(), 11);
}

TEST(GivenOrder, ItsLastBatchIsKeptDroppedOrPadded) {
  DataOptions options = cropped(8, 1);
  const auto sizes_with = [&](LastBatch last, bool training) {
    options.last_batch = last;
    Loader loader{boxes(), options, 3, training, 0, thirds_of(0)};
    return sizes(loader.epoch(0));
  };
  EXPECT_THAT(sizes_with(LastBatch::keep, true), ElementsAre(8, 8, 4));
  EXPECT_THAT(sizes_with(LastBatch::drop, true), ElementsAre(8, 8));
  EXPECT_THAT(sizes_with(LastBatch::drop, false), ElementsAre(8, 8, 4));
  EXPECT_THAT(sizes_with(LastBatch::pad, true), ElementsAre(8, 8, 8));
}

TEST(GivenOrder, GoesOnAtEveryBatch) {
  const auto source = boxes();
  for (const std::int64_t largest : {0, 3}) {
    Loader whole{source, cropped(3, 2), 3, true, 0, thirds_of(largest)};
    const auto all = digests(whole.epoch(1));
    for (std::size_t at = 0; at < all.size(); ++at) {
      Loader first{source, cropped(3, 1), 3, true, 0, thirds_of(largest)};
      LoaderState state;
      {
        auto epoch = first.epoch(1);
        for (std::size_t i = 0; i < at; ++i) EXPECT_TRUE(epoch.next().has_value());
        state = first.state();
      }
      EXPECT_NE(state.order, 0U);
      Loader second{source, cropped(3, 7), 3, true, 0, thirds_of(largest)};
      second.restore(state);
      EXPECT_EQ(second.state().order, state.order);
      EXPECT_EQ(digests(second.next_epoch()),
                std::vector<std::uint64_t>(all.begin() + static_cast<std::ptrdiff_t>(at), all.end()));
      EXPECT_EQ(second.state().order, 0U);
      EXPECT_EQ(second.state().epoch, 2);
    }
  }
}

TEST(GivenOrder, AStateGoesOnInItsOwnOrderAlone) {
  const auto source = boxes();
  Loader loader{source, cropped(4, 1), 3, true, 0, thirds_of(0)};
  {
    auto epoch = loader.epoch(0);
    EXPECT_TRUE(epoch.next().has_value());
  }
  const LoaderState state = loader.state();
  Loader other{source, cropped(4, 1), 3, true, 0, [](std::int64_t epoch) { return thirds(epoch + 1, 0); }};
  other.restore(state);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { other.next_epoch(); }),
              HasSubstr("the order given: gave another order for epoch 0 than the one within which the state stands"));
  Loader without{source, cropped(4, 1), 3, true};
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { without.restore(state); }),
              HasSubstr("order given, this one has drawn"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { loader.restore(without.state()); }),
              HasSubstr("this one has given"));
  other.start_at(0);  // From the beginning any order will do.
  EXPECT_EQ(order(other.next_epoch()), thirds(1, 0).samples);
}

TEST(GivenOrder, OneThatIsRefusedBeginsNothing) {
  GivenOrder wanted;
  Loader loader{boxes(), cropped(4, 1), 3, true, 0, [&](std::int64_t) { return wanted; }};
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { loader.batches_per_epoch(); }), HasSubstr("is known when"));
  const auto refusal = [&](GivenOrder order) {
    wanted = std::move(order);
    return error_of(ErrorCode::invalid_argument, [&] { loader.next_epoch(); });
  };
  EXPECT_THAT(refusal({}), HasSubstr("the order given: no index for epoch 0"));
  EXPECT_THAT(refusal({{0, 59, 60}, {}, "list"}), HasSubstr("list: index 60 at position 2 of epoch 0; wanted 0 to 59"));
  EXPECT_THAT(refusal({{0, -1}}), HasSubstr("index -1 at position 1"));
  EXPECT_THAT(refusal({{0, 1, 2}, {1, 1, 3}}), HasSubstr("batch 1 of epoch 0 is empty"));
  EXPECT_THAT(refusal({{0, 1, 2}, {2, 1, 3}}), HasSubstr("batch 1 of epoch 0 ends at position 1; wanted 3 to 3"));
  EXPECT_THAT(refusal({{0, 1, 2}, {2, 4}}), HasSubstr("batch 1 of epoch 0 ends at position 4"));
  EXPECT_THAT(refusal({{0, 1, 2}, {2}}), HasSubstr("the batches of epoch 0 end at position 2 of 3"));
  EXPECT_THAT(refusal({{0, 1, 2, 3, 4}, {5}}), HasSubstr("batch 0 of epoch 0 has 5 samples; wanted at most 4"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { loader.start_at(0, 1); }), HasSubstr("batch 1 of epoch 0"));
  wanted = {{7, 8}};
  EXPECT_THAT(order(loader.next_epoch()), ElementsAre(7, 8));
}

TEST(GivenOrder, WhatDecidesAnotherOrderIsRefusedByName) {
  const auto refusal = [](const auto& change) {
    DataOptions options = cropped(4, 1);
    change(options);
    return error_of(ErrorCode::invalid_argument, [&] { Loader(boxes(), options, 3, true, 0, thirds_of(0)); });
  };
  EXPECT_THAT(refusal([](DataOptions& o) { o.world_size = 2; }), HasSubstr("data.world_size is 2, and the order"));
  EXPECT_THAT(refusal([](DataOptions& o) { o.shuffle_window = 9; }), HasSubstr("data.shuffle_window is 9"));
  EXPECT_THAT(refusal([](DataOptions& o) { o.buckets = 2; }), HasSubstr("data.buckets is 2"));
  EXPECT_THAT(refusal([](DataOptions& o) { o.on_corrupt = OnCorrupt::replace; }),
              HasSubstr("on_corrupt is \"replace\""));
  EXPECT_THAT(refusal([](DataOptions& o) {
                o.sampler = Sampler::weighted;
                o.weights.assign(kSamples, 1.0);
              }),
              HasSubstr("data.sampler is \"weighted\""));
}

TEST(GivenOrder, ASampleThatComesAgainIsDrawnAnew) {
  const auto draws = [](std::vector<std::int64_t> samples) {
    const GivenEpoch given{{std::move(samples)}, 0, 10, 4};
    std::vector<std::int64_t> all;
    for (std::int64_t i = 0; i < given.positions(); ++i) all.push_back(given.draws_of(i));
    return all;
  };
  EXPECT_THAT(draws({3, 1, 2}), ElementsAre(3, 1, 2));
  EXPECT_THAT(draws({3, 1, 3, 3, 1}), ElementsAre(3, 1, 13, 23, 11));
  Loader loader{boxes(), cropped(8, 1), 3, true, 0, [](std::int64_t) { return GivenOrder{{5, 5, 5, 5, 5, 5, 5, 5}}; }};
  auto epoch = loader.epoch(0);
  const auto batch = epoch.next();
  const std::span<const std::byte> rows = batch->field("image").bytes;
  std::set<std::uint64_t> images;
  for (std::size_t i = 0; i < 8; ++i) images.insert(xxh3(rows.subspan(i * rows.size() / 8, rows.size() / 8)));
  EXPECT_GT(images.size(), 4U);
}

// A sampler that draws from a generator may be asked where the loader stands, or may fail.
TEST(GivenOrder, IsAskedWithoutTheLoadersLockAndMayThrow) {
  std::unique_ptr<Loader> loader;
  bool fails = true;
  const auto give = [&](std::int64_t epoch) {
    EXPECT_EQ(loader->state().epoch, epoch);
    if (fails) fail(ErrorCode::io, "no order today");
    return thirds(epoch, 0);
  };
  loader = std::make_unique<Loader>(boxes(), cropped(4, 1), 3, true, 0, give);
  EXPECT_THAT(error_of(ErrorCode::io, [&] { loader->next_epoch(); }), HasSubstr("no order today"));
  fails = false;
  EXPECT_EQ(order(loader->next_epoch()), thirds(0, 0).samples);
}

}  // namespace
}  // namespace headrace
