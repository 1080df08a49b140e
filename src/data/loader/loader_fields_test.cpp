// Batches of samples that are more than an image and a label.
#include <headrace/loader.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "core/base/fail.h"
#include "data/loader/allocation_count.h"
#include "data/loader/testing.h"
#include "data/source/fields_source.h"

namespace headrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// An image, a class, a fixed vector, boxes, a mask whose two axes differ, a text and a number that some samples lack.
Schema detection() {
  return Schema{{{.name = "boxes", .dtype = DType::f32, .shape = {kRagged, 4}},
                 {.name = "image", .shape = {5, 4, 3}, .encoding = Encoding::image},
                 {.name = "labels", .dtype = DType::i64},
                 {.name = "tags", .dtype = DType::boolean, .shape = {9}},
                 {.name = "mask", .dtype = DType::i16, .shape = {kRagged, kRagged}},
                 {.name = "caption", .shape = {kRagged}, .encoding = Encoding::text, .optional = true},
                 {.name = "score", .dtype = DType::f64, .optional = true}}};
}

// Images come as the source has them.
DataOptions plain(std::int64_t batch_size, std::int64_t threads) {
  DataOptions options = options_of(batch_size, threads);
  options.transform.dtype = PixelType::u8;
  options.transform.layout = PixelLayout::nhwc;
  return options;
}

// One sample's part of a batch.
struct Part {
  std::vector<std::int64_t> shapes;  // Of a ragged field.
  std::vector<std::uint8_t> bytes;
  bool present = true;

  bool operator==(const Part&) const = default;
};

Part part_of(const BatchField& field, std::size_t i, std::size_t samples) {
  Part part;
  std::size_t begin = 0, count = field.bytes.size() / samples;
  if (field.is_ragged()) {
    const auto elements = static_cast<std::size_t>(field.offsets[samples]);
    const std::size_t element = elements == 0 ? 0 : field.bytes.size() / elements;
    begin = static_cast<std::size_t>(field.offsets[i]) * element;
    count = static_cast<std::size_t>(field.offsets[i + 1] - field.offsets[i]) * element;
    if (field.shapes.empty()) {
      part.shapes.assign(field.shape.begin(), field.shape.end());
      part.shapes[0] = field.offsets[i + 1] - field.offsets[i];
    } else {
      const std::size_t axes = field.shapes.size() / samples;
      const auto shape = field.shapes.subspan(i * axes, axes);
      part.shapes.assign(shape.begin(), shape.end());
    }
  } else {
    begin = i * count;
  }
  const auto bytes = field.bytes.subspan(begin, count);
  part.bytes.resize(count);
  std::transform(bytes.begin(), bytes.end(), part.bytes.begin(),
                 [](std::byte byte) { return std::to_integer<std::uint8_t>(byte); });
  if (!field.present.empty()) part.present = field.present[i] == 1;
  return part;
}

// What a plain loop makes of the source's sample.
Part expected(const FieldsSource& source, std::size_t position, std::int64_t index) {
  const Schema& schema = source.schema();
  const FieldSpec& field = schema[position];
  Payload payload;
  std::vector<std::uint8_t> buffer;
  source.fill(index, position, payload, buffer);
  Part part;
  part.present = payload.kind != Payload::Kind::absent;
  if (payload.kind == Payload::Kind::bytes) part.bytes.assign(payload.bytes.begin(), payload.bytes.end());
  if (payload.kind == Payload::Kind::value) {
    part.bytes.resize(payload.value_bytes);
    std::memcpy(part.bytes.data(), payload.value.data(), part.bytes.size());
  }
  if (field.is_ragged()) {
    const bool in_rows = std::count(field.shape.begin(), field.shape.end(), kRagged) == 1 && field.shape[0] == kRagged;
    part.shapes.assign(field.shape.size(), 0);
    if (part.present) std::copy(payload.shape().begin(), payload.shape().end(), part.shapes.begin());
    if (!part.present && in_rows) std::copy(field.shape.begin() + 1, field.shape.end(), part.shapes.begin() + 1);
  } else if (!part.present) {
    part.bytes.assign(static_cast<std::size_t>(field.bytes().value()), 0);
  }
  return part;
}

