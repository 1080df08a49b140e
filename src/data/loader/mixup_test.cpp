// An operation over whole batches, as a user would write one.
#include <headrace/loader.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "data/loader/allocation_count.h"
#include "data/loader/testing.h"
#include "data/source/fields_source.h"
#include "data/transform/plan.h"

namespace headrace {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;
using Floats = std::vector<float>;

// ---- The operation ----

// Each sample that counts is mixed with the one before it, the first with the last, and so are their targets.
class MixUp final : public Operation {
 public:
  std::string_view name() const noexcept override { return "MixUp"; }
  Over over() const noexcept override { return Over::batch; }
  std::vector<std::string> fields() const override { return {"target"}; }
  bool takes(DType dtype) const noexcept override { return dtype == DType::f32; }
  bool draws() const noexcept override { return true; }
  std::int64_t batch_min() const noexcept override { return 2; }
  void apply_batch(const BatchView& batch, SampleRandom& random) const override {
    const auto share = static_cast<float>(random.uniform());
    std::vector<std::size_t> counting;
    for (std::size_t i = 0; i < batch.valid.size(); ++i) {
      if (batch.valid[i] != 0) counting.push_back(i);
    }
    mix(batch.images, batch.valid.size(), counting, share);
    mix(batch.fields[0], batch.valid.size(), counting, share);
  }

 private:
  static void mix(std::span<std::byte> rows, std::size_t samples, const std::vector<std::size_t>& counting,
                  float share) {
    Floats values(rows.size() / sizeof(float));
    std::memcpy(values.data(), rows.data(), rows.size());
    const Floats before = values;
    const std::size_t row = values.size() / samples;
    for (std::size_t i = 0; i < counting.size(); ++i) {
      const std::size_t from = counting[(i + counting.size() - 1) % counting.size()] * row, to = counting[i] * row;
      for (std::size_t k = 0; k < row; ++k) values[to + k] = share * before[to + k] + (1 - share) * before[from + k];
    }
    std::memcpy(rows.data(), values.data(), rows.size());
  }
};

// ---- What it is tried on ----

constexpr std::int64_t kSamples = 40;
constexpr std::uint64_t kSeed = 7;

// Targets of whole numbers, which any bytes are not.
std::shared_ptr<const Source> targets_source(std::int64_t samples = kSamples) {
  auto source =
      std::make_shared<FieldsSource>(Schema{{{.name = "image", .shape = {3, 4, 3}, .encoding = Encoding::image},
                                             {.name = "target", .dtype = DType::f32, .shape = {6}}}},
                                     samples);
  source->on_read = [](std::int64_t, Sample& sample) {
    std::vector<std::uint8_t>& buffer = sample.buffer(1);
    for (std::size_t at = 0; at < 6 * sizeof(float); at += sizeof(float)) {
      const auto number = static_cast<float>(buffer[at]);
      std::memcpy(&buffer[at], &number, sizeof number);
    }
  };
  return source;
}

std::vector<std::shared_ptr<const Operation>> mixup_list(bool mixes = true) {
  const std::vector<TransformSpec> numbers{transforms::ToDtype{.dtype = "float32", .scale = true}};
  auto list = transform::operations_of(numbers);
  if (mixes) list.push_back(std::make_shared<MixUp>());
  return list;
}

Loader loader_of(const DataOptions& options, bool mixes = true, std::int64_t samples = kSamples) {
  return {targets_source(samples), options, kSeed, /*training=*/true, 0, nullptr, mixup_list(mixes)};
}

Floats floats_of(const BatchField& field) {
  Floats values(field.bytes.size() / sizeof(float));
  std::memcpy(values.data(), field.bytes.data(), field.bytes.size());
  return values;
}

// ---- Promises ----

TEST(MixUp, MixesEachSampleWithTheOneBefore) {
  Loader plain = loader_of(options_of(8, 0), false), mixing = loader_of(options_of(8, 0));
  Epoch before = plain.epoch(3), after = mixing.epoch(3);
  for (std::int64_t index = 0; index < 5; ++index) {
    const auto pure = before.next(), mixed = after.next();
    SampleRandom random{kSeed ^ transform::operation_key("MixUp", 0), 3, 8 * index};
    const auto share = static_cast<float>(random.uniform());
    for (const char* name : {"image", "target"}) {
      const Floats from = floats_of(pure->field(name)), found = floats_of(mixed->field(name));
      const std::size_t row = from.size() / 8;
      Floats wanted(from.size());
      for (std::size_t i = 0; i < from.size(); ++i) {
        wanted[i] = share * from[i] + (1 - share) * from[(i + from.size() - row) % from.size()];
      }
      EXPECT_THAT(found, ElementsAreArray(wanted));
    }
  }
  while (before.next()) {
  }
  while (after.next()) {
  }
}

TEST(MixUp, SameBytesForAnyThreadsAndAfterResume) {
  std::vector<std::uint64_t> wanted;
  for (const int threads : {0, 1, 7}) {
    Loader loader = loader_of(options_of(6, threads));
    const auto found = digests(loader.epoch(1));
    if (wanted.empty()) wanted = found;
    EXPECT_EQ(found, wanted) << threads << " threads";
    EXPECT_EQ(digests(loader.epoch(1, 4)), std::vector(wanted.begin() + 4, wanted.end()));
  }
}

// The ranks' batches taken in turns are those of one rank.
TEST(MixUp, SameBytesForAnyRanks) {
  const auto images_of = [](std::int64_t rank, std::int64_t ranks) {
    DataOptions options = options_of(5, 1);
    options.rank = rank, options.world_size = ranks;
    Loader loader = loader_of(options);
    std::vector<Floats> all;
    Epoch epoch = loader.epoch(0);
    while (const auto batch = epoch.next()) all.push_back(floats_of(batch->field("image")));
    return all;
  };
  const auto wanted = images_of(0, 1), first = images_of(0, 2), second = images_of(1, 2);
  ASSERT_EQ(wanted.size(), 8U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(first[i], wanted[2 * i]);
    EXPECT_EQ(second[i], wanted[2 * i + 1]);
  }
}

TEST(MixUp, RefusesABatchOfOne) {
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [] { loader_of(options_of(1, 0)); }),
            "data: MixUp over batches of 1; wanted data.batch_size of at least 2");
  EXPECT_EQ(
      error_of(ErrorCode::invalid_argument, [] { loader_of(options_of(4, 0), true, 9); }),
      "data: MixUp over batches, the last of an epoch of 1 sample; wanted at least 2, or data.last_batch = \"drop\"");
  DataOptions dropping = options_of(4, 0);
  dropping.last_batch = LastBatch::drop;
  EXPECT_EQ(loader_of(dropping, true, 9).batches_per_epoch(), 2);
}

