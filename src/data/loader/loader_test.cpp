#include <headrace/loader.h>
#include <headrace/trace.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <new>
#include <numeric>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/base/hash.h"
#include "data/loader/allocation_count.h"
#include "data/loader/detail/latency.h"
#include "data/loader/testing.h"
#include "data/transform/normalize.h"

namespace {
std::atomic<std::int64_t> allocation_count{0}, allocated_now{0}, allocated_peak{0}, allocated_at_reset{0};
thread_local std::int64_t allocations_to_failure = 0;  // 0: there is none.

// Null when there is no memory.
void* counted_allocation(std::size_t size, std::size_t alignment) noexcept {
  if (allocations_to_failure > 0 && --allocations_to_failure == 0) return nullptr;
  void* memory = alignment == 0 ? std::malloc(size)
                                : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) return nullptr;
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  const auto usable = static_cast<std::int64_t>(malloc_usable_size(memory));
  const std::int64_t now = allocated_now.fetch_add(usable, std::memory_order_relaxed) + usable;
  std::int64_t peak = allocated_peak.load(std::memory_order_relaxed);
  while (now > peak && !allocated_peak.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
  return memory;
}

void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void counted_release(void* memory) noexcept {
  if (memory == nullptr) return;
  allocated_now.fetch_sub(static_cast<std::int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
  std::free(memory);
}
}  // namespace

// Of an exception that a future hands from thread to thread the last reference may go in either. libstdc++ counts them
// atomically, in code that ThreadSanitizer does not see, so that it takes the end for a race with what() before it.
extern "C" const char* __tsan_default_suppressions() {
  return "race:std::__exception_ptr::exception_ptr::_M_release\n";
}

// The array and sized forms call these.
void* operator new(std::size_t size) {
  return or_throw(counted_allocation(size, 0));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return counted_allocation(size, 0);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return or_throw(counted_allocation(size, static_cast<std::size_t>(alignment)));
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return counted_allocation(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  counted_release(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  counted_release(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  counted_release(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  counted_release(memory);
}

namespace headrace {

std::int64_t AllocationCount::allocations() {
  return allocation_count.load();
}
void AllocationCount::reset_peak() {
  allocated_at_reset = allocated_now.load();
  allocated_peak = allocated_now.load();
}
std::int64_t AllocationCount::peak_growth() {
  return allocated_peak.load() - allocated_at_reset.load();
}
void AllocationCount::fail_at(std::int64_t number) {
  allocations_to_failure = number;
}

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Images whose bytes tell their index, and a hook in read().
class FakeSource final : public Source, KnownSamples {
 public:
  explicit FakeSource(std::int64_t size, int height = 6, int width = 5, int channels = 3)
      : size_(size), height_(height), width_(width), channels_(channels) {
    pixels_.resize(static_cast<std::size_t>(size) * height * width * channels);
    for (std::size_t i = 0; i < pixels_.size(); ++i) pixels_[i] = static_cast<std::uint8_t>(i * 2654435761U >> 16);
    info_ = {.schema = Schema::image_and_labels(height, width, channels),
             .num_classes = 10,
             .fingerprint = xxh3(std::as_bytes(std::span{pixels_}))};
  }
  std::int64_t size() const override { return size_; }
  const SourceInfo& info() const override { return info_; }
  std::string name(std::int64_t index) const override { return fmt::format("fake[{}]", index); }
  Capabilities capabilities() const override { return {.known = this}; }
  std::int64_t label(std::int64_t index) const override { return index % 10; }
  void read(std::int64_t index, Sample& sample) const override {
    reads.fetch_add(1);
    if (on_read) on_read(index);
    sample.image().set_pixels(pixels(index), height_, width_, channels_);
    sample.set_label(label(index));
    if (change) change(index, sample);
  }
  std::span<const std::uint8_t> pixels(std::int64_t index) const {
    const auto bytes = static_cast<std::size_t>(height_ * width_ * channels_);
    return std::span{pixels_}.subspan(static_cast<std::size_t>(index) * bytes, bytes);
  }

  void lie_in_memory() { info_.in_memory = true; }

  mutable std::atomic<std::int64_t> reads{0};
  std::function<void(std::int64_t)> on_read;          // Set while no loader runs.
  std::function<void(std::int64_t, Sample&)> change;  // The same.

 private:
  std::int64_t size_;
  int height_, width_, channels_;
  std::vector<std::uint8_t> pixels_;
  SourceInfo info_;
};

DataOptions augmenting(DataOptions options) {
  options.transform = {.pad = 2, .flip_probability = 0.5, .mean = {0.4, 0.5, 0.6}, .std = {0.2}};
  return options;
}

// Of those that run. One that was joined may be listed for as long as the machine is busy, with PF_EXITING among its
// flags (proc(5)), which it has before anybody can have joined it.
std::int64_t thread_count() {
  constexpr std::int64_t kExiting = 0x4;
  std::int64_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator{"/proc/self/task"}) {
    std::ifstream file{task.path() / "stat"};
    std::string line, word;
    if (!std::getline(file, line)) continue;  // It is listed no more.
    std::istringstream words{line.substr(line.rfind(')') + 1)};
    std::int64_t flags = 0;
    for (int i = 0; i < 6; ++i) words >> word;
    words >> flags;
    count += (flags & kExiting) == 0 ? 1 : 0;
  }
  return count;
}

// One that was told to end may need a core for that.
bool thread_count_becomes(std::int64_t wanted) {
  for (int i = 0; i < 60'000 && thread_count() != wanted; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return thread_count() == wanted;
}

TEST(Loader, OrderAndBytesDoNotDependOnThreadsOrPrefetch) {
  const auto source = std::make_shared<FakeSource>(1003);
  std::vector<std::vector<std::uint64_t>> expected;
  for (const std::int64_t threads : {0, 1, 2, 7}) {
    for (const std::int64_t prefetch : {1, 5}) {
      Loader loader{source, augmenting(options_of(32, threads, prefetch)), 7, true};
      for (std::size_t epoch = 0; epoch < 3; ++epoch) {
        const auto found = digests(loader.epoch(static_cast<std::int64_t>(epoch)));
        ASSERT_EQ(found.size(), 32U);
        if (expected.size() == epoch) expected.push_back(found);
        EXPECT_EQ(found, expected[epoch]) << threads << " threads, prefetch " << prefetch << ", epoch " << epoch;
      }
    }
  }
  EXPECT_NE(expected[0], expected[1]);
  Loader other_seed{source, augmenting(options_of(32, 1)), 8, true};
  EXPECT_NE(digests(other_seed.epoch(0)), expected[0]);
}

// Of which a worker takes more samples at once than it reads together.
TEST(Loader, ASourceInMemoryGivesTheSameBytesInLargerChunks) {
  const auto torn = [](std::int64_t index, Sample& sample) {
    if (index % 97 == 40) sample.set_label(10);
  };
  const auto source = std::make_shared<FakeSource>(1003), in_memory = std::make_shared<FakeSource>(1003);
  in_memory->lie_in_memory();
  source->change = in_memory->change = torn;
  for (const OnCorrupt on_corrupt : {OnCorrupt::zero, OnCorrupt::replace}) {
    DataOptions options = augmenting(options_of(200, 0));
    options.on_corrupt = on_corrupt;
    Loader of_files{source, options, 7, true};
    const auto expected = digests(of_files.epoch(0));
    for (const std::int64_t threads : {0, 1, 2, 7}) {
      options.num_workers = threads;
      Loader loader{in_memory, options, 7, true};
      EXPECT_EQ(digests(loader.epoch(0)), expected) << choice_name(on_corrupt) << ", " << threads << " threads";
    }
  }
}

TEST(Loader, EverySampleComesOnceInANewOrderEachEpoch) {
  Loader loader{std::make_shared<FakeSource>(517), options_of(32, 2), 3, true};
  std::set<std::vector<std::int64_t>> orders;
  for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
    auto found = order(loader.epoch(epoch));
    orders.insert(found);
    std::sort(found.begin(), found.end());
    EXPECT_EQ(found, counting(517));
  }
  EXPECT_EQ(orders.size(), 4U);
}

TEST(Loader, WithoutShuffleOrTrainingSamplesComeInOrder) {
  const auto source = std::make_shared<FakeSource>(100);
  auto options = options_of(16, 2);
  Loader evaluation{source, options, 3, false};
  EXPECT_EQ(order(evaluation.epoch(0)), counting(100));
  EXPECT_EQ(order(evaluation.epoch(1)), counting(100));
  options.shuffle = false;
  Loader training{source, options, 3, true};
  EXPECT_EQ(order(training.epoch(5)), counting(100));
}

TEST(Loader, BytesAreTheNormalizedImageAndItsLabel) {
  const auto source = std::make_shared<FakeSource>(50);
  const auto options = augmenting(options_of(16, 2));
  const auto& transform = options.transform;
  const auto table = transform::make_normalize_table(transform.mean, transform.std, 3);
  Loader loader{source, options, 3, false};  // Evaluation: neither crop nor flip.
  EXPECT_EQ(loader.channels() * 100 + loader.height() * 10 + loader.width(), 365);
  auto epoch = loader.epoch(0);
  std::vector<float> image(90);
  std::int64_t samples = 0;
  while (const auto batch = epoch.next()) {
    const BatchField& images = batch->field("image");
    const BatchField& labels = batch->field("labels");
    EXPECT_THAT(images.shape, ElementsAre(batch->size(), 3, 6, 5));
    EXPECT_THAT(images.strides, ElementsAre(90, 30, 5, 1));
    EXPECT_THAT(labels.shape, ElementsAre(batch->size()));
    EXPECT_TRUE(images.dtype == DType::f32 && labels.dtype == DType::i64);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(images.bytes.data()) % 64, 0U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(labels.bytes.data()) % 64, 0U);
    ASSERT_EQ(images.bytes.size(), static_cast<std::size_t>(batch->size()) * 90 * sizeof(float));
    ASSERT_EQ(labels.bytes.size(), static_cast<std::size_t>(batch->size()) * sizeof(std::int64_t));
    const BatchField& valid = batch->field("valid");
    EXPECT_TRUE(valid.dtype == DType::u8);
    EXPECT_THAT(valid.shape, ElementsAre(batch->size()));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(valid.bytes.data()) % 64, 0U);
    ASSERT_EQ(valid.bytes.size(), static_cast<std::size_t>(batch->size()));
    EXPECT_THAT(valid.bytes, testing::Each(std::byte{1}));
    for (std::size_t i = 0; i < batch->sample_indices().size(); ++i, ++samples) {
      const std::int64_t index = batch->sample_indices()[i];
      transform::normalize(source->pixels(index), {6, 5, 3, 0, 0, false}, {PixelType::f32, PixelLayout::nchw, &table},
                           std::as_writable_bytes(std::span{image}));
      EXPECT_EQ(std::memcmp(images.bytes.data() + i * 90 * sizeof(float), image.data(), 90 * sizeof(float)), 0);
      std::int64_t label = -1;
      std::memcpy(&label, labels.bytes.data() + i * sizeof label, sizeof label);
      EXPECT_EQ(label, index % 10);
    }
  }
  EXPECT_EQ(samples, 50);
}

// Each training image is one of the 25 crops, flipped or not; over an epoch all of them occur.
TEST(Loader, TrainingDrawsEveryCropAndFlip) {
  const auto source = std::make_shared<FakeSource>(2000, 6, 5, 1);
  auto options = options_of(64, 2);
  options.transform.pad = 2;
  options.transform.flip_probability = 0.25;
  const auto table = transform::make_normalize_table(options.transform.mean, options.transform.std, 1);
  Loader loader{source, options, 3, true};
  std::map<std::tuple<int, int, bool>, int> seen;
  auto epoch = loader.epoch(0);
  std::vector<float> image(30);
  while (const auto batch = epoch.next()) {
    for (std::size_t i = 0; i < batch->sample_indices().size(); ++i) {
      const auto pixels = source->pixels(batch->sample_indices()[i]);
      for (int code = 0; code < 50; ++code) {
        const int y = code / 10 - 2, x = code / 2 % 5 - 2;
        transform::normalize(pixels, {6, 5, 1, y, x, code % 2 == 1}, {PixelType::f32, PixelLayout::nchw, &table},
                             std::as_writable_bytes(std::span{image}));
        const auto* found = batch->field("image").bytes.data() + i * 30 * sizeof(float);
        if (std::memcmp(found, image.data(), 30 * sizeof(float)) == 0) ++seen[{y, x, code % 2 == 1}];
      }
    }
  }
  EXPECT_EQ(seen.size(), 50U);
  int flipped = 0, all = 0;
  for (const auto& [geometry, count] : seen) {
    all += count;
    if (std::get<2>(geometry)) flipped += count;
  }
  EXPECT_EQ(all, 2000);
  EXPECT_NEAR(flipped, 500, 100);  // Five standard deviations.
}

TEST(Loader, ASampleIsDrawnAnewEachEpoch) {
  auto options = augmenting(options_of(64, 1));
  options.shuffle = false;
  Loader loader{std::make_shared<FakeSource>(64), options, 3, true};
  const auto image_bytes = [&](std::int64_t epoch) { return xxh3(loader.epoch(epoch).next()->field("image").bytes); };
  EXPECT_EQ(image_bytes(0), image_bytes(0));
  EXPECT_NE(image_bytes(0), image_bytes(1));
}

TEST(Loader, LastBatchIsKeptOrDroppedInTrainingAndKeptOtherwise) {
  const auto source = std::make_shared<FakeSource>(100);
  auto options = options_of(32, 1);
  const auto sizes = [](Loader& loader) {
    std::vector<std::int64_t> all;
    auto epoch = loader.epoch(0);
    EXPECT_EQ(epoch.batches(), loader.batches_per_epoch());
    while (const auto batch = epoch.next()) {
      EXPECT_EQ(batch->index(), std::ssize(all));
      all.push_back(batch->size());
    }
    EXPECT_EQ(std::ssize(all), loader.batches_per_epoch());
    return all;
  };
  Loader keep{source, options, 1, true};
  EXPECT_THAT(sizes(keep), ElementsAre(32, 32, 32, 4));
  options.last_batch = LastBatch::drop;
  Loader drop{source, options, 1, true};
  EXPECT_THAT(sizes(drop), ElementsAre(32, 32, 32));
  Loader evaluation{source, options, 1, false};
  EXPECT_THAT(sizes(evaluation), ElementsAre(32, 32, 32, 4));
  options.batch_size = 200;
  Loader small{source, options, 1, false};
  EXPECT_THAT(sizes(small), ElementsAre(100));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] {
                         Loader{source, options, 1, true};
                       }),
              AllOf(HasSubstr("100 samples"), HasSubstr("batch_size 200")));
}

