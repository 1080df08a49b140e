// Sources that end where nobody knows before.
#include <headrace/loader.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "data/loader/allocation_count.h"
#include "data/loader/testing.h"
#include "data/source/fields_source.h"
#include "data/source/held_out.h"
#include "data/transform/plan.h"

namespace headrace {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::uint64_t kSeed = 3;
constexpr std::array kAllEnds{LastBatch::keep, LastBatch::drop, LastBatch::pad};

// The same samples as a FieldsSource, which tells their number only when one behind them is read.
class EndingSource final : public FieldsSource {
 public:
  EndingSource(Schema schema, std::int64_t samples, std::int64_t told = kUnknownSize)
      : FieldsSource(std::move(schema), samples), samples_(samples), told_(told) {}

  std::int64_t size() const override { return told_; }
  void read(std::int64_t index, Sample& sample) const override {
    if (index < samples_) return FieldsSource::read(index, sample);
    if (on_end) on_end();
    throw EndOfSamples(samples_);
  }
  void set_samples(std::int64_t samples) { samples_ = samples; }

  std::function<void()> on_end = {};

 private:
  std::int64_t samples_;
  std::int64_t told_;
};

// An image, boxes, a mask whose two axes differ, a class and a text that some samples lack.
Schema detection() {
  return Schema{{{.name = "boxes", .dtype = DType::f32, .shape = {kRagged, 4}},
                 {.name = "image", .shape = {5, 4, 3}, .encoding = Encoding::image},
                 {.name = "labels", .dtype = DType::i64},
                 {.name = "mask", .dtype = DType::i16, .shape = {kRagged, kRagged}},
                 {.name = "caption", .shape = {kRagged}, .encoding = Encoding::text, .optional = true}}};
}

// Without a ragged field.
Schema pairs() {
  return Schema{
      {{.name = "image", .shape = {5, 4, 3}, .encoding = Encoding::image}, {.name = "labels", .dtype = DType::i64}}};
}

DataOptions cropped(std::int64_t threads, LastBatch last_batch = LastBatch::keep) {
  DataOptions options = options_of(8, threads);
  options.shuffle = false;
  options.transform.pad = 2;
  options.transform.flip_probability = 0.5;
  options.last_batch = last_batch;
  return options;
}

std::shared_ptr<const Source> ending(std::int64_t samples, Schema schema = detection()) {
  return std::make_shared<EndingSource>(std::move(schema), samples);
}

std::vector<std::uint64_t> known_digests(const Schema& schema, std::int64_t samples, const DataOptions& options,
                                         std::int64_t epoch, bool training = true) {
  Loader loader{std::make_shared<FieldsSource>(schema, samples), options, kSeed, training};
  return digests(loader.epoch(epoch));
}

// ---- Batches ----

TEST(UnknownSize, BatchesAreThoseOfAKnownSize) {
  for (const Schema& schema : {detection(), pairs()}) {
    for (const std::int64_t samples : {8, 9, 53, 56}) {
      for (const LastBatch last_batch : kAllEnds) {
        const auto first = known_digests(schema, samples, cropped(0, last_batch), 0);
        const auto second = known_digests(schema, samples, cropped(0, last_batch), 1);
        for (const std::int64_t threads : {0, 1, 7}) {
          SCOPED_TRACE(fmt::format("{} samples, {}, {} threads", samples, choice_name(last_batch), threads));
          Loader loader{ending(samples, schema), cropped(threads, last_batch), kSeed, true};
          EXPECT_EQ(digests(loader.next_epoch()), first);
          EXPECT_EQ(digests(loader.next_epoch()), second);
          EXPECT_EQ(loader.statistics().batches, std::ssize(first) + std::ssize(second));
        }
      }
    }
  }
}

TEST(UnknownSize, AnEvaluationLeavesNothingOut) {
  for (const std::int64_t threads : {0, 3}) {
    Loader loader{ending(53), cropped(threads, LastBatch::drop), kSeed, false};
    EXPECT_EQ(digests(loader.epoch(0)), known_digests(detection(), 53, cropped(0), 0, false));
  }
}

TEST(UnknownSize, AFewSamplesAreOneBatch) {
  for (const std::int64_t threads : {0, 7}) {
    for (const LastBatch last_batch : {LastBatch::keep, LastBatch::pad}) {
      Loader loader{ending(1), cropped(threads, last_batch), kSeed, true};
      EXPECT_EQ(digests(loader.epoch(0)), known_digests(detection(), 1, cropped(0, last_batch), 0));
    }
  }
}

TEST(UnknownSize, GoesOnAtEveryBatch) {
  for (const LastBatch last_batch : kAllEnds) {
    const auto all = known_digests(detection(), 53, cropped(0, last_batch), 1);
    const auto next = known_digests(detection(), 53, cropped(0, last_batch), 2);
    for (std::size_t at = 0; at <= all.size(); ++at) {
      SCOPED_TRACE(fmt::format("{}, batch {}", choice_name(last_batch), at));
      Loader first{ending(53), cropped(7, last_batch), kSeed, true};
      LoaderState state;
      {
        auto epoch = first.epoch(1);
        for (std::size_t i = 0; i < at; ++i) EXPECT_TRUE(epoch.next().has_value());
        state = first.state();
      }
      EXPECT_EQ(state.epoch, 1);
      EXPECT_EQ(state.position, std::min<std::int64_t>(8 * static_cast<std::int64_t>(at), 53));
      Loader second{ending(53), cropped(static_cast<std::int64_t>(at % 3), last_batch), kSeed, true};
      second.restore(state);
      EXPECT_THAT(digests(second.next_epoch()),
                  ElementsAreArray(all.begin() + static_cast<std::ptrdiff_t>(at), all.end()));
      EXPECT_EQ(second.state().epoch, 2);
      EXPECT_EQ(second.state().position, 0);
      EXPECT_EQ(digests(second.next_epoch()), next);
    }
  }
}

TEST(UnknownSize, BeginsAtABatchOrBehindTheLast) {
  const auto all = known_digests(detection(), 53, cropped(0), 0);
  Loader loader{ending(53), cropped(2), kSeed, true};
  EXPECT_THAT(digests(loader.epoch(0, 5)), ElementsAreArray(all.begin() + 5, all.end()));
  EXPECT_THAT(digests(loader.epoch(0, 7)), IsEmpty());  // Seven batches are all, the last with 5 samples.
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { digests(loader.epoch(0, 8)); }),
              HasSubstr("epoch 0 ended after 53 samples; it was to go on at sample 64"));
  EXPECT_EQ(digests(loader.epoch(0)), all);
}

