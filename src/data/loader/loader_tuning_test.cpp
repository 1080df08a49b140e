// Stages that wait stand for stages that work, so that what is decided does not depend on the machine. Each test goes
// on until the decision comes, and fails when it does not come for thousands of batches.
#include <headrace/error.h>
#include <headrace/loader.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/hardware/machine.h"
#include "data/loader/allocation_count.h"
#include "data/loader/detail/loader_tuning.h"
#include "data/loader/testing.h"
#include "data/source/waiting_source.h"
#include "data/store/ram_cache.h"
#include "media/codec/tiny_images.h"

namespace headrace {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;
using testing::AllOf;
using testing::Each;
using testing::Field;
using testing::HasSubstr;

constexpr std::int64_t kBatchesMax = 6000;
constexpr std::int64_t kMb = 1'000'000;

WaitingSource::Cost always(microseconds wait) {
  return [wait](std::int64_t, std::int64_t) { return nanoseconds(wait); };
}

// Takes batches, each of which it works on for `own`, until `done` or too many. Whether it was done.
bool consume_until(Loader& loader, microseconds own, const std::function<bool()>& done) {
  for (std::int64_t batches = 0; batches < kBatchesMax;) {
    auto epoch = loader.next_epoch();
    while (const auto batch = epoch.next()) {
      std::this_thread::sleep_for(own);
      if (++batches % 16 == 0 && done()) return true;
    }
  }
  return done();
}

bool has_rolled_back(const std::vector<LoaderDecision>& decisions) {
  return std::any_of(decisions.begin(), decisions.end(), [](const auto& made) { return made.rolled_back; });
}

TEST(LoaderTuning, ThreadsRiseWhileAStageIsSlowAndComeDownWhenItIsNot) {
  std::atomic<std::int64_t> wait_us{5000};
  const auto source = std::make_shared<WaitingSource>(
      512, [&](std::int64_t, std::int64_t) { return nanoseconds(microseconds(wait_us.load())); });
  auto options = options_of(1, AUTOTUNE, AUTOTUNE);
  options.num_workers_max = 8;
  Loader loader{source, options, 1, true};
  EXPECT_EQ(loader.statistics().num_workers, 1);
  EXPECT_TRUE(consume_until(loader, microseconds(1000), [&] { return loader.statistics().num_workers >= 3; }));
  const auto risen = loader.decisions();
  ASSERT_FALSE(risen.empty());
  EXPECT_EQ(risen.front().what, "data.num_workers");
  EXPECT_EQ(risen.front().from, 1);
  EXPECT_GT(risen.front().to, 1);
  EXPECT_GT(risen.front().before, 0);
  EXPECT_THAT(risen.front().why, HasSubstr("a batch takes the threads"));
  EXPECT_EQ(loader.applied_num_workers().requested, "auto");
  EXPECT_EQ(loader.applied_num_workers().applied, std::to_string(loader.statistics().num_workers));

  wait_us = 100;
  EXPECT_TRUE(consume_until(loader, microseconds(1000), [&] { return loader.statistics().num_workers == 1; }));
  EXPECT_THAT(loader.applied_num_workers().reason, HasSubstr("which is enough"));
}

TEST(LoaderTuning, AForcedBadDecisionIsRolledBack) {
  // What the model cannot know: threads that disturb each other.
  const auto source = std::make_shared<WaitingSource>(512, [](std::int64_t, std::int64_t inside) {
    return nanoseconds(microseconds(inside == 1 ? 1000 : 1000 * inside * inside * 4));
  });
  auto options = options_of(1, AUTOTUNE, 8);
  options.num_workers_max = 4;
  Loader loader{source, options, 1, true};
  EXPECT_TRUE(consume_until(loader, microseconds(100), [&] { return has_rolled_back(loader.decisions()); }));
  const auto decisions = loader.decisions();
  ASSERT_GE(decisions.size(), 2U);
  EXPECT_EQ(decisions[0].from, 1);
  EXPECT_TRUE(decisions[0].rolled_back);
  EXPECT_LT(decisions[0].after.value(), decisions[0].before);
  EXPECT_EQ(decisions[1].to, 1);
  EXPECT_THAT(decisions[1].why, HasSubstr("rolled back"));
  EXPECT_EQ(loader.statistics().num_workers, 1);
}

TEST(LoaderTuning, DepthGrowsUnderBurstsWithinItsBytes) {
  constexpr int kSide = 500;  // 1 MB of f32 a batch.
  const auto source = std::make_shared<WaitingSource>(
      400, [](std::int64_t index, std::int64_t) { return nanoseconds(microseconds(index % 20 == 0 ? 50'000 : 100)); },
      kSide);
  auto options = options_of(1, 1, AUTOTUNE);
  options.shuffle = false;
  options.prefetch_mib = 10;
  AllocationCount::reset_peak();
  Loader loader{source, options, 1, true};
  const std::int64_t batch_bytes = loader.statistics().batch_bytes;
  ASSERT_GE(batch_bytes, 1'000'000);
  EXPECT_TRUE(consume_until(loader, microseconds(4000), [&] { return loader.statistics().prefetch_batches == 10; }));
  {
    const auto epoch = loader.next_epoch();  // Nobody takes a batch, until all that may lie ready do.
    const auto is_full = [&] { return AllocationCount::peak_growth() > 10 * batch_bytes; };
    for (int looks = 0; looks < 60'000 && !is_full(); ++looks) std::this_thread::sleep_for(microseconds(1000));
  }
  order(loader.next_epoch());
  EXPECT_LE(loader.statistics().pool_bytes, 12 * batch_bytes);            // And two in the consumer's hands.
  EXPECT_GT(AllocationCount::peak_growth(), 10 * batch_bytes);            // The heap's peak agrees:
  EXPECT_LT(AllocationCount::peak_growth(), 12 * batch_bytes + 2 * kMb);  // images and handles are the rest.
  EXPECT_THAT(loader.decisions(), Each(AllOf(Field(&LoaderDecision::what, "data.prefetch_batches"),
                                             Field(&LoaderDecision::to, testing::Le(10)))));
}

TEST(LoaderTuning, NoByteOfAnyBatchChanges) {
  const auto source = std::make_shared<WaitingSource>(1024, always(microseconds(500)));
  auto options = options_of(4, 0);
  options.transform = {.pad = 1, .flip_probability = 0.5, .mean = {0.4}, .std = {0.2}};
  Loader plain{std::make_shared<WaitingSource>(1024, always(microseconds(0))), options, 5, true};
  options.num_workers = options.prefetch_batches = AUTOTUNE;
  Loader tuned{source, options, 5, true};
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    EXPECT_EQ(digests(tuned.epoch(epoch)), digests(plain.epoch(epoch)));
  }
  EXPECT_FALSE(tuned.decisions().empty());
  EXPECT_EQ(tuned.state().options, plain.state().options);
}

bool is_judged(const std::vector<LoaderDecision>& decisions) {
  return !decisions.empty() && decisions.front().after.has_value();
}

TEST(LoaderTuning, ACacheIsPlacedWhereReadingIsSlowAndChangesNoByte) {
  auto options = options_of(4, 1);
  options.transform = {.pad = 1, .flip_probability = 0.5, .mean = {0.4}, .std = {0.2}};
  Loader plain{std::make_shared<WaitingSource>(128, always(microseconds(0))), options, 5, true};
  options.cache = Cache::automatic;
  Loader tuned{std::make_shared<WaitingSource>(128, always(microseconds(1000))), options, 5, true};
  EXPECT_EQ(tuned.applied_cache().applied, "none");
  std::int64_t epoch = 0;
  for (; epoch < 2000 && !is_judged(tuned.decisions()); ++epoch) {
    EXPECT_EQ(digests(tuned.epoch(epoch)), digests(plain.epoch(epoch)));
  }
  EXPECT_EQ(digests(tuned.epoch(epoch)), digests(plain.epoch(epoch)));
  const auto decisions = tuned.decisions();
  ASSERT_EQ(decisions.size(), 1U);
  EXPECT_EQ(decisions[0].what, "data.cache");
  EXPECT_EQ(decisions[0].text_of(decisions[0].to), "decoded");
  EXPECT_THAT(decisions[0].why, HasSubstr("100 % of the samples can be kept decoded"));
  EXPECT_GT(decisions[0].after.value(), decisions[0].before);
  EXPECT_FALSE(decisions[0].rolled_back);
  EXPECT_EQ(tuned.applied_cache().requested, "auto");
  EXPECT_EQ(tuned.applied_cache().applied, "decoded");
  EXPECT_GT(tuned.statistics().cache_bytes, 0);
  EXPECT_EQ(tuned.state().options, plain.state().options);
  tuned.set_cache(Cache::none, /*keep=*/true);  // As the arms of a trial do.
  EXPECT_EQ(tuned.applied_cache().applied, "none");
  tuned.set_cache(Cache::automatic, /*keep=*/true);
  EXPECT_EQ(tuned.applied_cache().applied, "decoded");
}

TEST(LoaderTuning, ACacheAfterWhichTheConsumerGetsLessIsTakenBackAndItsMemoryFreed) {
  std::atomic<std::int64_t> wait_us{500};
  const auto source = std::make_shared<WaitingSource>(
      128, [&](std::int64_t, std::int64_t) { return nanoseconds(microseconds(wait_us.load())); }, 128);
  auto options = options_of(4, 1);
  options.cache = Cache::automatic;
  options.cache_mib = 1;  // Half of the samples.
  Loader loader{source, options, 1, true};
  EXPECT_TRUE(consume_until(loader, microseconds(0), [&] {
    if (!loader.decisions().empty()) wait_us = 3000;
    return has_rolled_back(loader.decisions());
  }));
  const auto decisions = loader.decisions();
  ASSERT_EQ(decisions.size(), 2U);
  EXPECT_TRUE(decisions[0].rolled_back);
  EXPECT_THAT(decisions[0].why, HasSubstr("50 % of the samples can be kept decoded"));
  EXPECT_LT(decisions[0].after.value(), decisions[0].before);
  EXPECT_EQ(decisions[1].text_of(decisions[1].to), "none");
  EXPECT_THAT(decisions[1].why, HasSubstr("rolled back"));
  EXPECT_GT(loader.statistics().cache_hits, 0);
  EXPECT_EQ(loader.statistics().cache_bytes, 0);
  EXPECT_EQ(loader.applied_cache().applied, "none");
}

TEST(LoaderTuning, ACacheThatWasKeptGoesBackWhateverIsLeft) {
  auto options = options_of(4, 1);
  options.cache = Cache::automatic;
  options.cache_mib = 64;
  const std::int64_t limit = resident_memory().value() + RamCache::promised_bytes() + (std::int64_t{128} << 20);
  Loader loader{std::make_shared<WaitingSource>(128, always(microseconds(1000))), options, 5, true, limit};
  EXPECT_TRUE(consume_until(loader, microseconds(0), [&] { return loader.applied_cache().applied == "decoded"; }));
  const std::vector<char> neighbour(std::size_t{160} << 20, 1);
  loader.set_cache(Cache::none, /*keep=*/true);  // As the arms of a trial do.
  EXPECT_EQ(loader.applied_cache().applied, "none");
  loader.set_cache(Cache::automatic, /*keep=*/true);
  EXPECT_EQ(loader.applied_cache().applied, "decoded");
  EXPECT_EQ(neighbour.back(), 1);
}

TEST(LoaderTuning, ANumberEndsItAndAutotuneBeginsItAnew) {
  const auto source = std::make_shared<WaitingSource>(512, always(microseconds(2000)));
  auto options = options_of(1, 3, 4);
  options.num_workers_max = 4;
  Loader loader{source, options, 1, true};
  EXPECT_EQ(loader.applied_num_workers().requested, "3");
  EXPECT_EQ(loader.applied_num_workers().applied, "3");
  EXPECT_EQ(loader.applied_num_workers().reason, "");
  order(loader.next_epoch());
  EXPECT_TRUE(loader.decisions().empty());
  loader.set_num_workers(0);
  loader.set_num_workers(AUTOTUNE);
  EXPECT_EQ(loader.statistics().num_workers, 1);
  EXPECT_TRUE(consume_until(loader, microseconds(0), [&] { return loader.statistics().num_workers > 1; }));
  loader.set_num_workers(2);
  const std::size_t decisions = loader.decisions().size();
  order(loader.next_epoch());
  EXPECT_EQ(loader.decisions().size(), decisions);
  EXPECT_EQ(loader.statistics().num_workers, 2);
}

TEST(LoaderTuning, WhatItHasFoundOutlivesANumber) {
  const auto source = std::make_shared<WaitingSource>(512, always(microseconds(2000)));
  auto options = options_of(1, AUTOTUNE, AUTOTUNE);
  options.num_workers_max = 4;
  Loader loader{source, options, 1, true};
  ASSERT_TRUE(consume_until(loader, microseconds(0), [&] { return loader.statistics().num_workers > 1; }));
  const LoaderStatistics found = loader.statistics();
  ASSERT_GT(found.prefetch_batches, 2);
  for (const std::int64_t number : {0, 1, 2}) {  // As the arms of a trial do.
    loader.set_num_workers(number);
    loader.set_prefetch_batches(1);
    EXPECT_EQ(loader.applied_num_workers().applied, std::to_string(number));
    loader.set_prefetch_batches(AUTOTUNE);
    loader.set_num_workers(AUTOTUNE);
    EXPECT_EQ(loader.statistics().num_workers, found.num_workers);
    EXPECT_EQ(loader.statistics().prefetch_batches, found.prefetch_batches);
  }
}

TEST(LoaderTuning, ABoundInBytesHoldsForANumberToo) {
  const auto source = std::make_shared<WaitingSource>(64, always(microseconds(0)), 512);
  auto options = options_of(1, 1, 8);
  options.prefetch_mib = 3;
  Loader loader{source, options, 1, true};
  EXPECT_EQ(loader.statistics().prefetch_batches, 2);  // A batch is 1 MiB and its label.
  EXPECT_EQ(loader.applied_prefetch().requested, "8");
  EXPECT_EQ(loader.applied_prefetch().applied, "2");
  EXPECT_THAT(loader.applied_prefetch().reason, HasSubstr("data.prefetch_mib = 3"));
  loader.set_prefetch_batches(1);
  EXPECT_EQ(loader.applied_prefetch().applied, "1");
  EXPECT_EQ(loader.applied_prefetch().reason, "");
}

TEST(LoaderTuning, StagesCountWhatPassedThem) {
  const auto source = std::make_shared<WaitingSource>(100, always(microseconds(200)));
  Loader loader{source, options_of(16, 2), 1, true};
  order(loader.epoch(0));
  const LoaderStatistics statistics = loader.statistics();
  const auto stages = statistics.stages();
  EXPECT_EQ(stages[0].name, "read");
  EXPECT_EQ(stages[0].records, 100);
  EXPECT_EQ(stages[0].bytes, 100 * 16);
  EXPECT_GE(stages[0].busy_ns, 100 * 200'000);  // A sleep is never shorter.
  EXPECT_EQ(stages[1].name, "decode");
  EXPECT_EQ(stages[1].records, 0);  // Pixels.
  EXPECT_EQ(stages[2].name, "transform");
  EXPECT_EQ(stages[2].records, 100);
  EXPECT_EQ(stages[2].bytes, 100 * 16 * 4);
  EXPECT_EQ(stages[3].name, "consume");
  EXPECT_EQ(stages[3].records, 100);
  EXPECT_EQ(stages[3].bytes, 100 * 16 * 4);
  EXPECT_EQ(stages[0].busy_ns + stages[1].busy_ns + stages[2].busy_ns, statistics.busy_ns);
  EXPECT_EQ(stages[3].wait_for_input_ns, statistics.wait_for_batch_ns);
  EXPECT_TRUE(stages[0].limits);  // The consumer does nothing but wait for it.
  EXPECT_EQ(std::count_if(stages.begin(), stages.end(), [](const auto& stage) { return stage.limits; }), 1);
}

TEST(LoaderTuning, DecodingThatKeepsTheThreadsBusiestIsWhatStarvesTheConsumer) {
  const TinyImages images{{.classes = 2, .count = 8, .height = 600, .width = 800}};
  DataOptions options = options_of(4, 1);
  options.transform.size = 16;
  Loader loader{open_source(images.uri(), Split::train), options, 1, false};
  order(loader.epoch(0));
  const auto stages = loader.statistics().stages();
  EXPECT_EQ(stages[1].name, "decode");
  EXPECT_EQ(stages[1].records, 16);
  EXPECT_TRUE(stages[1].limits);
  EXPECT_GT(stages[3].wait_for_input_ns, stages[3].busy_ns);
}

TEST(LoaderTuning, StarvationIsTheSlowestStagesAndASlowConsumersIsItsOwn) {
  LoaderStatistics statistics;
  statistics.samples = 100;
  statistics.batches = 10;
  statistics.read_ns = 100;  // 1, 5 and 2 a sample.
  statistics.decode_ns = 500;
  statistics.busy_ns = 800;
  statistics.consumer_busy_ns = 100;
  statistics.wait_for_batch_ns = 700;
  statistics.ready_batches = 15;
  const auto starved = statistics.stages();
  EXPECT_TRUE(starved[1].limits);
  EXPECT_EQ(starved[2].busy_ns, 200);
  EXPECT_DOUBLE_EQ(starved[3].queue, 1.5);
  statistics.consumer_busy_ns = 100'000;
  const auto fed = statistics.stages();
  EXPECT_TRUE(fed[3].limits);
  EXPECT_FALSE(fed[1].limits);
}

// ---- Values in, settings out: no Loader ----

using detail::LoaderSetting;

// Three numbers in the place of a loader's, and a consumer that takes batches as long as its loader's threads need.
class Numbers {
 public:
  Numbers(const DataOptions& options, const LoaderSetting& now) : in_force(now), options_(options) {}

  // As a Loader does: what is asked for comes into force.
  void ask_for_num_workers(std::int64_t wanted) {
    if (const auto count = tuning.num_workers_for(wanted)) in_force.num_workers = *count;
    LoaderSetting asked = tuning.wanted();
    asked.num_workers = wanted;
    tuning.ask_for(asked, /*prefetch_max=*/64);
  }
  // Batches take the threads 5 ms together, without computing, and the consumer 1 ms. nullopt: nothing is to change.
  std::optional<LoaderSetting> decide() {
    for (int i = 0; i < 1000 && !tuning.is_due(); ++i) deliver();
    EXPECT_TRUE(tuning.is_due());
    return tuning.decide({}, deliveries_, static_cast<double>(now_ns_) * 1e-9);
  }
  void deliver() {
    constexpr std::int64_t kServiceNs = 5'000'000, kConsumerNs = 1'000'000;
    const std::int64_t asked_ns = now_ns_ + kConsumerNs;
    now_ns_ += std::max(kConsumerNs, kServiceNs / std::max<std::int64_t>(in_force.num_workers, 1));
    ++deliveries_;
    totals_.samples += options_.batch_size;
    totals_.busy_ns += kServiceNs;
    totals_.cpu_busy_ns += kServiceNs;
    tuning.measure(asked_ns, now_ns_, totals_);
  }

  LoaderSetting in_force;
  std::int64_t num_workers_had = 1000;  // More cannot be had.
  std::vector<std::string> changes;

 private:
  detail::LoaderTuning::Settables settables() {
    const auto set_num_workers = [this](std::int64_t count) {
      if (count > num_workers_had) throw Error(ErrorCode::io, "no more threads");
      in_force.num_workers = count;
      changes.emplace_back("num_workers");
    };
    const auto set_prefetch = [this](std::int64_t batches) {
      in_force.prefetch = batches;
      changes.emplace_back("prefetch");
    };
    const auto set_cache = [this](std::int64_t form) {
      in_force.cache = static_cast<Cache>(form);
      changes.emplace_back("cache");
    };
    return {.num_workers = {[this] { return in_force.num_workers; }, set_num_workers},
            .prefetch = {[this] { return in_force.prefetch; }, set_prefetch},
            .cache = {[this] { return static_cast<std::int64_t>(in_force.cache); }, set_cache}};
  }

  const DataOptions options_;
  std::mutex mutex_;
  detail::WorkerTotals totals_;
  std::int64_t now_ns_ = 0, deliveries_ = 0;

 public:
  detail::LoaderTuning tuning{options_, /*batches=*/100, settables(), mutex_};
};

DataOptions eight_threads_at_most(std::int64_t threads, std::int64_t prefetch) {
  DataOptions options = options_of(1, threads, prefetch);
  options.num_workers_max = 8;
  return options;
}

TEST(LoaderTuning, NothingIsDueWhereNothingIsAutotune) {
  Numbers numbers{eight_threads_at_most(1, 4), {1, 4}};
  for (int i = 0; i < 200; ++i) numbers.deliver();
  EXPECT_FALSE(numbers.tuning.is_automatic());
  EXPECT_FALSE(numbers.tuning.is_due());
  EXPECT_EQ(numbers.tuning.decide({}, 200, 1), std::nullopt);
}

TEST(LoaderTuning, WithAutoTuneOffNothingIsDecidedAndWhatIsAutotuneStaysAsItBegins) {
  for (const bool auto_tune : {true, false}) {
    DataOptions options = eight_threads_at_most(AUTOTUNE, AUTOTUNE);
    options.auto_tune = auto_tune;
    Numbers numbers{options, {0, 2}};
    numbers.ask_for_num_workers(AUTOTUNE);
    for (int i = 0; i < 200; ++i) numbers.deliver();
    EXPECT_EQ(numbers.tuning.is_due(), auto_tune);
    EXPECT_EQ(numbers.tuning.decide({}, 200, 1).has_value(), auto_tune);
    EXPECT_EQ(numbers.tuning.decisions().empty(), !auto_tune);
    EXPECT_EQ(numbers.in_force, (LoaderSetting{1, 2}));
  }
}

TEST(LoaderTuning, AutotuneGoesOnFromWhatItHadFoundWhenANumberTookItsPlace) {
  Numbers numbers{eight_threads_at_most(AUTOTUNE, AUTOTUNE), {5, 7, Cache::decoded}};
  EXPECT_EQ(numbers.tuning.num_workers_for(AUTOTUNE), std::nullopt);
  EXPECT_EQ(numbers.tuning.prefetch_for(AUTOTUNE), std::nullopt);
  EXPECT_EQ(numbers.tuning.num_workers_for(3), 3);
  EXPECT_EQ(numbers.tuning.prefetch_for(2), 2);
  EXPECT_EQ(numbers.tuning.cache_for(Cache::automatic), Cache::none);
  numbers.tuning.ask_for({3, 2, Cache::automatic}, 64);
  EXPECT_EQ(numbers.tuning.cache_for(Cache::automatic), std::nullopt);
  EXPECT_EQ(numbers.tuning.cache_for(Cache::none), Cache::none);
  numbers.tuning.ask_for({3, 2, Cache::none}, 64);
  numbers.in_force = {3, 2, Cache::none};
  EXPECT_EQ(numbers.tuning.num_workers_for(AUTOTUNE), 5);
  EXPECT_EQ(numbers.tuning.prefetch_for(AUTOTUNE), 7);
  EXPECT_EQ(numbers.tuning.cache_for(Cache::automatic), Cache::decoded);
}

TEST(LoaderTuning, AutotuneThatHasFoundNothingGoesOnFromWhatIsInForceWithinItsBounds) {
  Numbers numbers{eight_threads_at_most(0, 4), {0, 4}};
  EXPECT_EQ(numbers.tuning.num_workers_for(AUTOTUNE), 1);
  EXPECT_EQ(numbers.tuning.prefetch_for(AUTOTUNE), 4);
  numbers.in_force.num_workers = 20;
  EXPECT_EQ(numbers.tuning.num_workers_for(AUTOTUNE), 8);
}

TEST(LoaderTuning, ADecisionChangesWhatIsAutotuneAlone) {
  Numbers numbers{eight_threads_at_most(AUTOTUNE, 16), {0, 16}};
  numbers.ask_for_num_workers(AUTOTUNE);
  EXPECT_EQ(numbers.in_force.num_workers, 1);
  EXPECT_THAT(numbers.tuning.last_reason("data.num_workers"), HasSubstr("as it began"));
  const auto next = numbers.decide();
  ASSERT_TRUE(next.has_value());
  EXPECT_GT(next->num_workers, 1);
  EXPECT_LE(next->num_workers, 8);
  EXPECT_EQ(next->prefetch, 16);
  EXPECT_FALSE(numbers.tuning.is_due());  // It is measured anew.
  numbers.tuning.put_in_force(*next);
  EXPECT_EQ(numbers.in_force, *next);
  EXPECT_EQ(numbers.changes, std::vector<std::string>{"num_workers"});
  EXPECT_EQ(numbers.tuning.decisions().size(), 1U);
  EXPECT_THAT(numbers.tuning.last_reason("data.num_workers"), HasSubstr("a batch takes the threads 5 ms"));
}

TEST(LoaderTuning, WhatCannotBeHadIsNotedAndNotTriedAgain) {
  Numbers numbers{eight_threads_at_most(AUTOTUNE, 16), {0, 16}};
  numbers.ask_for_num_workers(AUTOTUNE);
  numbers.num_workers_had = 1;
  const auto next = numbers.decide();
  ASSERT_TRUE(next.has_value());
  numbers.tuning.put_in_force(*next);
  EXPECT_EQ(numbers.in_force.num_workers, 1);
  ASSERT_EQ(numbers.tuning.decisions().size(), 1U);
  EXPECT_THAT(numbers.tuning.decisions().back().why, HasSubstr("; no more threads"));
  EXPECT_TRUE(numbers.tuning.decisions().back().rolled_back);
  EXPECT_EQ(numbers.decide(), std::nullopt);
}

}  // namespace
}  // namespace headrace