TEST(Loader, ResumingAtABatchGivesTheTailOfTheEpoch) {
  const auto source = std::make_shared<FakeSource>(300);
  for (const std::int64_t threads : {0, 2}) {
    Loader loader{source, augmenting(options_of(32, threads)), 5, true};
    const auto whole = digests(loader.epoch(2));
    for (std::int64_t first = 0; first <= 10; ++first) {
      EXPECT_EQ(digests(loader.epoch(2, first)), (std::vector<std::uint64_t>{whole.begin() + first, whole.end()}));
    }
    EXPECT_EQ(loader.epoch(2, 7).batches(), 10);
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { loader.epoch(2, 11); }), HasSubstr("batch 11"));
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { loader.epoch(2, -1); }), HasSubstr("batch -1"));
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { loader.epoch(-1); }), HasSubstr("epoch -1"));
  }
}

TEST(Loader, RanksTakenInTurnsAreOneRank) {
  const auto source = std::make_shared<FakeSource>(1003);
  auto options = augmenting(options_of(16, 2));
  Loader alone{source, options, 7, true};
  std::vector<std::vector<std::uint64_t>> batches;
  {
    auto epoch = alone.epoch(1);
    while (const auto batch = epoch.next()) batches.push_back(sample_digests(*batch));
  }
  ASSERT_EQ(batches.size(), 63U);
  for (const std::int64_t ranks : {2, 3}) {
    std::vector<std::uint64_t> found;
    options.world_size = ranks;
    const std::int64_t reads_before = source->reads;
    for (options.rank = 0; options.rank < ranks; ++options.rank) {
      Loader part{source, options, 7, true};
      auto epoch = part.epoch(1);
      const std::int64_t whole = 1003 / (16 * ranks);
      for (std::int64_t step = 0; step < whole; ++step) {
        EXPECT_EQ(sample_digests(epoch.next().value()), batches[static_cast<std::size_t>(step * ranks + options.rank)]);
      }
      while (const auto batch = epoch.next()) {  // What is left over is assigned in equal parts.
        const auto samples = sample_digests(*batch);
        found.insert(found.end(), samples.begin(), samples.end());
      }
    }
    std::vector<std::uint64_t> rest;
    for (std::size_t i = static_cast<std::size_t>(1003 / (16 * ranks) * ranks); i < batches.size(); ++i) {
      rest.insert(rest.end(), batches[i].begin(), batches[i].end());
    }
    EXPECT_EQ(found, rest);
    EXPECT_LE(source->reads - reads_before, 1003 + ranks);  // No rank reads what is another's.
  }
}