void expect_batch_of(const Batch& batch, const FieldsSource& source, const std::string& how) {
  const Schema& schema = source.schema();
  const auto samples = static_cast<std::size_t>(batch.size());
  ASSERT_EQ(batch.fields().size(), schema.size() + 1);
  for (std::size_t f = 0; f < schema.size(); ++f) {
    const BatchField& field = batch.field(f);
    ASSERT_EQ(field.name, schema[f].name);
    EXPECT_EQ(field.dtype, schema[f].dtype);
    EXPECT_EQ(field.is_ragged(), schema[f].is_ragged());
    EXPECT_EQ(std::accumulate(field.shape.begin(), field.shape.end(), bytes_of(field.dtype), std::multiplies<>()),
              std::ssize(field.bytes));
    for (std::size_t i = 0; i < samples; ++i) {
      const Part found = part_of(field, i, samples), wanted = expected(source, f, batch.sample_indices()[i]);
      ASSERT_EQ(found.shapes, wanted.shapes) << how << ", " << schema.text() << ", " << field.name << " of " << i;
      ASSERT_EQ(found.bytes, wanted.bytes) << how << ", " << schema.text() << ", " << field.name << " of " << i;
      ASSERT_EQ(found.present, wanted.present) << how << ", " << schema.text() << ", " << field.name << " of " << i;
    }
  }
}

TEST(LoaderFields, FortySchemasComeAsAPlainLoopGivesThem) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const auto source = std::make_shared<FieldsSource>(any_schema(seed), 53, seed % 4 == 0 ? 300 : 5);
    for (const std::int64_t threads : {0, 1, 7}) {
      DataOptions options = plain(8, threads);
      options.last_batch = std::array{LastBatch::keep, LastBatch::pad, LastBatch::drop}[seed % 3];
      if (!source->info().schema.image()) options.transform = {};
      Loader loader{source, options, seed, true};
      auto epoch = loader.epoch(0);
      std::int64_t samples = 0;
      while (const auto batch = epoch.next()) {
        expect_batch_of(*batch, *source, fmt::format("seed {}, {} threads", seed, threads));
        samples += batch->size();
      }
      EXPECT_EQ(samples, (std::array{53, 56, 48}[seed % 3]));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(LoaderFields, BytesAreTheSameForAnyThreads) {
  const auto source = std::make_shared<FieldsSource>(detection(), 300, 40);
  std::set<std::vector<std::uint64_t>> all;
  for (const std::int64_t threads : {0, 1, 7}) {
    Loader loader{source, plain(16, threads), 3, true};
    all.insert(digests(loader.epoch(0)));
    all.insert(digests(loader.epoch(0)));
  }
  EXPECT_EQ(all.size(), 1U);
}

using Samples = std::map<std::int64_t, std::vector<Part>>;  // The fields of each, by its index.

void add_samples(Epoch epoch, Samples& samples) {
  while (const auto batch = epoch.next()) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(batch->size()); ++i) {
      auto& parts = samples[batch->sample_indices()[i]];
      for (const BatchField& field : batch->fields()) {
        parts.push_back(part_of(field, i, static_cast<std::size_t>(batch->size())));
      }
    }
  }
}

// Of an epoch of 96 samples, all ranks'.
Samples samples_of(std::int64_t ranks, Cache cache) {
  const auto source = std::make_shared<FieldsSource>(detection(), 96, 40);
  Samples samples;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    DataOptions options = plain(24 / ranks, 2);
    options.world_size = ranks, options.rank = rank;
    options.cache = cache;
    Loader loader{source, options, 3, true};
    if (cache != Cache::none) digests(loader.epoch(0));  // Into the cache.
    add_samples(loader.epoch(1), samples);
    if (cache != Cache::none) {
      EXPECT_GT(loader.statistics().cache_hits, 0);
    }
  }
  return samples;
}

TEST(LoaderFields, RanksTogetherGiveOneRanksSamples) {
  const Samples alone = samples_of(1, Cache::none);
  EXPECT_EQ(alone.size(), 96U);
  EXPECT_EQ(samples_of(2, Cache::none), alone);
  EXPECT_EQ(samples_of(3, Cache::none), alone);
}

TEST(LoaderFields, RanksWithCachesGiveOneRanksSamplesWithout) {
  const Samples alone = samples_of(1, Cache::none);
  for (const std::int64_t ranks : {1, 2, 3}) EXPECT_EQ(samples_of(ranks, Cache::decoded), alone) << ranks << " ranks";
}