TEST(UnknownSize, RequestsEndWithNone) {
  for (const std::int64_t samples : {53, 56}) {
    const auto all = known_digests(detection(), samples, cropped(0), 0);
    for (const std::int64_t threads : {0, 1, 7}) {
      Loader loader{ending(samples), cropped(threads), kSeed, true};
      auto epoch = loader.next_epoch();
      std::vector<std::uint64_t> found;
      while (const auto batch = epoch.request().get()) found.push_back(digest(*batch));
      EXPECT_EQ(found, all);
      EXPECT_FALSE(epoch.request().get().has_value());
      EXPECT_EQ(loader.state().epoch, 1);
      EXPECT_EQ(loader.state().position, 0);
    }
  }
}

TEST(UnknownSize, ALastBatchThatWasAskedForBeforeItsEndWasKnownEndsTheEpoch) {
  for (const LastBatch last_batch : kAllEnds) {
    SCOPED_TRACE(choice_name(last_batch));
    const std::int64_t tail = last_batch == LastBatch::drop ? 40 : 48;  // Where the batch that waits begins.
    const std::int64_t end = last_batch == LastBatch::drop ? 48 : 53;
    const auto source = std::make_shared<EndingSource>(detection(), 53);
    std::atomic<bool> goes_on = false;
    source->on_read = [&](std::int64_t index, Sample&) {
      if (index >= tail) goes_on.wait(false);
    };
    Loader loader{source, cropped(1, last_batch), kSeed, true};
    auto epoch = loader.next_epoch();
    for (std::int64_t i = 0; i < tail / 8; ++i) EXPECT_TRUE(epoch.next().has_value());
    auto last = epoch.request();
    goes_on = true;
    goes_on.notify_all();
    EXPECT_EQ(last.get()->size(), last_batch == LastBatch::keep ? 5 : 8);
    EXPECT_EQ(loader.state().epoch, 0);
    EXPECT_EQ(loader.state().position, end);
    EXPECT_FALSE(epoch.request().get().has_value());
    EXPECT_EQ(loader.state().epoch, 1);
    EXPECT_EQ(loader.state().position, 0);
  }
}