TEST(Loader, PaddingFillsTheLastBatchWithSamplesThatDoNotCount) {
  auto options = options_of(32, 2);
  options.last_batch = LastBatch::pad;
  for (const bool training : {true, false}) {
    Loader loader{std::make_shared<FakeSource>(70), options, 3, training};
    auto epoch = loader.epoch(0);
    std::vector<std::int64_t> counted, all;
    while (const auto batch = epoch.next()) {
      EXPECT_EQ(batch->size(), 32);
      for (std::size_t i = 0; i < 32; ++i) {
        all.push_back(batch->sample_indices()[i]);
        if (batch->field("valid").bytes[i] == std::byte{1}) counted.push_back(all.back());
      }
    }
    ASSERT_EQ(all.size(), 96U);
    EXPECT_TRUE(std::equal(counted.begin(), counted.end(), all.begin()));
    EXPECT_TRUE(std::equal(all.begin() + 70, all.end(), all.begin()));  // From the epoch's beginning.
    std::sort(counted.begin(), counted.end());
    EXPECT_EQ(counted, counting(70));
  }
}

TEST(Loader, ASampleThatIsDrawnTwiceIsAugmentedAnew) {
  auto options = augmenting(options_of(64, 1));
  options.sampler = Sampler::weighted;
  options.weights.assign(64, 0.0);
  options.weights[5] = 1;
  Loader loader{std::make_shared<FakeSource>(64), options, 3, true};
  const auto found = sample_digests(loader.epoch(0));
  EXPECT_EQ(order(loader.epoch(0)), std::vector<std::int64_t>(64, 5));
  EXPECT_GT((std::set<std::uint64_t>{found.begin(), found.end()}).size(), 20U);  // Of 25 crops, flipped or not.
  EXPECT_EQ(sample_digests(loader.epoch(0)), found);
}

TEST(Loader, OptionsOfTheOrderThatContradictAreRefusedByName) {
  const auto source = std::make_shared<FakeSource>(100);
  const auto refusal = [&](const std::function<void(DataOptions&)>& change) {
    auto options = options_of(16, 0);
    change(options);
    return error_of(ErrorCode::invalid_argument, [&] { Loader{source, options, 1, true}; });
  };
  EXPECT_THAT(refusal([](DataOptions& o) { o.rank = 1; }), HasSubstr("data.rank is 1 and data.world_size is 1"));
  EXPECT_THAT(refusal([](DataOptions& o) { o.sampler = Sampler::weighted; }), HasSubstr("data.weights is missing"));
  EXPECT_THAT(refusal([](DataOptions& o) { o.weights = {1}; }), HasSubstr("data.weights has no effect"));
  EXPECT_THAT(refusal([](DataOptions& o) {
                o.sampler = Sampler::class_balanced;
                o.shuffle = false;
              }),
              HasSubstr("data.shuffle is false"));
  EXPECT_THAT(refusal([](DataOptions& o) { o.buckets = o.shuffle_window = 8; }), HasSubstr("data.shuffle_window"));
  EXPECT_THAT(refusal([](DataOptions& o) {
                o.buckets = 8;
                o.shuffle = false;
              }),
              HasSubstr("data.buckets"));
  EXPECT_THAT(refusal([](DataOptions& o) {
                o.world_size = 7;
                o.last_batch = LastBatch::drop;
              }),
              HasSubstr("no batch is left: 100 samples, batch_size 16 on each of 7 ranks"));
}

// ---- State ----

std::vector<std::uint64_t> from(const std::vector<std::uint64_t>& samples, std::int64_t begin) {
  return {samples.begin() + begin, samples.end()};
}

TEST(LoaderState, AnEpochGoesOnAnywhereWithAnyNumberOfThreads) {
  const auto source = std::make_shared<FakeSource>(300);
  const DataOptions shuffled = augmenting(options_of(32, 2));
  DataOptions drawn = shuffled, windowed = shuffled;
  drawn.sampler = Sampler::class_balanced;
  windowed.shuffle_window = 50;
  for (const DataOptions& options : {shuffled, drawn, windowed}) {
    Loader whole{source, options, 5, true};
    const auto expected = sample_digests(whole.epoch(3)), next = sample_digests(whole.epoch(4));
    for (std::int64_t stop = 0; stop <= 10; ++stop) {
      LoaderState state;
      {
        Loader loader{source, options, 5, true};
        auto epoch = loader.epoch(3);
        for (std::int64_t i = 0; i < stop; ++i) ASSERT_TRUE(epoch.next().has_value());
        state = loader.state();
      }
      const bool ended = stop == 10;
      EXPECT_EQ(state.epoch, ended ? 4 : 3);
      EXPECT_EQ(state.position, ended ? 0 : stop * 32);
      for (const std::int64_t threads : {0, 1, 7}) {
        auto other = options;
        other.num_workers = threads;
        other.prefetch_batches = 1 + threads;
        Loader loader{source, other, 5, true};
        loader.restore(state);
        EXPECT_EQ(loader.state().position, state.position);
        EXPECT_EQ(sample_digests(loader.next_epoch()), ended ? next : from(expected, stop * 32));
        EXPECT_TRUE(ended || sample_digests(loader.next_epoch()) == next);
      }
    }
  }
}

TEST(LoaderState, RanksMayChangeInTheMiddleOfAnEpoch) {
  const auto source = std::make_shared<FakeSource>(500);
  auto options = augmenting(options_of(16, 1));
  Loader alone{source, options, 5, true};
  const auto expected = sample_digests(alone.epoch(2));
  options.world_size = 2;
  LoaderState state;
  for (options.rank = 0; options.rank < 2; ++options.rank) {
    Loader loader{source, options, 5, true};
    auto epoch = loader.epoch(2);
    for (int i = 0; i < 3; ++i) epoch.next();
    const LoaderState of_rank = loader.state();
    EXPECT_EQ(of_rank.position, 3 * 2 * 16);
    EXPECT_TRUE(options.rank == 0 || of_rank.position == state.position);
    state = of_rank;
  }
  options.rank = 0;
  for (const std::int64_t ranks : {1, 3, 4}) {  // 96 samples are no whole step of 4 ranks' 64.
    std::vector<std::uint64_t> found;
    options.world_size = ranks;
    for (options.rank = 0; options.rank < ranks; ++options.rank) {
      Loader loader{source, options, 5, true};
      loader.restore(state);
      const auto part = sample_digests(loader.next_epoch());
      found.insert(found.end(), part.begin(), part.end());
    }
    auto rest = from(expected, 96);
    EXPECT_EQ(std::multiset<std::uint64_t>(found.begin(), found.end()),
              std::multiset<std::uint64_t>(rest.begin(), rest.end()));
    EXPECT_TRUE(ranks > 1 || found == rest);
    options.rank = 0;
  }
  options.world_size = 1;
  options.batch_size = 32;  // The same step.
  Loader larger{source, options, 5, true};
  larger.restore(state);
  EXPECT_EQ(sample_digests(larger.next_epoch()), from(expected, 96));
}