TEST(MixUp, RefusesABatchOfOneOfAGivenOrderWhenItComes) {
  const auto nine = [](std::int64_t) { return GivenOrder{.samples = {0, 1, 2, 3, 4, 5, 6, 7, 8}}; };
  for (const int threads : {0, 3}) {
    Loader loader{targets_source(9), options_of(4, threads), kSeed, /*training=*/true, 0, nine, mixup_list(true)};
    Epoch epoch = loader.epoch(0);
    EXPECT_TRUE(epoch.next());
    EXPECT_TRUE(epoch.next());
    EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { epoch.next(); }),
              "data: MixUp over batch 2 of 1 sample; wanted at least 2: data.last_batch keeps what is left over");
  }
}

// Sets the last two bytes of each image to the sample's place in the batch.
class Marking final : public Operation {
 public:
  std::string_view name() const noexcept override { return "Marking"; }
  Over over() const noexcept override { return Over::batch; }
  bool takes(DType dtype) const noexcept override { return dtype == DType::bf16; }
  void apply_batch(const BatchView& batch, SampleRandom&) const override {
    for (std::int64_t i = 0; i < batch.size; ++i) {
      const auto place = static_cast<std::uint16_t>(i);
      const std::size_t end = static_cast<std::size_t>(i + 1) * batch.sample_bytes();
      std::memcpy(&batch.images[end - sizeof place], &place, sizeof place);
    }
  }
};

TEST(BatchView, TellsTheBytesOfASampleInTheBatch) {
  auto list =
      transform::operations_of(std::vector<TransformSpec>{transforms::ToDtype{.dtype = "bfloat16", .scale = true}});
  list.push_back(std::make_shared<Marking>());
  Loader loader{targets_source(), options_of(4, 0), kSeed, true, 0, nullptr, list};
  Epoch epoch = loader.epoch(0);
  while (const auto batch = epoch.next()) {
    const auto images = batch->field("image").bytes;
    ASSERT_EQ(images.size(), 4U * 3 * 4 * 3 * 2);
    for (std::uint16_t i = 0; i < 4; ++i) {
      EXPECT_EQ(std::memcmp(&images[(i + 1U) * (images.size() / 4) - sizeof i], &i, sizeof i), 0) << i;
    }
  }
}