TEST(LoaderFields, GoesOnAtEveryTenthBatch) {
  const auto source = std::make_shared<FieldsSource>(detection(), 400, 40);
  Loader whole{source, plain(8, 2), 3, true};
  const auto all = digests(whole.epoch(0));
  ASSERT_EQ(all.size(), 50U);
  for (std::size_t at = 10; at < all.size(); at += 10) {
    Loader first{source, plain(8, 1), 3, true};
    LoaderState state;
    {
      auto epoch = first.epoch(0);
      for (std::size_t i = 0; i < at; ++i) EXPECT_TRUE(epoch.next().has_value());
      state = first.state();
    }
    EXPECT_THAT(state.options, HasSubstr("fields = boxes float32 (-1, 4); image"));
    Loader second{source, plain(8, 7), 3, true};
    second.restore(state);
    EXPECT_EQ(digests(second.next_epoch()),
              std::vector<std::uint64_t>(all.begin() + static_cast<std::ptrdiff_t>(at), all.end()));
  }
}

TEST(LoaderFields, AnAbsentFieldIsZeroAndTold) {
  const Schema schema{{{.name = "score", .dtype = DType::f64, .optional = true},
                       {.name = "boxes", .dtype = DType::f32, .shape = {kRagged, 4}, .optional = true}}};
  const auto source = std::make_shared<FieldsSource>(schema, 8);
  source->on_read = [](std::int64_t index, Sample& sample) {
    if (index == 3) sample.clear();
  };
  Loader loader{source, options_of(8, 1), 1, false};
  const auto batch = loader.epoch(0).next();
  const BatchField &score = batch->field("score"), &boxes = batch->field("boxes");
  ASSERT_EQ(score.present.size(), 8U);
  ASSERT_EQ(boxes.present.size(), 8U);
  EXPECT_EQ(score.present[3], 0);
  EXPECT_EQ(boxes.present[3], 0);
  EXPECT_TRUE(
      std::all_of(score.bytes.begin() + 24, score.bytes.begin() + 32, [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(boxes.offsets[4], boxes.offsets[3]);
  EXPECT_EQ(batch->valid()[3], 1);
}

TEST(LoaderFields, ABatchMayHaveNoBoxesAtAll) {
  const Schema schema{
      {{.name = "boxes", .dtype = DType::f32, .shape = {kRagged, 4}}, {.name = "x", .dtype = DType::u8}}};
  const auto source = std::make_shared<FieldsSource>(schema, 17, 0);
  Loader loader{source, options_of(8, 2), 1, true};
  auto epoch = loader.epoch(0);
  for (const std::int64_t size : {8, 8, 1}) {
    const auto batch = epoch.next();
    ASSERT_TRUE(batch.has_value());
    EXPECT_EQ(batch->size(), size);
    EXPECT_EQ(batch->field("boxes").shape, (Shape{0, 4}));
    EXPECT_TRUE(batch->field("boxes").is_ragged());
    EXPECT_EQ(std::ssize(batch->field("boxes").offsets), size + 1);
    EXPECT_TRUE(batch->field("boxes").bytes.empty());
  }
}

TEST(LoaderFields, ACorruptFieldIsNamedZeroedOrReplaced) {
  const auto source = std::make_shared<FieldsSource>(detection(), 64, 6);
  source->on_read = [](std::int64_t index, Sample& sample) {
    if (index == 5) sample[0].extents[1] = 5;  // Boxes of five numbers.
  };
  {
    Loader loader{source, plain(16, 2), 1, false};
    EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { digests(loader.epoch(0)); }),
                AllOf(HasSubstr("fields[5]: field boxes: float32 ("), HasSubstr("wanted float32 (-1, 4)")));
  }
  DataOptions options = plain(16, 2);
  options.on_corrupt = OnCorrupt::zero;
  {
    Loader loader{source, options, 1, false};
    const auto batch = loader.epoch(0).next();
    EXPECT_EQ(batch->valid()[5], 0);
    for (const BatchField& field : batch->fields()) {
      const Part part = part_of(field, 5, 16);
      if (field.name == "labels") continue;  // The source knows it without reading.
      EXPECT_TRUE(std::all_of(part.bytes.begin(), part.bytes.end(), [](std::uint8_t byte) { return byte == 0; }))
          << field.name;
      EXPECT_EQ(field.is_ragged() && !part.bytes.empty(), false) << field.name;
      EXPECT_EQ(part.present, field.present.empty()) << field.name;
    }
    for (const std::size_t i : {4U, 6U}) {
      EXPECT_EQ(part_of(batch->field("boxes"), i, 16), expected(*source, 0, static_cast<std::int64_t>(i)));
    }
    EXPECT_EQ(loader.corrupt_samples().size(), 1U);
  }
  options.on_corrupt = OnCorrupt::replace;
  Loader loader{source, options, 1, true};
  auto epoch = loader.epoch(0);
  while (const auto batch = epoch.next()) {
    EXPECT_EQ(std::count(batch->sample_indices().begin(), batch->sample_indices().end(), 5), 0);
    expect_batch_of(*batch, *source, "replaced");
  }
}

TEST(LoaderFields, AFieldThatASampleLacksIsNamed) {
  const auto source = std::make_shared<FieldsSource>(detection(), 64, 6);
  source->on_read = [](std::int64_t index, Sample& sample) {
    if (index == 9) sample[3].kind = Payload::Kind::absent;
  };
  Loader loader{source, plain(16, 1), 1, false};
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { digests(loader.epoch(0)); }),
              AllOf(HasSubstr("fields[9]: field tags: absent"), HasSubstr("not optional")));
}