TEST(LoaderState, AStateOfAnotherLoaderIsRefusedByName) {
  const auto source = std::make_shared<FakeSource>(300);
  auto options = options_of(32, 1);
  const LoaderState state = Loader{source, options, 5, true}.state();
  EXPECT_LE(sizeof(LoaderState) - sizeof(std::string), 64U);
  const auto refusal = [&](std::shared_ptr<const Source> data, DataOptions other, std::uint64_t seed, bool training) {
    Loader loader{std::move(data), std::move(other), seed, training};
    return error_of(ErrorCode::invalid_argument, [&] { loader.restore(state); });
  };
  EXPECT_THAT(refusal(source, options, 6, true), HasSubstr("seed 5, this one has 6"));
  EXPECT_THAT(refusal(std::make_shared<FakeSource>(301), options, 5, true), HasSubstr("of other data"));
  EXPECT_THAT(refusal(source, options, 5, false), HasSubstr("training true, this one has false"));
  auto changed = options;
  changed.batch_size = 16;
  EXPECT_THAT(refusal(source, changed, 5, true), HasSubstr("batch_size 32 and world_size 1, this one has 16 and 1"));
  changed.world_size = 2;
  Loader halves{source, changed, 5, true};
  halves.restore(state);
  changed = options;
  changed.transform.pad = 2;
  EXPECT_THAT(refusal(source, changed, 5, true), HasSubstr("data.transform.pad 0, this one has 2"));
  changed = options;
  changed.last_batch = LastBatch::pad;
  EXPECT_THAT(refusal(source, changed, 5, true), HasSubstr("data.last_batch \"keep\""));
  changed = options;
  changed.num_workers = 3;
  changed.prefetch_batches = 7;
  changed.source = "idx:/moved";
  Loader moved{source, changed, 5, true};
  moved.restore(state);
  LoaderState damaged = state;
  damaged.position = 301;
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { moved.restore(damaged); }),
              HasSubstr("sample 301 of epoch 0"));
  damaged = state;
  damaged.options = "garbage";
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { moved.restore(damaged); }), HasSubstr("garbage"));
  damaged.options = state.options + "data.unknown = 1\n";
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { moved.restore(damaged); }), HasSubstr("data.unknown"));
}

TEST(LoaderState, TheNextEpochFollowsTheOneBegunLast) {
  Loader loader{std::make_shared<FakeSource>(64), options_of(16, 1), 5, true};
  EXPECT_EQ(loader.next_epoch().next()->epoch(), 0);  // Left after a batch.
  EXPECT_EQ(loader.state().epoch * 1000 + loader.state().position, 16);
  EXPECT_EQ(loader.next_epoch().next()->epoch(), 1);
  loader.start_at(7, 2);
  EXPECT_EQ(loader.state().epoch * 1000 + loader.state().position, 7032);
  auto epoch = loader.next_epoch();
  EXPECT_EQ(epoch.next()->index(), 2);
  EXPECT_EQ(epoch.next()->index(), 3);
  EXPECT_FALSE(epoch.next().has_value());
  EXPECT_EQ(loader.state().epoch * 1000 + loader.state().position, 8000);
  loader.start_at(3, 4);
  EXPECT_EQ(loader.next_epoch().next()->epoch(), 4);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { loader.start_at(0, 5); }),
              HasSubstr("batch 5 of an epoch of 4"));
}

// ---- Requests ----

bool is_ready(const BatchFuture& future) {
  return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

TEST(LoaderRequest, GivesTheBatchesOfNextWhileTheCallerDoesOtherThings) {
  const auto source = std::make_shared<FakeSource>(200);
  Loader reference{source, augmenting(options_of(32, 0)), 7, true};
  const auto expected = digests(reference.epoch(1));
  for (const std::int64_t threads : {0, 1, 3}) {
    Loader loader{source, augmenting(options_of(32, threads)), 7, true};
    auto epoch = loader.epoch(1);
    std::vector<std::uint64_t> found;
    while (true) {
      auto future = epoch.request();
      EXPECT_TRUE(threads > 0 || is_ready(future));  // Without workers it was loaded by the call.
      const auto batch = future.get();
      if (!batch) break;
      found.push_back(digest(*batch));
    }
    EXPECT_EQ(found, expected);
    EXPECT_EQ(loader.state().epoch, 2);
    EXPECT_EQ(loader.statistics().batches, 7);
  }
}

// A source whose reads wait until they are let go.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;

  void pass() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return open; });
  }
  void let_go() {
    {
      std::lock_guard lock(mutex);
      open = true;
    }
    changed.notify_all();
  }
};

TEST(LoaderRequest, ReturnsBeforeTheBatchIsReady) {
  const auto source = std::make_shared<FakeSource>(64);
  Gate gate;
  source->on_read = [&](std::int64_t) { gate.pass(); };
  Loader loader{source, options_of(32, 1), 7, true};
  auto epoch = loader.epoch(0);
  auto future = epoch.request();
  EXPECT_FALSE(is_ready(future));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { epoch.request(); }), HasSubstr("another request is open"));
  gate.let_go();
  EXPECT_EQ(future.get()->index(), 0);
  EXPECT_EQ(epoch.next()->index(), 1);
}

TEST(Loader, GrowingAgainDoesNotWaitForAThreadThatHangsWhereItWasToEnd) {
  const auto source = std::make_shared<FakeSource>(64);
  Gate gate;
  source->on_read = [&](std::int64_t) { gate.pass(); };
  auto options = options_of(8, AUTOTUNE, 4);
  options.num_workers_max = 4;
  Loader loader{source, options, 7, true};
  const std::int64_t others = thread_count() - 1;
  loader.set_num_workers(3);
  auto epoch = loader.epoch(0);
  while (source->reads < 3) std::this_thread::yield();
  loader.set_num_workers(AUTOTUNE);  // Goes on with the one that it had; two are to end after their reads.
  EXPECT_EQ(loader.statistics().num_workers, 1);
  auto growing = std::async(std::launch::async, [&] { loader.set_num_workers(4); });
  EXPECT_EQ(growing.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  gate.let_go();
  growing.get();
  EXPECT_EQ(loader.statistics().num_workers, 4);
  EXPECT_TRUE(thread_count_becomes(others + 4));
  EXPECT_EQ(order(std::move(epoch)).size(), 64U);
}

TEST(LoaderRequest, OnlyTheTimeBlockedInTheFutureIsWaiting) {
  const auto source = std::make_shared<FakeSource>(4);
  Gate gate;
  source->on_read = [&](std::int64_t) { gate.pass(); };
  Loader loader{source, options_of(1, 1), 7, true};
  auto epoch = loader.epoch(0);
  auto future = epoch.request();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // It has other things to do.
  gate.let_go();
  while (!is_ready(future)) std::this_thread::yield();
  EXPECT_TRUE(future.get());
  EXPECT_EQ(loader.statistics().wait_for_batch_ns, 0);
  EXPECT_GE(loader.statistics().latency_ns_p50.value(), 19'000'000);  // From asking to readiness, told within 4 %.
  EXPECT_TRUE(epoch.request().get());
  EXPECT_GE(loader.statistics().consumer_busy_ns, 20'000'000);
}

TEST(LoaderRequest, TimeBlockedInTheFutureIsNotTheConsumersOwn) {
  const auto source = std::make_shared<FakeSource>(8);
  source->on_read = [](std::int64_t) { std::this_thread::sleep_for(std::chrono::milliseconds(10)); };
  Loader loader{source, options_of(1, 1, 1), 7, true};
  const auto begin = std::chrono::steady_clock::now();
  auto epoch = loader.epoch(0);
  while (epoch.request().get()) {
  }
  const std::chrono::nanoseconds taken = std::chrono::steady_clock::now() - begin;
  const LoaderStatistics found = loader.statistics();
  EXPECT_GT(found.wait_for_batch_ns, 0);
  EXPECT_LE(found.wait_for_batch_ns + found.consumer_busy_ns, taken.count());
}

TEST(LoaderRequest, AnErrorComesOutOfTheFutureAndEndsTheEpoch) {
  const auto source = std::make_shared<FakeSource>(200);
  source->on_read = [](std::int64_t index) {
    if (index == 40) fail(ErrorCode::corrupt_data, "fake: fake[40]: unreadable");
  };
  for (const std::int64_t threads : {0, 1, 3}) {
    Loader loader{source, options_of(32, threads), 7, false};
    auto epoch = loader.epoch(0);
    EXPECT_EQ(epoch.request().get()->index(), 0);
    auto future = epoch.request();
    EXPECT_EQ(error_of(ErrorCode::corrupt_data, [&] { future.get(); }), "fake: fake[40]: unreadable");
    EXPECT_FALSE(epoch.next().has_value());
    EXPECT_FALSE(epoch.request().get().has_value());
    EXPECT_EQ(loader.epoch(1).next()->index(), 0);
  }
}

TEST(LoaderRequest, IsCancelledWhenItsEpochIsLeft) {
  const auto source = std::make_shared<FakeSource>(64);
  Gate gate;
  source->on_read = [&](std::int64_t) { gate.pass(); };
  Loader loader{source, options_of(32, 1), 7, true};
  std::jthread waiting;
  {
    auto epoch = loader.epoch(0);
    waiting = std::jthread([&gate, future = epoch.request()]() mutable {
      EXPECT_THAT(error_of(ErrorCode::cancelled, [&] { future.get(); }), HasSubstr("epoch 0 was left"));
      gate.let_go();  // Until now the worker could not finish its sample.
    });
  }
  waiting.join();
  EXPECT_EQ(order(loader.epoch(1)).size(), 64U);
}

TEST(LoaderRequest, IsFulfilledByWhoeverTakesTheLastWorkerAway) {
  const auto source = std::make_shared<FakeSource>(64);
  Gate gate;
  std::atomic<int> reads = 0;
  source->on_read = [&](std::int64_t) {
    if (++reads == 1) gate.pass();
  };
  Loader loader{source, options_of(32, 1), 7, true};
  auto epoch = loader.epoch(0);
  auto future = epoch.request();
  std::jthread other([&] { loader.set_num_workers(0); });
  gate.let_go();
  EXPECT_EQ(future.get()->index(), 0);
  other.join();
  EXPECT_EQ(epoch.request().get()->index(), 1);
  EXPECT_FALSE(epoch.request().get().has_value());
}

TEST(Loader, RefusesOptionsThatDoNotFit) {
  const auto source = std::make_shared<FakeSource>(100, 6, 5, 1);
  const auto refusal = [&](DataOptions options) {
    return error_of(ErrorCode::invalid_argument, [&] { Loader{source, options, 1, true}; });
  };
  auto options = options_of(32, 1);
  options.transform.mean = {0.1, 0.2, 0.3};
  EXPECT_THAT(refusal(options), HasSubstr("mean has 3 values, the images have 1 channel"));
  options.transform.mean = {0.1};
  options.transform.std = {};
  EXPECT_THAT(refusal(options), HasSubstr("std has 0 values"));
  options = options_of(32, 1);
  options.transform.crop = Crop::random;
  EXPECT_THAT(refusal(options), HasSubstr("data.transform.crop, resize, scale and ratio need a size"));
  EXPECT_THAT(refusal(options_of(0, 1)), HasSubstr("data.batch_size"));
  EXPECT_THAT(refusal(options_of(32, -2)), HasSubstr("data.num_workers"));
  EXPECT_THAT(refusal(options_of(32, 1, 0)), HasSubstr("data.prefetch_batches"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] {
                         Loader{nullptr, options_of(32, 1), 1, true};
                       }),
              HasSubstr("without a source"));
  const auto empty = std::make_shared<FakeSource>(0);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] {
                         Loader{empty, options_of(32, 1), 1, true};
                       }),
              HasSubstr("no samples"));

  Loader loader{source, options_of(32, 1), 1, true};
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { loader.set_num_workers(257); }),
              HasSubstr("data.num_workers"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { loader.set_prefetch_batches(0); }),
              HasSubstr("data.prefetch_batches"));
  EXPECT_EQ(order(loader.epoch(0)).size(), 100U);
}