TEST(UnknownSize, ARequestThatIsCancelledAtTheEndLeavesTheStateBeforeIt) {
  const auto source = std::make_shared<EndingSource>(detection(), 56);
  std::atomic<bool> goes_on = false;
  source->on_end = [&] { goes_on.wait(false); };
  Loader loader{source, cropped(1), kSeed, true};
  std::optional<Epoch> epoch{loader.next_epoch()};
  for (std::int64_t i = 0; i < 7; ++i) EXPECT_TRUE(epoch->next().has_value());
  auto asked = epoch->request();
  {
    const std::jthread other([&] {
      asked.wait();  // Until it is cancelled.
      goes_on = true;
      goes_on.notify_all();
    });
    epoch.reset();
  }
  EXPECT_THAT(error_of(ErrorCode::cancelled, [&] { asked.get(); }),
              HasSubstr("epoch 0 was left before the batch was ready"));
  EXPECT_EQ(loader.state().epoch, 0);
  EXPECT_EQ(loader.state().position, 56);
  Loader second{ending(56), cropped(2), kSeed, true};
  second.restore(loader.state());
  EXPECT_THAT(digests(second.next_epoch()), IsEmpty());
  EXPECT_EQ(second.state().epoch, 1);
}

TEST(UnknownSize, HasNoStateWhileABatchIsAskedFor) {
  const auto source = std::make_shared<EndingSource>(detection(), 53);
  std::atomic<bool> goes_on = false;
  source->on_read = [&](std::int64_t, Sample&) { goes_on.wait(false); };
  Loader loader{source, cropped(1), kSeed, true};
  auto epoch = loader.next_epoch();
  auto asked = epoch.request();
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { loader.state(); }), HasSubstr("while a batch is asked for"));
  goes_on = true;
  goes_on.notify_all();
  EXPECT_TRUE(asked.get().has_value());
  EXPECT_EQ(loader.state().position, 8);
}

TEST(UnknownSize, ThreadsMayChangeUpToTheEnd) {
  for (const LastBatch last_batch : kAllEnds) {
    const auto all = known_digests(detection(), 53, cropped(0, last_batch), 0);
    for (const std::int64_t first : {0, 1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{}, {} threads first", choice_name(last_batch), first));
      Loader loader{ending(53), cropped(7, last_batch), kSeed, true};
      auto epoch = loader.next_epoch();
      std::vector<std::uint64_t> found;
      for (std::int64_t threads = first;; ++threads) {
        auto asked = epoch.request();
        loader.set_num_workers(threads % 4);  // 0: this call loads what was asked for.
        const auto batch = asked.get();
        if (!batch) break;
        found.push_back(digest(*batch));
      }
      EXPECT_EQ(found, all);
      EXPECT_EQ(loader.state().epoch, 1);
    }
  }
}

TEST(UnknownSize, OutOfOrderEachSampleStillComesOnce) {
  DataOptions options = cropped(7);
  options.in_order = false;
  Loader loader{ending(53), options, kSeed, true};
  for (std::int64_t i = 0; i < 20; ++i) {
    auto samples = order(loader.next_epoch());
    std::sort(samples.begin(), samples.end());
    EXPECT_EQ(samples, counting(53));
  }
}

TEST(UnknownSize, AnEpochThatIsLeftEndsSoon) {
  Loader loader{ending(1'000'000'000), cropped(3), kSeed, true};
  {
    auto epoch = loader.next_epoch();
    EXPECT_TRUE(epoch.next().has_value());
  }
  { const auto epoch = loader.next_epoch(); }
  EXPECT_EQ(loader.next_epoch_index(), 2);
}

TEST(UnknownSize, SteadyStateAllocatesOneHandleABatch) {
  for (const std::int64_t threads : {0, 1, 2}) {
    Loader loader{ending(8 * 200, pairs()), cropped(threads), kSeed, true};
    for (std::int64_t i = 0; i < 3; ++i) EXPECT_EQ(order(loader.epoch(i)), counting(8 * 200));
    auto epoch = loader.epoch(3);
    const std::int64_t more = allocations_of(epoch, 10, 150) - 150;
    // With threads a slot may be taken, or a thread make its first samples, only now: once each, not once a batch.
    EXPECT_GE(more, 0) << threads << " threads";
    EXPECT_LE(more, threads == 0 ? 0 : 24) << threads << " threads";
  }
}

// ---- Operations over batches ----

// So that a batch tells how many it was made with.
class AddSize final : public Operation {
 public:
  std::string_view name() const noexcept override { return "AddSize"; }
  Over over() const noexcept override { return Over::batch; }
  bool takes(DType dtype) const noexcept override { return dtype == DType::f32; }
  void apply_batch(const BatchView& batch, SampleRandom& /*random*/) const override {
    for (std::size_t at = 0; at < batch.images.size(); at += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, &batch.images[at], sizeof value);
      value += static_cast<float>(batch.size);
      std::memcpy(&batch.images[at], &value, sizeof value);
    }
  }
};

std::vector<std::shared_ptr<const Operation>> with_size() {
  const std::vector<TransformSpec> numbers{transforms::ToDtype{.dtype = "float32", .scale = true}};
  auto list = transform::operations_of(numbers);
  list.push_back(std::make_shared<AddSize>());
  return list;
}

TEST(UnknownSize, OperationsOverBatchesSeeTheLastOneAsItIs) {
  for (const Schema& schema : {detection(), pairs()}) {
    for (const LastBatch last_batch : kAllEnds) {
      DataOptions options = options_of(8, 0);
      options.shuffle = false;
      options.last_batch = last_batch;
      Loader known{std::make_shared<FieldsSource>(schema, 53), options, kSeed, true, 0, nullptr, with_size()};
      const auto wanted = digests(known.epoch(0));
      for (const std::int64_t threads : {0, 7}) {
        options.num_workers = threads;
        Loader loader{ending(53, schema), options, kSeed, true, 0, nullptr, with_size()};
        EXPECT_EQ(digests(loader.epoch(0)), wanted) << choice_name(last_batch) << ", " << threads << " threads";
      }
    }
  }
}

// ---- Errors ----

TEST(UnknownSize, AnEpochWithoutSamplesOrBatchesIsAnError) {
  for (const std::int64_t threads : {0, 7}) {
    Loader empty{ending(0), cropped(threads), kSeed, true};
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { empty.next_epoch().next(); }),
                HasSubstr("epoch 0 has no samples: its source ended before the first"));
    Loader small{ending(7), cropped(threads, LastBatch::drop), kSeed, true};
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { small.next_epoch().next(); }),
                HasSubstr("no batch is left: 7 samples in epoch 0, batch_size 8"));
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { small.next_epoch().request().get(); }),
                HasSubstr("no batch is left: 7 samples in epoch 1"));
  }
}