TEST(LoaderFields, MoreThanTheMemoryLimitIsRefusedAndTheNextEpochRuns) {
  const Schema schema{{{.name = "points", .dtype = DType::f64, .shape = {kRagged, 3}}}};
  for (const std::int64_t threads : {0, 3}) {
    const auto source = std::make_shared<FieldsSource>(schema, 64, 3);
    std::vector<std::uint8_t> giant(std::size_t{24} << 20);
    bool gives_giant = true;
    source->on_read = [&](std::int64_t index, Sample& sample) {
      if (index == 21 && gives_giant) sample[0].set_bytes(giant, std::array<std::int64_t, 2>{1 << 20, 3});
    };
    Loader loader{source, options_of(16, threads), 1, false, std::int64_t{4} << 20};
    EXPECT_THAT(error_of(ErrorCode::out_of_memory, [&] { digests(loader.epoch(0)); }),
                AllOf(HasSubstr("fields[21]"), HasSubstr("25165824 bytes"), HasSubstr("batch 1")));
    gives_giant = false;
    EXPECT_EQ(order(loader.epoch(1)), counting(64));
    EXPECT_LE(loader.statistics().pool_bytes, std::int64_t{4} << 20);
  }
}

TEST(LoaderFields, ARefusalTellsWhatItsBatchHasWhileOthersAddToIt) {
  const Schema schema{{{.name = "points", .dtype = DType::f64, .shape = {kRagged, 3}}}};
  const auto source = std::make_shared<FieldsSource>(schema, 512, 3);
  const std::vector<std::uint8_t> giant(std::size_t{24} << 20);
  source->on_read = [&](std::int64_t index, Sample& sample) {
    if (index == 21) sample[0].set_bytes(giant, std::array<std::int64_t, 2>{1 << 20, 3});
  };
  for (int repeat = 0; repeat < 20; ++repeat) {  // Under the thread sanitizer.
    Loader loader{source, options_of(512, 4), 1, false, std::int64_t{4} << 20};
    EXPECT_THAT(error_of(ErrorCode::out_of_memory, [&] { digests(loader.epoch(0)); }),
                AllOf(HasSubstr("fields[21]"), HasSubstr("batch 0, which has ")));
  }
}

TEST(LoaderFields, MemoryThatIdleBatchesKeepIsGivenUpForOneThatNeedsIt) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  const Schema schema{{{.name = "points", .dtype = DType::u8, .shape = {kRagged}}}};
  const auto source = std::make_shared<FieldsSource>(schema, 3, 3);
  const std::vector<std::uint8_t> values(3 * kMiB);
  source->on_read = [&](std::int64_t index, Sample& sample) {
    const std::int64_t bytes = index < 2 ? kMiB : 3 * kMiB;
    sample[0].set_bytes(std::span{values}.first(static_cast<std::size_t>(bytes)), std::array{bytes});
  };
  Loader loader{source, options_of(1, 0), 1, false, 7 * kMiB};
  auto epoch = loader.epoch(0);
  {
    const auto first = epoch.next(), second = epoch.next();
    ASSERT_TRUE(first && second);
    EXPECT_GE(loader.statistics().pool_bytes, 4 * kMiB);  // Each value twice.
  }
  const auto third = epoch.next();
  ASSERT_TRUE(third);
  EXPECT_EQ(std::ssize(third->field("points").bytes), 3 * kMiB);
  EXPECT_LE(loader.statistics().pool_bytes, 7 * kMiB);
}