TEST(Loader, APoolThatDoesNotFitTheLimitIsRefusedWithBothNumbers) {
  const auto source = std::make_shared<FakeSource>(100);
  const auto options = options_of(32, 1, 2);
  std::int64_t bytes = 0;
  {
    Loader loader{source, options, 1, true};
    bytes = loader.statistics().pool_bytes;
    EXPECT_EQ(bytes, 4 * loader.statistics().batch_bytes);
    EXPECT_GE(loader.statistics().batch_bytes, 32 * (90 * 4 + 8));
  }
  Loader fits{source, options, 1, true, bytes};
  EXPECT_EQ(order(fits.epoch(0)).size(), 100U);
  EXPECT_THAT(error_of(ErrorCode::out_of_memory,
                       [&] {
                         Loader{source, options, 1, true, bytes - 1};
                       }),
              AllOf(HasSubstr(std::to_string(bytes)), HasSubstr(std::to_string(bytes - 1))));
  EXPECT_THAT(error_of(ErrorCode::out_of_memory, [&] { fits.set_prefetch_batches(3); }), HasSubstr("memory limit"));
  EXPECT_EQ(order(fits.epoch(1)).size(), 100U);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { Loader{source, options, 1, true, -1}; }), HasSubstr("-1"));
}

TEST(Loader, AFailingSampleIsRethrownByNameAfterTheBatchesBeforeIt) {
  const auto source = std::make_shared<FakeSource>(1000);
  std::atomic<bool> broken = true;
  source->on_read = [&](std::int64_t index) {
    if (broken && index == 137) fail(ErrorCode::corrupt_data, "fake: fake[137]: unreadable");
  };
  for (const std::int64_t threads : {0, 1, 7}) {
    Loader loader{source, options_of(32, threads), 1, false};
    broken = true;
    auto epoch = loader.epoch(0);
    for (std::int64_t i = 0; i < 4; ++i) ASSERT_EQ(epoch.next().value().index(), i);  // 137 lies in batch 4.
    EXPECT_EQ(error_of(ErrorCode::corrupt_data, [&] { epoch.next(); }), "fake: fake[137]: unreadable");
    EXPECT_FALSE(epoch.next().has_value());
    broken = false;
    EXPECT_EQ(order(loader.epoch(1)), counting(1000));  // At once, while the old one is still alive.
    EXPECT_FALSE(epoch.next().has_value());
  }
}

TEST(Loader, TheFirstFailureInTheOrderOfTheDataIsToldWhateverTheThreads) {
  // A chunk has 13 samples here: 201 lies in the first one of its batch, 205 begins the second.
  for (const std::int64_t slow : {201, 205}) {
    const auto source = std::make_shared<FakeSource>(1000);
    source->on_read = [&](std::int64_t index) {
      if (index == slow) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // The other fails before it.
      if (index >= 201) throw std::runtime_error("disk on fire");
    };
    Loader loader{source, options_of(64, 7, 3), 1, false};
    for (std::int64_t i = 0; i < 20; ++i) {
      auto epoch = loader.epoch(i);
      for (int batch = 0; batch < 3; ++batch) ASSERT_TRUE(epoch.next().has_value());
      EXPECT_EQ(error_of(ErrorCode::internal, [&] { epoch.next(); }), "data: fake[201]: disk on fire");
    }
  }
}

TEST(Loader, ASampleThatIsNotWhatItsSourcePromisedIsNamed) {
  const auto source = std::make_shared<FakeSource>(100);
  Loader loader{source, options_of(32, 2), 1, false};
  const auto message_with = [&](std::function<void(Sample&)> damage) {
    source->change = [damage = std::move(damage)](std::int64_t index, Sample& sample) {
      if (index == 40) damage(sample);
    };
    auto epoch = loader.epoch(0);
    EXPECT_TRUE(epoch.next().has_value());
    return error_of(ErrorCode::corrupt_data, [&] { epoch.next(); });
  };
  EXPECT_THAT(message_with([](Sample& s) { s.set_label(10); }), HasSubstr("fake[40]: label 10; wanted 0 to 9"));
  EXPECT_THAT(message_with([](Sample& s) { s.set_label(-1); }), HasSubstr("fake[40]: label -1"));
  EXPECT_THAT(message_with([](Sample& s) { s[0].extents[1] = 6; }), HasSubstr("fake[40]: 6 x 6 pixels"));
  EXPECT_THAT(message_with([](Sample& s) { s[0].bytes = s[0].bytes.first(89); }), HasSubstr("fake[40]: 89 bytes"));
  EXPECT_THAT(message_with([](Sample& s) { s[1] = Payload::of_number(std::int32_t{3}); }),
              HasSubstr("fake[40]: field labels: a number of 4 bytes; wanted 8, of int64"));
  EXPECT_THAT(message_with([](Sample& s) { s.clear(); }), HasSubstr("fake[40]: field image: absent"));
}

TEST(Loader, ALabelMayLieInMemoryAsWell) {
  const std::array<std::int64_t, 10> numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto source = std::make_shared<FakeSource>(20);
  source->change = [&numbers](std::int64_t index, Sample& sample) {
    const auto* const at = reinterpret_cast<const std::uint8_t*>(&numbers[static_cast<std::size_t>(index % 10)]);
    sample[1] = Payload::of_bytes({at, sizeof(std::int64_t)}, {});
  };
  Loader changed{source, options_of(8, 0), 1, true}, plain{std::make_shared<FakeSource>(20), options_of(8, 0), 1, true};
  EXPECT_EQ(digests(changed.epoch(0)), digests(plain.epoch(0)));
}