TEST(UnknownSize, AFailureBeforeTheEndIsTold) {
  for (const std::int64_t threads : {0, 1, 7}) {
    for (const std::int64_t bad : {0, 47, 52}) {
      const auto source = std::make_shared<EndingSource>(detection(), 53);
      source->on_read = [bad](std::int64_t index, Sample&) {
        if (index == bad) fail(ErrorCode::corrupt_data, "fake: {} is unreadable", index);
      };
      Loader loader{source, cropped(threads), kSeed, true};
      auto epoch = loader.next_epoch();
      for (std::int64_t i = 0; i < bad / 8; ++i) EXPECT_TRUE(epoch.next().has_value());
      EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { epoch.next(); }),
                  HasSubstr(fmt::format("fake: {} is unreadable", bad)));
      EXPECT_FALSE(epoch.next().has_value());
    }
  }
}

TEST(UnknownSize, CorruptSamplesAreZeroedAsOfAKnownSize) {
  const auto spoil = [](FieldsSource& source, std::int64_t from) {
    source.on_read = [from](std::int64_t index, Sample& sample) {
      if (index >= from && index % 5 == 2) sample[1].kind = Payload::Kind::absent;
      if (from == 0) fail(ErrorCode::corrupt_data, "fake: all are");
    };
  };
  DataOptions options = cropped(0);
  options.on_corrupt = OnCorrupt::zero;
  const auto known = std::make_shared<FieldsSource>(detection(), 53);
  spoil(*known, 40);
  Loader of_known{known, options, kSeed, true};
  const auto wanted = digests(of_known.epoch(0));
  for (const std::int64_t threads : {0, 7}) {
    options.num_workers = threads;
    const auto source = std::make_shared<EndingSource>(detection(), 53);
    spoil(*source, 40);
    Loader loader{source, options, kSeed, true};
    EXPECT_EQ(digests(loader.epoch(0)), wanted);
    EXPECT_EQ(loader.statistics().corrupt, 3);
    spoil(*source, 0);
    auto epoch = loader.epoch(1);
    const auto take_all = [&] {
      while (epoch.next()) {
      }
    };
    EXPECT_THAT(error_of(ErrorCode::corrupt_data, take_all), HasSubstr("all 53 samples of epoch 1 are corrupt"));
  }
}