TEST(LoaderFields, ABatchThatOutlivesAnEvaluationLeavesNoMemoryBehind) {
  const Schema schema{{{.name = "points", .dtype = DType::f64, .shape = {kRagged, 3}}}};
  Loader loader{std::make_shared<FieldsSource>(schema, 32), options_of(8, 1), 1, false};
  std::optional<Batch> last;
  {
    auto epoch = loader.epoch(0);
    while (auto batch = epoch.next()) last = std::move(batch);
  }
  EXPECT_GT(loader.statistics().pool_bytes, 0);
  last.reset();
  EXPECT_EQ(loader.statistics().pool_bytes, 0);
}

// Memory in which nobody may read or write.
class ForbiddenBytes {
 public:
  explicit ForbiddenBytes(std::size_t size)
      : bytes_(::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)), size_(size) {
    HEADRACE_CHECK(bytes_ != MAP_FAILED, "no {} bytes of address space", size);
  }
  ~ForbiddenBytes() { ::munmap(bytes_, size_); }
  ForbiddenBytes(const ForbiddenBytes&) = delete;
  ForbiddenBytes& operator=(const ForbiddenBytes&) = delete;
  std::span<const std::uint8_t> bytes() const { return {static_cast<const std::uint8_t*>(bytes_), size_}; }

 private:
  void* const bytes_;
  const std::size_t size_;
};

TEST(LoaderFields, TenGigabytesAreRefusedBeforeTheyAreTouched) {
  const Schema schema{{{.name = "boxes", .dtype = DType::f32, .shape = {kRagged, 4}}}};
  constexpr std::size_t kGiB = std::size_t{1} << 30;
  const auto refusal = [&](ErrorCode code, std::size_t size) {
    const ForbiddenBytes giant{size};
    const auto source = std::make_shared<FieldsSource>(schema, 32);
    source->on_read = [&](std::int64_t index, Sample& sample) {
      if (index == 5)
        sample[0].set_bytes(giant.bytes(), std::array{static_cast<std::int64_t>(size / 16), std::int64_t{4}});
    };
    DataOptions options = options_of(8, 2);
    options.max_sample_bytes = kGiB;
    Loader loader{source, options, 1, false, std::int64_t{1} << 20};
    const std::string text = error_of(code, [&] { digests(loader.epoch(0)); });
    EXPECT_LE(loader.statistics().pool_bytes, std::int64_t{1} << 20);
    return text;
  };
  EXPECT_THAT(refusal(ErrorCode::unsupported, 10 * kGiB),
              AllOf(HasSubstr("fields[5]: field boxes: 10737418240 bytes"), HasSubstr("data.max_sample_bytes")));
  EXPECT_THAT(refusal(ErrorCode::out_of_memory, kGiB), AllOf(HasSubstr("fields[5]"), HasSubstr("1073741824 bytes"),
                                                             HasSubstr("the memory limit leaves no more")));
}

TEST(LoaderFields, LargeDenseFieldsAreReadOneAtATime) {
  const Schema schema{{{.name = "clip", .dtype = DType::u8, .shape = {512 << 10}}, {.name = "y", .dtype = DType::f32}}};
  const auto source = std::make_shared<FieldsSource>(schema, 16);
  std::set<const Sample*> read_into;  // Each has memory of its own.
  source->on_read = [&](std::int64_t, Sample& sample) { read_into.insert(&sample); };
  Loader loader{source, options_of(16, 0), 1, true};
  EXPECT_EQ(digests(loader.epoch(0)).size(), 1U);
  EXPECT_EQ(read_into.size(), 1U);
}