// A source of one's own that leaves a field out must not get the one of the sample before.
TEST(Loader, AFieldThatReadLeavesOutIsNotThatOfAnEarlierSample) {
  class LeavesOut final : public Source {
   public:
    std::int64_t size() const override { return 64; }
    const SourceInfo& info() const override { return info_; }
    std::string name(std::int64_t index) const override { return fmt::format("left[{}]", index); }
    void read(std::int64_t index, Sample& sample) const override {
      sample[0] = Payload::of_pixels(pixel_, 1, 1, 1);
      if (index != 40) sample[1] = Payload::of_number(std::int64_t{0});
    }

   private:
    const std::array<std::uint8_t, 1> pixel_{7};
    const SourceInfo info_{.schema = Schema::image_and_labels(1, 1, 1), .num_classes = 10};
  };
  Loader loader{std::make_shared<LeavesOut>(), options_of(16, 0), 1, false};
  auto epoch = loader.epoch(0);
  EXPECT_TRUE(epoch.next().has_value());
  EXPECT_TRUE(epoch.next().has_value());
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { epoch.next(); }), HasSubstr("left[40]: field labels: absent"));
}

TEST(Loader, LeavingEarlyWaitsForNoBatchAndLeavesNobodyReading) {
  constexpr std::int64_t kRounds = 20;
  const auto source = std::make_shared<FakeSource>(10000);
  std::atomic<bool> is_gone = false;
  std::atomic<std::int64_t> reads_afterwards = 0;
  source->on_read = [&](std::int64_t) {
    if (is_gone) ++reads_afterwards;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  Loader loader{source, options_of(32, 3, 32), 1, true};
  for (std::int64_t i = 0; i < kRounds; ++i) {
    is_gone = false;
    {
      auto epoch = loader.epoch(i);
      for (int batch = 0; batch < 3; ++batch) ASSERT_TRUE(epoch.next().has_value());
    }
    is_gone = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(reads_afterwards, 0);
  // Three batches, and what three threads have begun meanwhile, which is more where this thread waits for a core; the
  // window holds 32.
  EXPECT_LT(source->reads, kRounds * (3 + 12) * 32);
}

TEST(Loader, LeavingEarlyReturnsThreadsAndMemory) {
  const auto source = std::make_shared<FakeSource>(10000);
  std::jthread([] {}).join();  // The thread sanitizer starts a thread of its own with the first one of ours.
  const std::int64_t threads_before = thread_count();
  {
    Loader loader{source, options_of(32, 3, 4), 1, true};
    const std::int64_t threads = thread_count();
    EXPECT_EQ(threads, threads_before + 3);
    const std::int64_t bytes = loader.statistics().pool_bytes;
    AllocationCount::reset_peak();
    for (std::int64_t i = 0; i < 200; ++i) {
      auto epoch = loader.epoch(i);
      for (int batch = 0; batch < 3; ++batch) ASSERT_TRUE(epoch.next().has_value());
    }
    EXPECT_EQ(thread_count(), threads);
    EXPECT_EQ(loader.statistics().pool_bytes, bytes);
    EXPECT_LT(AllocationCount::peak_growth(), 64 << 10);  // Handles and passes, not batches.
    EXPECT_LT(source->reads, 200 * (3 + 4 + 1) * 32);     // Not the 10,000 of a whole epoch.
    EXPECT_EQ(order(loader.epoch(0)).size(), 10000U);
  }
  EXPECT_TRUE(thread_count_becomes(threads_before));
  for (std::int64_t i = 0; i < 50; ++i) {
    Loader loader{source, options_of(32, 3, 4), 1, true};
    auto epoch = loader.epoch(i);
    if (i % 2 == 0) epoch.next();
  }
  EXPECT_TRUE(thread_count_becomes(threads_before));
}

TEST(Loader, ThreadsThatWereStartedAreCounted) {
  Loader loader{std::make_shared<FakeSource>(64), options_of(8, 3), 1, true};
  EXPECT_EQ(loader.statistics().workers_started, 3);
  for (int epoch = 0; epoch < 2; ++epoch) digests(loader.epoch(epoch));
  EXPECT_EQ(loader.statistics().workers_started, 3);
  loader.set_num_workers(0);
  loader.set_num_workers(3);
  EXPECT_EQ(loader.statistics().workers_started, 6);
  loader.renew_workers();
  EXPECT_EQ(loader.statistics().workers_started, 9);
  EXPECT_EQ(loader.statistics().num_workers, 3);
}

TEST(Loader, BetweenItsEpochsAnEvaluationHoldsNoBatchesButThoseThatAreKept) {
  const auto source = std::make_shared<FakeSource>(64);
  for (const bool training : {false, true}) {
    Loader loader{source, options_of(8, 2), 1, training};
    std::optional<Batch> kept;
    for (int pass = 0; pass < 2; ++pass) {
      auto epoch = loader.epoch(0);
      kept = epoch.next();
      while (epoch.next()) {
      }
    }
    const LoaderStatistics after = loader.statistics();
    EXPECT_EQ(after.pool_bytes > after.batch_bytes, training);
    EXPECT_GE(after.pool_bytes, after.batch_bytes);  // The one that is kept.
    EXPECT_EQ(kept->size(), 8);
  }
}

TEST(Loader, LeavingEarlyDoesNotWaitForTheRestOfAChunk) {
  const auto source = std::make_shared<FakeSource>(128);
  Gate gate;
  source->on_read = [&](std::int64_t) { gate.pass(); };
  Loader loader{source, options_of(64, 1), 1, true};
  std::jthread told;
  {
    auto epoch = loader.epoch(0);
    told = std::jthread([&gate, future = epoch.request()]() mutable {
      error_of(ErrorCode::cancelled, [&] { future.get(); });
      gate.let_go();  // The epoch is given up by now.
    });
    while (source->reads == 0) std::this_thread::yield();
  }
  EXPECT_EQ(source->reads, 1);  // Of a chunk of 16.
}

TEST(Loader, ThreadsAndPrefetchChangeWithinAnEpochWithoutChangingAByte) {
  const auto source = std::make_shared<FakeSource>(3000);
  Loader reference{source, augmenting(options_of(32, 0)), 9, true};
  const auto expected = digests(reference.epoch(0));
  Loader loader{source, augmenting(options_of(32, 1)), 9, true};
  const std::vector<std::int64_t> threads{7, 0, 2, 1, 0, 0, 3, 5, 1};
  const std::vector<std::int64_t> prefetch{1, 5, 2, 9, 1};
  for (int round = 0; round < 5; ++round) {
    std::vector<std::uint64_t> found;
    auto epoch = loader.epoch(0);
    while (const auto batch = epoch.next()) {
      found.push_back(digest(*batch));
      loader.set_num_workers(threads[found.size() % threads.size()]);
      if (found.size() % 2 == 0) loader.set_prefetch_batches(prefetch[found.size() / 2 % prefetch.size()]);
    }
    ASSERT_EQ(found, expected);
  }
}

TEST(Loader, AConsumerThatWaitsLoadsByItselfWhenItsThreadsAreTakenAway) {
  const auto source = std::make_shared<FakeSource>(300);
  std::atomic<bool> first_read = false;
  source->on_read = [&](std::int64_t) {
    first_read = true;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  };
  Loader loader{source, options_of(300, 2, 1), 1, false};
  std::jthread other([&] {
    while (!first_read) std::this_thread::yield();
    loader.set_num_workers(0);
  });
  EXPECT_EQ(order(loader.epoch(0)), counting(300));
}

TEST(Loader, AThreadThatCannotBeHadLeavesThoseThereWereAtWork) {
  const auto source = std::make_shared<FakeSource>(200);
  Loader reference{source, augmenting(options_of(8, 0)), 7, true};
  int refused = 0;
  bool grew = false;
  for (std::int64_t failing = 1; !grew; ++failing) {
    Loader loader{source, augmenting(options_of(8, 1)), 7, true};
    auto epoch = loader.epoch(0);
    AllocationCount::fail_at(failing);
    try {
      loader.set_num_workers(3);
      grew = true;
    } catch (const Error& error) {
      ++refused;
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("loader thread"), HasSubstr(" of 3")));
    } catch (const std::bad_alloc&) {  // Before any thread was asked for.
    }
    AllocationCount::fail_at(0);
    EXPECT_EQ(loader.statistics().num_workers, grew ? 3 : 1);
    EXPECT_EQ(digests(std::move(epoch)), digests(reference.epoch(0)));
    loader.set_num_workers(2);
    EXPECT_EQ(digests(loader.epoch(1)), digests(reference.epoch(1)));
  }
  EXPECT_GE(refused, 4);  // Each thread takes some memory.
}