// Changes a field and takes no memory.
class Shifting final : public Operation {
 public:
  std::string_view name() const noexcept override { return "Shifting"; }
  Over over() const noexcept override { return Over::batch; }
  std::vector<std::string> fields() const override { return {"target"}; }
  bool takes(DType dtype) const noexcept override { return dtype == DType::f32; }
  void apply_batch(const BatchView& batch, SampleRandom&) const override {
    std::memset(batch.fields[0].data(), 0, sizeof(float));
  }
};

TEST(MixUp, AnOperationOverBatchesTakesNoMemoryOfItsOwn) {
  auto list = mixup_list(false);
  list.push_back(std::make_shared<Shifting>());
  for (const int threads : {0, 2}) {
    Loader loader{targets_source(240), options_of(4, threads), kSeed, true, 0, nullptr, list};
    const auto allocations_of_50_batches = [&](std::int64_t index) {
      Epoch epoch = loader.epoch(index);
      return allocations_of(epoch, 5, 50);
    };
    // Each slot is taken for the first time some time. An allocation a batch would never end.
    std::int64_t found = 0;
    for (std::int64_t index = 0; index < 20 && found != 50; ++index) found = allocations_of_50_batches(index);
    EXPECT_EQ(found, 50) << threads << " threads";
  }
}

// Throws when it has let so many batches pass.
class TornMixUp final : public Operation {
 public:
  explicit TornMixUp(std::int64_t good) : good_(good) {}
  std::string_view name() const noexcept override { return "TornMixUp"; }
  Over over() const noexcept override { return Over::batch; }
  bool takes(DType dtype) const noexcept override { return dtype == DType::f32; }
  void apply_batch(const BatchView&, SampleRandom&) const override {
    if (seen_++ == good_) throw std::runtime_error("no share");
  }

 private:
  const std::int64_t good_;
  mutable std::atomic<std::int64_t> seen_ = 0;
};

TEST(MixUp, IsNamedWithItsBatchWhereItThrows) {
  auto list = mixup_list(false);
  list.push_back(std::make_shared<TornMixUp>(3));
  Loader loader{targets_source(), options_of(4, 0), kSeed, true, 0, nullptr, list};
  EXPECT_EQ(error_of(ErrorCode::internal, [&] { digests(loader.epoch(0)); }),
            "transform: TornMixUp over batch 3: no share");
}

TEST(MixUp, LeavesOutWhatDoesNotCount) {
  DataOptions options = options_of(8, 2);
  options.last_batch = LastBatch::pad;
  Loader plain = loader_of(options, false, 13), mixing = loader_of(options, true, 13);
  Epoch before = plain.epoch(0), after = mixing.epoch(0);
  static_cast<void>(before.next());
  static_cast<void>(after.next());
  const auto pure = before.next(), mixed = after.next();
  const Floats from = floats_of(pure->field("target")), found = floats_of(mixed->field("target"));
  EXPECT_EQ(mixed->field("valid").bytes[4], std::byte{1});
  EXPECT_EQ(mixed->field("valid").bytes[5], std::byte{0});
  EXPECT_TRUE(std::equal(from.begin() + 5 * 6, from.end(), found.begin() + 5 * 6));
  SampleRandom random{kSeed ^ transform::operation_key("MixUp", 0), 0, 8};
  const auto share = static_cast<float>(random.uniform());
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(found[i], share * from[i] + (1 - share) * from[4 * 6 + i]);
  EXPECT_FALSE(before.next());
  EXPECT_FALSE(after.next());
}

TEST(MixUp, ComesLastAndWantsNumbersAndAFieldOfOneShape) {
  auto list = mixup_list();
  list.push_back(make_operation(transforms::RandomHorizontalFlip{}));
  const auto refusal = [](std::vector<std::shared_ptr<const Operation>> operations, const Schema& schema) {
    return error_of(ErrorCode::invalid_argument, [&] {
      Loader(std::make_shared<FieldsSource>(schema, kSamples), options_of(4, 0), kSeed, true, 0, nullptr,
             std::move(operations));
    });
  };
  const Schema schema = targets_source()->info().schema;
  EXPECT_EQ(refusal(list, schema),
            "transform: RandomHorizontalFlip after MixUp, which works on whole batches; wanted it before");
  EXPECT_EQ(refusal({std::make_shared<MixUp>()}, schema),
            "transform: MixUp wants float32 or bfloat16, and gets uint8 of the source; put it behind ToDtype");
  const Schema ragged{{{.name = "image", .shape = {3, 4, 3}, .encoding = Encoding::image},
                       {.name = "target", .dtype = DType::f32, .shape = {kRagged}}}};
  EXPECT_THAT(refusal(mixup_list(), ragged),
              HasSubstr("data: MixUp wants field target of one shape in all samples; it is image uint8"));
}

}  // namespace
}  // namespace headrace