TEST(LoaderFields, OneLargeSampleDoesNotStayInMemory) {
  const Schema schema{{{.name = "points", .dtype = DType::f64, .shape = {kRagged, 3}}}};
  const auto source = std::make_shared<FieldsSource>(schema, 64, 30);
  const std::vector<std::uint8_t> large(std::size_t{24} << 20);
  bool gives_large = true;
  source->on_read = [&](std::int64_t index, Sample& sample) {
    if (index == 21 && gives_large) sample[0].set_bytes(large, std::array<std::int64_t, 2>{1 << 20, 3});
  };
  Loader loader{source, options_of(8, 2), 1, true};
  digests(loader.epoch(0));
  EXPECT_GT(loader.statistics().pool_bytes, std::ssize(large));
  gives_large = false;
  for (std::int64_t epoch = 1; epoch < 20; ++epoch) digests(loader.epoch(epoch));
  EXPECT_LT(loader.statistics().pool_bytes, std::int64_t{1} << 20);
}

TEST(LoaderFields, SteadyStateAllocatesOneHandleABatch) {
  const auto source = std::make_shared<FieldsSource>(detection(), 8 * 200, 30);
  for (const std::int64_t threads : {0, 1, 2}) {
    Loader loader{source, plain(8, threads), 1, true};
    for (std::int64_t i = 0; i < 5; ++i)
      EXPECT_EQ(order(loader.epoch(i)).size(), 8U * 200);  // Memory grows to the largest.
    auto epoch = loader.epoch(5);
    const std::int64_t more = allocations_of(epoch, 10, 150) - 150;
    // With threads a slot may meet its largest batch, or be taken at all, only now: once each, not once a batch.
    EXPECT_GE(more, 0) << threads << " threads";
    EXPECT_LE(more, threads == 0 ? 0 : 24) << threads << " threads";
  }
}

TEST(LoaderFields, ACacheKeepsAllFields) {
  std::vector<Schema> schemas{detection(), Schema{{{.name = "boxes", .dtype = DType::f32, .shape = {kRagged, 4}},
                                                   {.name = "labels", .dtype = DType::i64}}}};
  for (const Schema& schema : schemas) {
    const auto source = std::make_shared<FieldsSource>(schema, 100, 20);
    std::atomic<std::int64_t> reads{0};
    source->on_read = [&](std::int64_t, Sample&) { ++reads; };
    for (const Cache cache : {Cache::decoded, Cache::encoded}) {
      if (cache == Cache::encoded && schema.image()) continue;  // Pixels are no files.
      DataOptions options = plain(8, 2);
      if (!schema.image()) options.transform = {};
      Loader without{source, options, 3, true};
      options.cache = cache;
      Loader loader{source, options, 3, true};
      EXPECT_EQ(loader.applied_cache().reason, "");
      EXPECT_EQ(digests(loader.epoch(0)), digests(without.epoch(0)));
      reads = 0;
      const auto second = digests(loader.epoch(1));
      EXPECT_EQ(reads, 0) << schema.text();
      EXPECT_EQ(second, digests(without.epoch(1)));
      EXPECT_EQ(loader.statistics().cache_hits, 100);
    }
  }
}

TEST(LoaderFields, WhatNeedsAFieldThatIsNotThereIsRefusedByName) {
  const Schema schema{{{.name = "x", .dtype = DType::f32, .shape = {3}}, {.name = "labels", .dtype = DType::f32}}};
  const auto source = std::make_shared<FieldsSource>(schema, 64);
  const auto refusal = [&](const std::function<void(DataOptions&)>& change) {
    DataOptions options = options_of(8, 0);
    change(options);
    return error_of(ErrorCode::invalid_argument, [&] { Loader{source, options, 1, true}; });
  };
  EXPECT_THAT(refusal([](DataOptions& o) { o.transform.size = 24; }),
              AllOf(HasSubstr("data.transform.size is 24"), HasSubstr("x float32 (3)")));
  EXPECT_THAT(refusal([](DataOptions& o) { o.sampler = Sampler::class_balanced; }),
              AllOf(HasSubstr("class_balanced"), HasSubstr("labels float32 ()")));
  EXPECT_THAT(refusal([](DataOptions& o) { o.buckets = 2, o.bucket_by = BucketBy::shape; }),
              AllOf(HasSubstr("data.bucket_by"), HasSubstr("no image")));
  Loader loader{source, options_of(8, 0), 1, true};
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { static_cast<void>(loader.channels()); }),
              HasSubstr("no image"));
  EXPECT_TRUE(loader.transform_costs().empty());
  EXPECT_EQ(digests(loader.epoch(0)).size(), 8U);
  EXPECT_EQ(loader.explain().samples, 64);
}

}  // namespace
}  // namespace headrace