TEST(Loader, OutOfOrderABatchComesAsSoonAsItIsWhole) {
  for (const bool requests : {false, true}) {
    const auto source = std::make_shared<FakeSource>(44);
    Gate gate;
    source->on_read = [&](std::int64_t index) {
      if (index == 0) gate.pass();
    };
    auto options = options_of(4, 2, 3);
    options.shuffle = options.in_order = false;
    Loader loader{source, options, 7, true};
    auto epoch = loader.epoch(0);
    const auto next = [&] { return requests ? epoch.request().get() : epoch.next(); };
    std::vector<std::int64_t> found;
    std::vector<std::uint64_t> bytes;
    for (std::int64_t i = 0; i < epoch.batches(); ++i) {
      if (i == epoch.batches() - 1) gate.let_go();  // All others have come by then.
      const auto batch = next();
      ASSERT_TRUE(batch);
      found.push_back(batch->index());
      bytes.push_back(digest(*batch));
      if (i + 1 < epoch.batches()) {
        EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { loader.state(); }), HasSubstr("data.in_order"));
      }
    }
    EXPECT_FALSE(next());
    EXPECT_EQ(found.back(), 0);
    EXPECT_EQ(loader.state().epoch, 1);  // Between epochs there is one.
    options.in_order = true;
    Loader reference{source, options, 7, true};
    EXPECT_THAT(bytes, testing::UnorderedElementsAreArray(digests(reference.epoch(0))));
  }
}

TEST(Loader, SamplesOfAnyDurationComeInOrderOrOutOfItButEachOnce) {
  const auto source = std::make_shared<FakeSource>(500);
  source->on_read = [](std::int64_t index) {
    std::this_thread::sleep_for(std::chrono::microseconds(index * 7919 % 401));
  };
  for (const bool in_order : {true, false}) {
    auto options = options_of(1, 8, 16);
    options.shuffle = false;
    options.in_order = in_order;
    Loader loader{source, options, 7, true};
    std::vector<std::int64_t> found = order(loader.epoch(0));
    if (!in_order) std::sort(found.begin(), found.end());
    EXPECT_EQ(found, counting(500));
  }
}

TEST(Loader, OutOfOrderAFailureComesAfterTheBatchesThatWereWhole) {
  const auto source = std::make_shared<FakeSource>(64);
  source->on_read = [](std::int64_t index) {
    if (index == 37) fail(ErrorCode::io, "sample 37 is gone");
  };
  auto options = options_of(4, 3, 4);
  options.shuffle = options.in_order = false;
  Loader loader{source, options, 7, true};
  for (int round = 0; round < 20; ++round) {
    auto epoch = loader.epoch(round);
    std::set<std::int64_t> found;
    const std::string told = error_of(ErrorCode::io, [&] {
      while (const auto batch = epoch.next()) EXPECT_TRUE(found.insert(batch->index()).second);
    });
    EXPECT_THAT(told, HasSubstr("37"));
    EXPECT_EQ(found.count(9), 0U);
  }
}

TEST(Loader, ASlowConsumerBoundsProduction) {
  for (const std::int64_t prefetch : {1, 3}) {
    const auto source = std::make_shared<FakeSource>(3200);
    std::atomic<std::int64_t> delivered = 0;
    std::atomic<std::int64_t> ahead_max = 0;
    source->on_read = [&](std::int64_t index) {
      const std::int64_t ahead = index / 32 + 1 - delivered;
      if (ahead > ahead_max) ahead_max = ahead;  // An exact maximum is not needed: the bound is what counts.
    };
    Loader loader{source, options_of(32, 2, prefetch), 1, false};
    auto epoch = loader.epoch(0);
    for (int batch = 0; batch < 20; ++batch) {
      // Counted just before it is delivered, which makes room for the next.
      ++delivered;
      ASSERT_TRUE(epoch.next().has_value());
      const std::int64_t full = (delivered + prefetch) * 32;
      while (source->reads < full) std::this_thread::yield();  // The window does fill up ...
      const bool is_last = prefetch == 3 && batch == 19;       // A long pause, once.
      std::this_thread::sleep_for(std::chrono::milliseconds(is_last ? 5000 : 1));
      EXPECT_EQ(source->reads, full);  // ... and no further.
    }
    EXPECT_LE(ahead_max, prefetch);
  }
}

TEST(Loader, ABatchMayOutliveItsLoader) {
  const auto source = std::make_shared<FakeSource>(100);
  std::vector<Batch> kept;
  std::vector<std::uint64_t> expected;
  {
    Loader loader{source, options_of(16, 2), 1, true};
    auto epoch = loader.epoch(0);
    while (auto batch = epoch.next()) {
      expected.push_back(digest(*batch));
      kept.push_back(*batch);
    }
  }
  ASSERT_EQ(kept.size(), 7U);
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(digest(kept[i]), expected[i]);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { kept[0].field("images"); }),
              AllOf(HasSubstr("'images'"), HasSubstr("image, labels, valid")));
}

TEST(Loader, ACallerThatKeepsBatchesMakesThePoolGrowAndShrinkAgain) {
  const auto source = std::make_shared<FakeSource>(1000);
  for (const std::int64_t threads : {0, 2}) {
    Loader loader{source, options_of(50, threads), 1, true};
    const std::int64_t bytes = loader.statistics().pool_bytes;
    {
      std::vector<Batch> kept;
      auto epoch = loader.epoch(0);
      while (auto batch = epoch.next()) kept.push_back(std::move(*batch));
      EXPECT_EQ(kept.size(), 20U);
      EXPECT_GE(loader.statistics().pool_bytes, 20 * loader.statistics().batch_bytes);
    }
    EXPECT_EQ(loader.statistics().pool_bytes, bytes);
  }
}

TEST(Loader, ACallerThatKeepsMoreThanTheLimitGetsAnErrorAndCanGoOn) {
  const auto source = std::make_shared<FakeSource>(1000);
  for (const std::int64_t threads : {0, 2}) {
    const std::int64_t batch_bytes = Loader{source, options_of(50, 0), 1, true}.statistics().batch_bytes;
    Loader loader{source, options_of(50, threads), 1, true, 8 * batch_bytes};
    {
      std::vector<Batch> kept;
      auto epoch = loader.epoch(0);
      const auto keep_all = [&] {
        while (auto batch = epoch.next()) kept.push_back(std::move(*batch));
      };
      EXPECT_THAT(error_of(ErrorCode::out_of_memory, keep_all),
                  AllOf(HasSubstr("kept by the caller"), HasSubstr(std::to_string(8 * batch_bytes))));
      EXPECT_EQ(kept.size(), 8U);
    }
    EXPECT_EQ(order(loader.epoch(1)).size(), 1000U);
  }
}

TEST(Loader, ThreadsReadAtTheSameTimeEvenWithinOneBatch) {
  const auto source = std::make_shared<FakeSource>(64);
  std::mutex mutex;
  std::condition_variable changed;
  std::set<std::thread::id> readers;
  source->on_read = [&](std::int64_t) {
    std::unique_lock lock(mutex);
    readers.insert(std::this_thread::get_id());
    changed.notify_all();
    // Each waits for all four: without real parallelism nobody would come.
    changed.wait_for(lock, std::chrono::seconds(60), [&] { return readers.size() >= 4; });
  };
  Loader loader{source, options_of(64, 4, 1), 1, true};
  EXPECT_EQ(order(loader.epoch(0)).size(), 64U);
  EXPECT_EQ(readers.size(), 4U);
  EXPECT_EQ(readers.count(std::this_thread::get_id()), 0U);
  const auto first_epoch = readers;
  EXPECT_EQ(order(loader.epoch(1)).size(), 64U);
  EXPECT_EQ(readers, first_epoch);  // Workers survive epochs.
}