TEST(UnknownSize, ASourceThatContradictsItselfIsTold) {
  // Sample 50 is there and 40 is not.
  class Holed final : public Source {
   public:
    std::int64_t size() const override { return kUnknownSize; }
    const SourceInfo& info() const override { return inner_.info(); }
    std::string name(std::int64_t index) const override { return inner_.name(index); }
    void read(std::int64_t index, Sample& sample) const override {
      if (index == 41) throw EndOfSamples(40);
      inner_.read(index, sample);
    }

   private:
    const FieldsSource inner_{detection(), 1000};
  };
  Loader loader{std::make_shared<Holed>(), cropped(0), kSeed, true};
  auto epoch = loader.next_epoch();
  const auto take_all = [&] {
    while (epoch.next()) {
    }
  };
  EXPECT_THAT(error_of(ErrorCode::internal, take_all), HasSubstr("ended epoch 0 after 40 samples, and gave 41"));
}

TEST(UnknownSize, AnEndWhereASizeWasToldIsAnError) {
  const auto source = std::make_shared<EndingSource>(detection(), 53, /*told=*/60);
  for (const std::int64_t threads : {0, 7}) {
    DataOptions options = cropped(threads);
    options.on_corrupt = OnCorrupt::zero;
    Loader loader{source, options, kSeed, true};
    auto epoch = loader.next_epoch();
    for (std::int64_t i = 0; i < 6; ++i) EXPECT_TRUE(epoch.next().has_value());
    EXPECT_THAT(error_of(ErrorCode::internal, [&] { epoch.next(); }),
                HasSubstr("fields[53]: the source ended after 53 samples; wanted 60"));
  }
}

TEST(UnknownSize, AnEpochThatIsShorterThanWhereItGoesOnIsTold) {
  const auto source = std::make_shared<EndingSource>(detection(), 53);
  Loader loader{source, cropped(2), kSeed, true};
  loader.start_at(0, 3);
  source->set_samples(16);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { loader.next_epoch().next(); }),
              HasSubstr("epoch 0 ended after 16 samples; it was to go on at sample 24"));
}

TEST(UnknownSize, WhatWantsASizeIsRefusedByName) {
  const auto refusal = [](const auto& change, const OrderOfEpoch& order = nullptr) {
    DataOptions options = cropped(1);
    change(options);
    return error_of(ErrorCode::invalid_argument, [&] { Loader(ending(53), options, kSeed, true, 0, order); });
  };
  EXPECT_THAT(refusal([](DataOptions& o) { o.shuffle = true; }),
              HasSubstr("data.shuffle is true, and the source does not tell how many samples it has; wanted false"));
  EXPECT_THAT(refusal([](DataOptions& o) { o.world_size = 2; }), HasSubstr("data.world_size is 2"));
  EXPECT_THAT(refusal([](DataOptions& o) { o.cache = Cache::decoded; }), HasSubstr("data.cache is \"decoded\""));
  EXPECT_THAT(refusal([](DataOptions& o) { o.on_corrupt = OnCorrupt::replace; }),
              HasSubstr("data.on_corrupt is \"replace\""));
  EXPECT_THAT(refusal([](DataOptions& o) { o.buckets = 2; }), HasSubstr("data.buckets"));
  EXPECT_THAT(refusal([](DataOptions& o) { o.shuffle_window = 9; }), HasSubstr("data.shuffle_window"));
  EXPECT_THAT(refusal([](DataOptions&) {}, [](std::int64_t) { return GivenOrder{{0}}; }),
              HasSubstr("the order of each epoch is given"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [] { part_of(ending(53), 0.25, 1, Split::train); }),
              HasSubstr("data.val_fraction is 0.25, and the source does not tell"));
}

TEST(UnknownSize, NoNumberOfBatchesIsTold) {
  Loader loader{ending(53), cropped(1), kSeed, true};
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { loader.batches_per_epoch(); }),
              HasSubstr("how many batches an epoch has shows at its end"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { loader.set_cache(Cache::automatic); }),
              HasSubstr("data.cache is \"auto\""));
  EXPECT_THAT(loader.transform_costs(), IsEmpty());
  const auto epoch = loader.next_epoch();
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { static_cast<void>(epoch.batches()); }),
              HasSubstr("shows at its end"));
}

TEST(UnknownSize, ThreadsAndDepthAreFoundAsOfAKnownSize) {
  DataOptions options = cropped(AUTOTUNE);
  options.prefetch_batches = AUTOTUNE;
  Loader loader{ending(2000), options, kSeed, true};
  EXPECT_EQ(order(loader.next_epoch()), counting(2000));
  loader.set_num_workers(0);
  EXPECT_EQ(order(loader.next_epoch()), counting(2000));
  EXPECT_EQ(loader.statistics().samples, 4000);
}

}  // namespace
}  // namespace headrace