TEST(Loader, WithoutThreadsTheConsumerLoads) {
  const auto source = std::make_shared<FakeSource>(64);
  const std::int64_t threads = thread_count();
  source->on_read = [reader = std::this_thread::get_id()](std::int64_t) {
    EXPECT_EQ(std::this_thread::get_id(), reader);
  };
  Loader loader{source, options_of(16, 0), 1, true};
  EXPECT_EQ(thread_count(), threads);
  auto epoch = loader.epoch(0);
  EXPECT_EQ(source->reads, 0);
  for (std::int64_t i = 1; i <= 4; ++i) {
    EXPECT_TRUE(epoch.next().has_value());
    EXPECT_EQ(source->reads, 16 * i);  // Nothing ahead.
  }
}

TEST(Loader, OneEpochAtATimeAndAFinishedOneMayLinger) {
  Loader loader{std::make_shared<FakeSource>(64), options_of(32, 1), 1, true};
  auto first = loader.epoch(0);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { loader.epoch(1); }), HasSubstr("epoch 0 is still running"));
  EXPECT_TRUE(first.next().has_value());
  EXPECT_TRUE(first.next().has_value());
  auto second = loader.epoch(1);  // The last batch is out, so the first epoch is over.
  EXPECT_FALSE(first.next().has_value());
  EXPECT_EQ(second.next().value().epoch(), 1);
  auto moved = std::move(second);
  EXPECT_EQ(moved.next().value().index(), 1);
  EXPECT_FALSE(moved.next().has_value());
}

TEST(Loader, SteadyStateAllocatesOneHandleABatch) {
  const auto source = std::make_shared<FakeSource>(32 * 300);
  for (const std::int64_t threads : {0, 1, 2}) {
    Loader loader{source, augmenting(options_of(32, threads)), 1, true};
    EXPECT_EQ(order(loader.epoch(0)).size(), 32U * 300);
    auto epoch = loader.epoch(1);
    EXPECT_EQ(allocations_of(epoch, 10, 200), 200) << threads << " threads";
  }
}

TEST(Loader, StatisticsCountWhatWasDone) {
  const auto source = std::make_shared<FakeSource>(100);
  source->on_read = [](std::int64_t) { std::this_thread::sleep_for(std::chrono::microseconds(100)); };
  for (const std::int64_t threads : {0, 1, 3}) {
    Loader loader{source, options_of(10, threads), 1, true};
    EXPECT_FALSE(loader.statistics().latency_ns_p50.has_value());
    EXPECT_EQ(order(loader.epoch(0)).size(), 100U);
    const LoaderStatistics found = loader.statistics();
    EXPECT_EQ(found.samples, 100);
    EXPECT_EQ(found.batches, 10);
    EXPECT_GE(found.read_ns, 100 * 100'000);
    EXPECT_GE(found.busy_ns, found.read_ns);
    EXPECT_GE(found.ready_batches, 0);
    if (threads == 0) {
      EXPECT_EQ(found.wait_for_batch_ns, 0);
      EXPECT_EQ(found.ready_batches, 0);
      EXPECT_GE(found.latency_ns_p50.value(), 950'000);  // Ten reads, told within 4 %.
    }
    if (threads == 1) {
      EXPECT_GT(found.wait_for_batch_ns, 0);
    }
  }
}

TEST(Loader, WaitsAreChargedToTheSideThatWaits) {
  const auto source = std::make_shared<FakeSource>(320);
  Loader loader{source, options_of(32, 1, 1), 1, true};
  auto epoch = loader.epoch(0);
  // Longer from batch to batch: the worker waits from when it finds no room, for which it may need a core first.
  for (std::int64_t batch = 1; batch < 10 && loader.statistics().wait_for_slot_ns < 10'000'000; ++batch) {
    while (source->reads < batch * 32) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(10 << batch));  // The worker has no room.
    EXPECT_TRUE(epoch.next().has_value());
    while (source->reads < (batch + 1) * 32) std::this_thread::yield();
  }
  EXPECT_GE(loader.statistics().wait_for_slot_ns, 10'000'000);
}

TEST(Loader, WhatIsLoadedWhileTheConsumerWorksShowsInTheStatistics) {
  const auto source = std::make_shared<FakeSource>(50);
  source->on_read = [](std::int64_t) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  for (const std::int64_t threads : {0, 1}) {
    Loader loader{source, options_of(1, threads), 1, true};
    Epoch epoch = loader.epoch(0);
    const auto busy_and_own_ns = [&] { return loader.statistics().busy_ns + loader.statistics().consumer_busy_ns; };
    const std::int64_t begin_ns = monotonic_ns();
    ASSERT_TRUE(epoch.next().has_value());
    const std::int64_t first_ns = monotonic_ns(), told_first_ns = busy_and_own_ns();
    std::int64_t asking_ns = 0;  // Is nobody's work. Where this thread has to wait for a core within, it is long.
    for (std::int64_t i = 1; i < 50; ++i) {
      // The consumer works until the next one is there, where somebody else loads it.
      while (threads > 0 && loader.statistics().samples <= i) std::this_thread::yield();
      const std::int64_t asked_ns = monotonic_ns();
      ASSERT_TRUE(epoch.next().has_value());
      asking_ns += monotonic_ns() - asked_ns;
    }
    const std::int64_t end_ns = monotonic_ns(), told_ns = busy_and_own_ns();
    if (threads == 0) {
      EXPECT_LE(told_ns, end_ns - begin_ns);
    } else {  // Of 49 reads, and a sleep is never shorter.
      EXPECT_GE(told_ns - told_first_ns, end_ns - first_ns - asking_ns + 25'000'000);
    }
  }
}

TEST(Loader, OneSlowRequestInAHundredShowsInTheP99) {
  const auto source = std::make_shared<FakeSource>(100);
  source->on_read = [](std::int64_t index) {
    if (index == 50) std::this_thread::sleep_for(std::chrono::milliseconds(40));
  };
  Loader loader{source, options_of(1, 0), 1, true};
  EXPECT_EQ(order(loader.epoch(0)).size(), 100U);
  const LoaderStatistics found = loader.statistics();
  EXPECT_GE(found.latency_ns_p99.value(), 38'000'000);
  EXPECT_LE(found.latency_ns_p50.value(), found.latency_ns_p95.value());
  EXPECT_LE(found.latency_ns_p95.value(), found.latency_ns_p99.value());
}

TEST(Loader, WorkAndWaitsAreSpansOfTheTrace) {
  const auto source = std::make_shared<FakeSource>(64);
  source->on_read = [](std::int64_t) { std::this_thread::sleep_for(std::chrono::microseconds(50)); };
  Loader loader{source, options_of(16, 1, 1), 1, true};
  Trace trace;
  EXPECT_EQ(order(loader.epoch(0)).size(), 64U);
  const TraceRecord record = trace.stop();
  std::map<std::string, int> spans;
  for (const TraceEvent& event : record.events) {
    const auto& name = record.names[event.name];
    ++spans[name.category + " " + name.text];
  }
  EXPECT_GE(spans["work load_chunk"], 4);
  EXPECT_GE(spans["wait wait_for_batch"], 1);
  EXPECT_THAT(record.threads, testing::Contains("loader 0"));
}

template <class L>
concept CanStartEpoch = requires(L&& loader) {
  std::forward<L>(loader).epoch(0);
};
static_assert(CanStartEpoch<Loader&>);
static_assert(!CanStartEpoch<Loader>, "the epoch would outlive its loader");

TEST(LatencyHistogram, TellsEveryValueWithinAThirtySecond) {
  for (const std::int64_t value : {0L, 1L, 15L, 16L, 31L, 32L, 33L, 1000L, 123456789L, 1L << 40, (1L << 62) + 12345}) {
    detail::LatencyHistogram histogram;
    histogram.add(value);
    EXPECT_NEAR(static_cast<double>(histogram.reached_by(0.01).value()), static_cast<double>(value),
                static_cast<double>(value) / 32);
  }
}

TEST(LatencyHistogram, TellsWhatAShareReached) {
  detail::LatencyHistogram histogram;
  EXPECT_FALSE(histogram.reached_by(0.5).has_value());
  for (int i = 0; i < 90; ++i) histogram.add(1);
  for (int i = 0; i < 9; ++i) histogram.add(5);
  histogram.add(9);
  EXPECT_EQ(histogram.reached_by(0.01), 9);
  EXPECT_EQ(histogram.reached_by(0.02), 5);
  EXPECT_EQ(histogram.reached_by(0.10), 5);
  EXPECT_EQ(histogram.reached_by(0.11), 1);
  EXPECT_EQ(histogram.reached_by(1.0), 1);
}

}  // namespace
}  // namespace headrace
